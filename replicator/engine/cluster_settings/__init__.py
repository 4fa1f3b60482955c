"""Policies and permissions of a cluster: its own with their version, and what it keeps for other clusters."""
