"""Consumers: the receiver queue, the trackers, dead letters, several topics, readers."""
