"""Backups of a worker's store: made while it runs, kept as hashed chunks, restored as a whole."""
