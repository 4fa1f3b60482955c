"""Apache Kafka and MirrorMaker 2 from their jars."""
