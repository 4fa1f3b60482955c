"""Pulsar's binary protocol without I/O: frames, commands and the state of a connection, for servers and clients."""
