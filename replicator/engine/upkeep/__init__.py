"""What time does to topics: TTL, backlog quotas, retention."""
