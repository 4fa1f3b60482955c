"""Schemas of topics: their values, their compatibility, and their registry in the store."""
