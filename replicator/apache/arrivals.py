"""Queue of the entries that one consumer has received and the bridge has not taken yet.

Invariant (DESIGN §3): 11, what is sent by a broker and not taken here is bounded: by permits
(:mod:`replicator.apache.flow_control`), and where a broker does not keep to them, by leaving it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from replicator.client.errors import ConnectError, PulsarException
from replicator.engine.types import Delivery
from snapshots.position import Position

ENTRIES_MAX: Final = 200_000
BYTES_MAX: Final = 256 * 1024 * 1024
"""Most bytes that wait. A broker exceeds it only if it sends too much, or if messages are far larger than before.
Then the bridge closes the consumer, and reads again what was not taken."""
SILENCE_SECONDS: Final = 5.0
"""Time for which brokers may have entries and send none of them, before the bridge subscribes anew."""
SILENCE_SECONDS_MAX: Final = 600.0
"""Longest time between two subscriptions at the same entry: brokers may keep an entry from every consumer."""


class Arrivals:
    """Entries that came over one channel and were not taken yet."""

    def __init__(self) -> None:
        self._arrived: deque[Delivery] = deque()
        self._bytes = 0
        self._news = asyncio.Event()
        self._woken = False
        self._lost: Exception | None = None

    async def take(self) -> list[Delivery]:
        """Wait for entries, and return all that came; nothing only after :meth:`wake`.

        Raises the error that ended the channel, after all entries were taken."""
        while not (self._arrived or self._woken):
            if self._lost is not None:
                raise self._lost
            self._news.clear()
            await self._news.wait()
        taken = list(self._arrived)
        self._arrived.clear()
        self._bytes = 0
        self._woken = False
        return taken

    def wake(self) -> None:
        """End a waiting :meth:`take`, because its caller has something else to look at."""
        self._woken = True
        self._news.set()

    def on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        if self._lost is not None:
            return
        self._arrived += deliveries
        self._bytes += sum(len(delivery.entry) for delivery in deliveries)
        if len(self._arrived) > ENTRIES_MAX or self._bytes > BYTES_MAX:
            self._arrived.clear()
            self._bytes = 0
            self.on_lost(ConnectError("the broker sent far more than it was asked for"))
        self._news.set()

    def on_redelivery_started(self) -> None:
        """Do nothing: nobody asks for a redelivery."""

    def on_restarted(self) -> None:
        """Do nothing: only the bridge could seek, and it does not."""

    def on_active_change(self, active: bool) -> None:
        """Do nothing: an Exclusive consumer is the only one."""

    def on_reached_end(self) -> None:
        """Do nothing: the topic takes no more messages, and keeps those that it has."""

    def on_ack_confirmed(self, request_id: int) -> None:
        """Do nothing: the broker's cursor has moved, perhaps only in its memory."""

    def on_ack_refused(self, request_id: int, error: PulsarException) -> None:
        self.on_lost(error)

    def on_lost(self, error: Exception) -> None:
        self._lost = self._lost or error
        self._news.set()


class StallDetector:
    """Tells when brokers have entries and send none of them. Sans-IO.

    A broker that loads a topic anew may forget a consumer that has just subscribed, and tell neither the consumer nor
    anybody who asks for messages in its name.
    """

    def __init__(self) -> None:
        self._at: tuple[Position, Position] | None = None
        """The last entry that was read, and the mark-delete position, while the brokers have more."""
        self._since = 0.0
        self._seconds = SILENCE_SECONDS

    def is_over(self, reached: Position, mark_delete: Position, last: Position, now: float) -> bool:
        """Return whether the brokers have been silent for so long that the bridge must subscribe anew.

        ``reached`` is the last entry that was read, ``mark_delete`` the position of the bridge's own cursor, and
        ``last`` the last entry of the topic. If either of the first two is at ``last``, nothing is due: brokers
        acknowledge by themselves entries that no consumer gets, such as their markers.
        """
        at = None if max(reached, mark_delete) >= last else (reached, mark_delete)
        if at != self._at:
            self._at, self._since, self._seconds = at, now, SILENCE_SECONDS
        if at is None or now - self._since < self._seconds:
            return False
        self._since, self._seconds = now, min(2 * self._seconds, SILENCE_SECONDS_MAX)
        return True
