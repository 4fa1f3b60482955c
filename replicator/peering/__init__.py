"""Conversations between two processes of this project: their messages and routes, written once for both sides."""
