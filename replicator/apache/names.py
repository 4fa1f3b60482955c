"""The names that the bridge has at the brokers; nobody else may use them there."""

from __future__ import annotations

from typing import Final

RESERVED: Final = "replicator."
"""How every name of ours begins."""
_OTHERS: Final = ("pulsar.repl.", "pulsar.dedup", "__")
"""How the subscriptions begin that the brokers make for themselves: geo-replication, deduplication, compaction."""


def reading_subscription(cluster: str) -> str:
    """The durable subscription by which the worker of ``cluster`` reads a topic."""
    return f"{RESERVED}bridge.{cluster}"


def publishing_producer(cluster: str) -> str:
    """The producer by which it publishes. A broker refuses a second one of that name on a topic, so it is a fence."""
    return f"{RESERVED}bridge.{cluster}"


def applying_consumer(cluster: str) -> str:
    """The consumer by which it acknowledges what was acknowledged elsewhere."""
    return f"{RESERVED}state.{cluster}"


def renewing_command(topic: str) -> str:
    """Return the command that gets the halted reading of ``topic`` going again, at all clusters."""
    return f"replicator bridge renew {topic} -f FILE"


def is_reserved(subscription: str) -> bool:
    """Whether a subscription is no application's."""
    return subscription.startswith((RESERVED, *_OTHERS))
