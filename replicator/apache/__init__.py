"""The bridge between the engine of a worker and the Apache Pulsar brokers that it runs beside (``kind: pulsar``)."""
