"""The server of Pulsar's binary protocol: official clients produce and consume on this worker's engine."""
