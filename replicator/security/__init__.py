"""Identities of clients, their permissions, and the credentials that this process shows to others."""
