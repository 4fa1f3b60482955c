"""Channels to a cluster: over the engine in this process, and over connections by Pulsar's binary protocol."""
