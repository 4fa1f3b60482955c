"""What lies at Apache Pulsar's brokers, compared with what lies elsewhere."""
