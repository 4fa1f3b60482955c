"""Benchmarks of real worker processes, beside other systems where these are installed: NATS, Pulsar, Kafka.

``python -m bench [NAME ...]``; see docs/benchmarks.md for what each figure means.
"""
