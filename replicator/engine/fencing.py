"""Letting go of those who are connected to topics, because of a failover: see :mod:`replicator.engine.admission`."""

from __future__ import annotations

from collections.abc import Iterable

from replicator.engine.errors import EngineError
from replicator.engine.topic import Topic


def disconnect_producers(topics: Iterable[Topic], error: EngineError) -> int:
    """Let go of every producer, with ``error``; returns how many there were."""
    disconnected = 0
    for topic in topics:
        disconnected += topic.producers.connected
        topic.writing.gate.refuse(error)
        topic.producers.fence(error)
    return disconnected


def disconnect_consumers(topics: Iterable[Topic], error: EngineError) -> int:
    """Let go of every consumer, with ``error``; returns how many there were. What they hold is unacknowledged again."""
    disconnected = 0
    for topic in topics:
        for subscription in list(topic.subscriptions.values()):
            for consumer in list(subscription.consumers.values()):
                consumer.fence(error)
                disconnected += 1
    return disconnected


def resume_dispatch(topics: Iterable[Topic]) -> None:
    """Dispatch is not paused any more: go on at once."""
    for topic in topics:
        for subscription in topic.subscriptions.values():
            subscription.dispatching.schedule()


def held_entries(topic: Topic) -> dict[str, int]:
    """By subscription, how many entries its consumers hold unacknowledged; only those with any."""
    return {each.name: held for each in topic.subscriptions.values() if (held := each.dispatching.held_entries)}
