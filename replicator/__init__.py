"""Geo-replication and subscription sync between Pulsar-style clusters."""

__version__ = "0.1.0"
