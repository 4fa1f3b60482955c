"""Permits: how much a broker may send before the bridge has stored it, for one topic and for all of a worker. Pure.

Invariant (DESIGN §3): 11, what a broker sends and is not stored here is bounded.

Brokers count messages, and memory is bytes: so a topic is granted as many messages as fit into its bytes, by the size
of those that came. It begins with :data:`PERMITS_FIRST`, and is granted more while much comes at once: a topic that
seldom gets a message keeps nothing from the others. As much again may be on its way to the disk.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from replicator.apache.shared_budget import SharedBudget, TopicShare
from replicator.engine.types import Delivery

SHARED_BYTES: Final = 256 * 1024 * 1024
TOPIC_BYTES_MAX: Final = 64 * 1024 * 1024
TOPIC_BYTES_MIN: Final = 1024 * 1024
PERMITS_MAX: Final = 100_000
PERMITS_FIRST: Final = 50
"""Permits of a consumer until the size of its messages is known."""
PERMITS_PAUSED: Final = 4
"""Permits after a pause. They are few, because the next entries may be the bridge's own."""
GROWTH: Final = 4
"""Factor by which the permits grow if at least a quarter of them was used at once."""


def read_budget() -> SharedBudget:
    """Return the room for received messages that all topics of a worker share."""
    return SharedBudget(SHARED_BYTES, topic_max=TOPIC_BYTES_MAX, topic_min=TOPIC_BYTES_MIN)


class FlowControl:
    """Permits of one consumer that has begun. ``flow`` grants it more messages."""

    def __init__(self, flow: Callable[[int], None], room: SharedBudget) -> None:
        self._flow = flow
        self._share = TopicShare(room)
        self._left = PERMITS_FIRST
        self._wanted = PERMITS_FIRST
        self._at_once = 0
        """Most messages that came at once since the last grant."""
        self._bytes_per_message = 1.0
        flow(PERMITS_FIRST)

    def used(self, arrived: Sequence[Delivery]) -> None:
        """Record that the messages in ``arrived`` came at once, and are handled."""
        if not arrived:
            return
        used = sum(delivery.batch_size for delivery in arrived)
        size = sum(len(delivery.entry) for delivery in arrived) / max(used, 1)
        self._bytes_per_message = max(size, 0.9 * self._bytes_per_message + 0.1 * size, 1.0)
        self._at_once = max(self._at_once, used)
        self._left -= used

    def grant(self) -> None:
        """Grant more messages, if at most half of the permits are left."""
        if self._left > self._wanted // 2:
            return
        if self._at_once * GROWTH >= self._wanted:
            self._wanted *= GROWTH
        elif self._at_once * GROWTH**3 < self._wanted and self._wanted > PERMITS_FIRST:
            self._wanted = max(PERMITS_FIRST, self._wanted // GROWTH)
        self._at_once = 0
        fitting = int(self._share.fitting() / self._bytes_per_message)
        self._wanted = max(1, min(self._wanted, fitting, PERMITS_MAX))
        if self._wanted > self._left:
            self._flow(self._wanted - self._left)
            self._left = self._wanted
        self._share.have(int(max(0, self._left) * self._bytes_per_message))

    def pause(self) -> None:
        """Grant only few messages next time: they may be the bridge's own. Granted messages still come."""
        self._wanted = PERMITS_PAUSED
        self._at_once = 0

    def close(self) -> None:
        """Free the room of a consumer that has ended."""
        self._share.have(0)
