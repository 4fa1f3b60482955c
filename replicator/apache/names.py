"""The names that the bridge has at the brokers; nobody else may use them there."""

from __future__ import annotations

from typing import Final

RESERVED: Final = "replicator."
"""Prefix of all names of ours."""
_OTHERS: Final = ("pulsar.repl.", "pulsar.dedup", "__")
"""Prefixes of the brokers' own subscriptions: geo-replication, deduplication, compaction."""


def reading_subscription(cluster: str) -> str:
    """Return the name of the durable subscription by which the worker of ``cluster`` reads a topic."""
    return f"{RESERVED}bridge.{cluster}"


def publishing_producer(cluster: str) -> str:
    """Return the name of the worker's producer. The name is a fence: a topic's broker refuses a second one."""
    return f"{RESERVED}bridge.{cluster}"


def applying_consumer(cluster: str) -> str:
    """Return the name of the consumer by which the worker acknowledges what was acknowledged in other clusters."""
    return f"{RESERVED}state.{cluster}"


def renewing_command(topic: str) -> str:
    """Return the command that gets the halted reading of ``topic`` going again, at all clusters."""
    return f"replicator bridge renew {topic} -f FILE"


def is_reserved(subscription: str) -> bool:
    """Return whether a subscription belongs to the bridge or to the brokers, and not to an application."""
    return subscription.startswith((RESERVED, *_OTHERS))
