"""An Apache Pulsar broker from its jars, or from its image."""
