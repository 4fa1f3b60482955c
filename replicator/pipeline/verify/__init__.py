"""Verify: it checks whether the clusters agree, message by message."""
