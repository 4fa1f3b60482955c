"""Limit of the entries that are on their way to the brokers, for one topic and for all topics of a worker. Pure.

Invariant (DESIGN §3): 11, what is sent and not confirmed is bounded.

A broker syncs together all entries that came during the last sync. So its throughput grows with what is on its way.
"""

from __future__ import annotations

from typing import Final

from replicator.apache.shared_budget import SharedBudget, TopicShare

SHARED_BYTES: Final = 128 * 1024 * 1024
TOPIC_BYTES_MAX: Final = 32 * 1024 * 1024
TOPIC_BYTES_MIN: Final = 1024 * 1024
TOPIC_ENTRIES_MAX: Final = 1_000
"""Most entries of a topic on their way: the default of the brokers' ``maxPendingPublishRequestsPerConnection``."""


def publish_budget() -> SharedBudget:
    """Return the room for entries on their way to the brokers that all topics of a worker share."""
    return SharedBudget(SHARED_BYTES, topic_max=TOPIC_BYTES_MAX, topic_min=TOPIC_BYTES_MIN)


class InFlightEntries:
    """Entries that one producer of one topic has on their way."""

    def __init__(self, room: SharedBudget) -> None:
        self._share = TopicShare(room)
        self.entries = 0

    @property
    def bytes(self) -> int:
        return self._share.bytes

    def fits(self, size: int) -> bool:
        """Return whether an entry of ``size`` bytes may be sent. A single entry always may.

        If it does not fit, entries of the topic are on their way, so one of their confirmations makes room."""
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
        """Free the room of a producer that has ended."""
        self.entries = 0
        self._share.have(0)
