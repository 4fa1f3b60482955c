"""Other systems as they are: real Apache Pulsar and Apache Kafka clusters of a process each, run from their jars.

Drills, benchmarks and tests start them by these modules, so they live in the package and are in the wheel. They need
Java 17 or newer and the jars, which ``python -m replicator.drills.peers`` fetches. Standard library only.
"""
