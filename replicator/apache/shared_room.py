"""Bytes that all topics of a worker share, for one use of them. Pure.

Invariant (DESIGN §3): 11, what is under way is bounded.

One topic alone may have ``topic_max``; many share ``shared``. What a topic has at least is not shared, so that no other
one holds it up.
"""

from __future__ import annotations


class SharedRoom:
    """What all topics of a worker share."""

    def __init__(self, shared: int, *, topic_max: int, topic_min: int) -> None:
        self.shared = shared
        self.topic_max = topic_max
        self.topic_min = topic_min
        self.used = 0
        """Bytes, beyond what each topic has for itself."""


class TopicShare:
    """What one topic has of it."""

    def __init__(self, room: SharedRoom) -> None:
        self._room = room
        self.bytes = 0

    def fitting(self) -> int:
        """How many bytes it may have in all, as things are."""
        room = self._room
        others = room.used - self._beyond(self.bytes)
        return min(room.topic_max, room.topic_min + max(0, room.shared - others))

    def have(self, size: int) -> None:
        """It has so many in all now."""
        self._room.used += self._beyond(size) - self._beyond(self.bytes)
        self.bytes = size

    def _beyond(self, size: int) -> int:
        return max(0, size - self._room.topic_min)
