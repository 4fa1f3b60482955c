"""How much may be on its way to the brokers, of one topic and of all topics of a worker. Pure.

Invariant (DESIGN §3): 11, what is sent and not confirmed is bounded.

A broker syncs what came meanwhile at once, so it takes more a second the more is on its way to it.
"""

from __future__ import annotations

from typing import Final

from replicator.apache.shared_room import SharedRoom, TopicShare

SHARED_BYTES: Final = 128 * 1024 * 1024
TOPIC_BYTES_MAX: Final = 32 * 1024 * 1024
TOPIC_BYTES_MIN: Final = 1024 * 1024
TOPIC_ENTRIES_MAX: Final = 1_000
"""A broker holds more than that back, by its default of ``maxPendingPublishRequestsPerConnection``."""


def publish_room() -> SharedRoom:
    """What all topics of a worker share."""
    return SharedRoom(SHARED_BYTES, topic_max=TOPIC_BYTES_MAX, topic_min=TOPIC_BYTES_MIN)


class UnderWay:
    """What one producer of one topic has on its way."""

    def __init__(self, room: SharedRoom) -> None:
        self._share = TopicShare(room)
        self.entries = 0

    @property
    def bytes(self) -> int:
        return self._share.bytes

    def fits(self, size: int) -> bool:
        """Whether an entry of so many bytes may be sent; one alone always may. Where it does not fit, some of the
        topic's own are on their way, so that one of their confirmations makes room."""
        if self.entries == 0:
            return True
        return self.entries < TOPIC_ENTRIES_MAX and self.bytes + size <= self._share.fitting()

    def sent(self, size: int) -> None:
        self.entries += 1
        self._share.have(self.bytes + size)

    def confirmed(self, size: int) -> None:
        self.entries -= 1
        self._share.have(self.bytes - size)

    def close(self) -> None:
        """The producer has ended: nothing of it is on its way any more."""
        self.entries = 0
        self._share.have(0)
