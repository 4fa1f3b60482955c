"""Steps between a producer and the log: permission to publish, checks of entries, and deduplication."""
