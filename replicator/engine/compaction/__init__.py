"""Topic compaction: the newest message of each key."""
