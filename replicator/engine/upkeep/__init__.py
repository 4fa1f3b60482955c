"""Upkeep of topics over time: TTL, backlog quotas, retention."""
