"""How much may be on its way to the brokers, of one topic and of all topics of a worker. Pure.

Invariant (DESIGN §3): 11, what is sent and not confirmed is bounded.

A broker syncs what came meanwhile at once, so it takes more a second the more is on its way to it. One topic alone may
have :data:`TOPIC_BYTES_MAX`; many share :data:`SHARED_BYTES`. What a topic has at least is not shared, so that no other
one holds it up.
"""

from __future__ import annotations

from typing import Final

SHARED_BYTES: Final = 128 * 1024 * 1024
TOPIC_BYTES_MAX: Final = 32 * 1024 * 1024
TOPIC_BYTES_MIN: Final = 1024 * 1024
TOPIC_ENTRIES_MAX: Final = 1_000
"""A broker holds more than that back, by its default of ``maxPendingPublishRequestsPerConnection``."""


class PublishRoom:
    """What all topics of a worker share."""

    def __init__(self) -> None:
        self.used = 0
        """Bytes, beyond what each topic has for itself."""

    def topic(self) -> TopicRoom:
        return TopicRoom(self)


class TopicRoom:
    """What one producer of one topic has on its way."""

    def __init__(self, shared: PublishRoom) -> None:
        self._shared = shared
        self.entries = 0
        self.bytes = 0

    def fits(self, size: int) -> bool:
        """Whether an entry of so many bytes may be sent; one alone always may. Where it does not fit, some of the
        topic's own are on their way, so that one of their confirmations makes room."""
        if self.entries == 0:
            return True
        after = self.bytes + size
        if self.entries >= TOPIC_ENTRIES_MAX or after > TOPIC_BYTES_MAX:
            return False
        return after <= TOPIC_BYTES_MIN or self._shared.used + _beyond(after) - _beyond(self.bytes) <= SHARED_BYTES

    def sent(self, size: int) -> None:
        self._change(1, size)

    def confirmed(self, size: int) -> None:
        self._change(-1, -size)

    def close(self) -> None:
        """The producer has ended: nothing of it is on its way any more."""
        self._change(-self.entries, -self.bytes)

    def _change(self, entries: int, size: int) -> None:
        before = _beyond(self.bytes)
        self.entries += entries
        self.bytes += size
        self._shared.used += _beyond(self.bytes) - before


def _beyond(size: int) -> int:
    return max(0, size - TOPIC_BYTES_MIN)
