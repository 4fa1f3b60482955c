"""Limit of the bytes that all topics of a worker may have under way together, for one purpose. Pure.

Invariant (DESIGN §3): 11, what is under way is bounded.

One topic alone may have ``topic_max`` bytes; many topics share ``shared``. The first ``topic_min`` bytes of each topic
are not shared, so that no topic blocks another.
"""

from __future__ import annotations


class SharedBudget:
    """Bytes that all topics of a worker share."""

    def __init__(self, shared: int, *, topic_max: int, topic_min: int) -> None:
        self.shared = shared
        self.topic_max = topic_max
        self.topic_min = topic_min
        self.used = 0
        """Shared bytes in use: those beyond the first ``topic_min`` bytes of each topic."""


class TopicShare:
    """Share of one topic in ``room``."""

    def __init__(self, room: SharedBudget) -> None:
        self._room = room
        self.bytes = 0

    def fitting(self) -> int:
        """Return how many bytes the topic may have now, in all."""
        room = self._room
        others = room.used - self._beyond(self.bytes)
        return min(room.topic_max, room.topic_min + max(0, room.shared - others))

    def have(self, size: int) -> None:
        """Record that the topic has ``size`` bytes now, in all."""
        self._room.used += self._beyond(size) - self._beyond(self.bytes)
        self.bytes = size

    def _beyond(self, size: int) -> int:
        return max(0, size - self._room.topic_min)
