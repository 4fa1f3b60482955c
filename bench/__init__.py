"""Benchmarks of worker processes, and of their parts in this process, beside NATS, Pulsar and Kafka if installed.

``python -m bench [NAME ...]``; see docs/benchmarks.md for what each figure means.
"""
