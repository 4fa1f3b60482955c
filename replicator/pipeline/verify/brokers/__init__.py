"""Comparison of the contents of Apache Pulsar's brokers with those of other places."""
