"""The row of a subscription in the index: its state as the cursor has it at the moment of writing.

Invariant (DESIGN §3): 11, what is summed up for people is bounded: a state with many single acknowledgements has their
number only.

1. A change of a subscription says that it moved, and where mark-delete is. What is acknowledged beyond that is counted
   when the row is written, so that it is counted once for many changes.
2. A subscription that is gone by then, or whose row is a tombstone, is written as it was recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from replicator.engine.engine import Engine
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from snapshots.ack_vector import AckVector
from snapshots.repository import SubscriptionState

VECTOR_POSITIONS_MAX: Final = 10_000
"""Acknowledged beyond the mark-delete position; with more, the vector takes milliseconds, and is not summed up."""
VECTOR_ORIGINS_MAX: Final = 32
"""Origins of a vector that are summed up: some kilobytes."""


class SubscriptionStates:
    """Looks up subscriptions in ``engine``; without one, states stay as they were recorded.

    ``vector`` gives the exact state of a subscription, by origin.
    """

    def __init__(self, engine: Engine | None, vector: Callable[[Topic, Subscription], AckVector] | None) -> None:
        self._engine = engine
        self._vector = vector

    def counted(self, state: SubscriptionState) -> SubscriptionState:
        """Return the state with its present acknowledgements beyond the mark-delete position."""
        topic = None if self._engine is None else self._engine.find(state.topic)
        subscription = None if topic is None else topic.subscriptions.get(state.subscription)
        if topic is None or subscription is None or state.tombstone:
            return state
        return self.exact(topic, subscription)

    def exact(self, topic: Topic, subscription: Subscription) -> SubscriptionState:
        """Return a subscription's state from its cursor."""
        cursor = subscription.cursor
        beyond = cursor.state.individually_deleted
        small = len(beyond) <= VECTOR_POSITIONS_MAX
        return SubscriptionState(
            topic.name,
            subscription.name,
            cursor.generation,
            cursor.mark_delete,
            subscription.replicated,
            acked_beyond=len(beyond),
            holes=beyond.count_runs(),
            ack_vector=(
                summary_of(self._vector(topic, subscription))
                if self._vector is not None and subscription.replicated and small
                else None
            ),
        )


def summary_of(vector: AckVector) -> dict[str, Any]:
    """Return a summary for people: for each origin, how far everything is acknowledged, and how much beyond."""
    return {
        origin: {
            "through": str(acks.ranges[0][1]) if acks.ranges else None,
            "ranges": len(acks.ranges),
            "beyond": len(acks.positions),
            "batches": len(acks.batches),
        }
        for origin, acks in sorted(vector.origins.items())[:VECTOR_ORIGINS_MAX]
    }
