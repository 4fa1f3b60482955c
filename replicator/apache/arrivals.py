"""What comes of a topic by one consumer, and how much of it may be under way.

Invariant (DESIGN §3): 11, what is sent by a broker and not handled here is bounded by permits.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Final

from replicator.client.errors import ConnectError, PulsarException
from replicator.client.wire.channel import ConsumerChannel
from replicator.engine.types import Delivery

READ_BYTES_MAX: Final = 16 * 1024 * 1024
"""About as much of a topic is under way from the broker."""
PERMITS_MAX: Final = 2_000
PERMITS_FIRST: Final = 50
"""Until the size of its messages is known."""
QUEUE_ENTRIES_MAX: Final = 100_000
"""More than a broker sends for :data:`PERMITS_MAX`; one that does all the same is left."""


class Permits:
    """Grants a channel that has begun as many messages as fit into :data:`READ_BYTES_MAX`, by the size of those that
    came. It begins with :data:`PERMITS_FIRST`, and grants twice as many each time."""

    def __init__(self, channel: ConsumerChannel) -> None:
        self._channel = channel
        self._left = PERMITS_FIRST
        self._wanted = PERMITS_FIRST
        self._bytes_per_message = 0.0
        channel.flow(PERMITS_FIRST)

    def used(self, arrived: Sequence[Delivery]) -> None:
        """These came, and are handled."""
        if not arrived:
            return
        used = sum(delivery.batch_size for delivery in arrived)
        size = sum(len(delivery.entry) for delivery in arrived) / max(used, 1)
        self._bytes_per_message = max(size, 0.9 * self._bytes_per_message + 0.1 * size)
        self._left -= used

    def grant(self) -> None:
        """More may come."""
        if self._left > self._wanted // 2:
            return
        fitting = max(1, min(PERMITS_MAX, int(READ_BYTES_MAX / max(self._bytes_per_message, 1))))
        self._wanted = min(2 * self._wanted, fitting)
        self._channel.flow(self._wanted - self._left)
        self._left = self._wanted

    def hold(self) -> None:
        """Nothing more need come for now; what was granted still may."""
        self._wanted = PERMITS_FIRST


class Arrivals:
    """What came of one channel and was not taken yet."""

    def __init__(self) -> None:
        self._arrived: deque[Delivery] = deque()
        self._news = asyncio.Event()
        self._woken = False
        self._lost: PulsarException | None = None

    async def take(self) -> list[Delivery]:
        """All that came, nothing only after :meth:`wake`; raises why the channel is over."""
        while not (self._arrived or self._woken):
            if self._lost is not None:
                raise self._lost
            self._news.clear()
            await self._news.wait()
        taken = list(self._arrived)
        self._arrived.clear()
        self._woken = False
        return taken

    def wake(self) -> None:
        """Whoever takes what came has something else to look at."""
        self._woken = True
        self._news.set()

    def on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        self._arrived += deliveries
        if len(self._arrived) > QUEUE_ENTRIES_MAX:
            self._arrived.clear()
            self.on_lost(ConnectError("the broker sent far more than it was asked for"))
        self._news.set()

    def on_redelivery_started(self) -> None:
        """Nobody asks for one."""

    def on_restarted(self) -> None:
        """Only the bridge could seek, and does not."""

    def on_active_change(self, active: bool) -> None:
        """An Exclusive consumer is the only one."""

    def on_reached_end(self) -> None:
        """The topic takes nothing more; what is in it stays."""

    def on_ack_confirmed(self, request_id: int) -> None:
        """The broker's cursor has moved, if only in its memory."""

    def on_ack_refused(self, request_id: int, error: PulsarException) -> None:
        self.on_lost(error)

    def on_lost(self, error: PulsarException) -> None:
        self._lost = self._lost or error
        self._news.set()
