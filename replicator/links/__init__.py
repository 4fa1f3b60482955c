"""Copying blocks from one cluster to another."""
