"""The jars of Apache Pulsar's proxy; :mod:`replicator.drills.peers.pulsar.cluster` starts it."""
