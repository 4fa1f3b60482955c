"""Disconnecting clients from topics because of a failover; see :mod:`replicator.engine.admission`."""

from __future__ import annotations

from collections.abc import Iterable

from replicator.engine.errors import EngineError
from replicator.engine.topic import Topic


def disconnect_producers(topics: Iterable[Topic], error: EngineError) -> int:
    """Disconnect every producer with ``error``. Return how many there were."""
    disconnected = 0
    for topic in topics:
        disconnected += topic.producers.connected
        topic.writing.gate.refuse(error)
        topic.producers.fence(error)
    return disconnected


def disconnect_consumers(topics: Iterable[Topic], error: EngineError) -> int:
    """Disconnect every consumer with ``error``. Return how many there were. Messages that they hold stay
    unacknowledged."""
    disconnected = 0
    for topic in topics:
        for subscription in list(topic.subscriptions.values()):
            for consumer in list(subscription.consumers.values()):
                consumer.fence(error)
                disconnected += 1
    return disconnected


def resume_dispatch(topics: Iterable[Topic]) -> None:
    """Dispatch at once on all subscriptions, because dispatch is not paused any more."""
    for topic in topics:
        for subscription in topic.subscriptions.values():
            subscription.dispatching.schedule()


def held_entries(topic: Topic) -> dict[str, int]:
    """Return, by subscription, the number of entries that its consumers hold unacknowledged, without zeros."""
    return {each.name: held for each in topic.subscriptions.values() if (held := each.dispatching.held_entries)}
