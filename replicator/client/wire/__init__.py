"""Channels to a cluster: to an engine in this process, or over connections by Pulsar's binary protocol."""
