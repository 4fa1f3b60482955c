"""Benchmarks of real worker processes, beside a JetStream mirror where ``nats-server`` is installed.

``python -m bench [NAME ...]``; see docs/benchmarks.md for what each figure means.
"""
