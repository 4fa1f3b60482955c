"""Which cursors of a topic at the brokers go with their reader. They are no subscriptions: nothing of them is for other
clusters.

A broker shows such a cursor among the others, and there it looks like any. Whether it lasts is in the statistics, a
second request. So that is asked for only where a name comes up that nobody knows, and again after :data:`KNOWN_SECONDS`
while there are such names: a subscription may be made by the name of a reader that has gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from typing import Final, Protocol

KNOWN_SECONDS: Final = 10.0
"""One request in this time for each topic with readers; a subscription that takes a reader's name waits so long."""


class Lasting(Protocol):
    """What is asked of the brokers."""

    async def durable_subscriptions(self, topic: str) -> list[str]:
        """The names of those that last."""


class PassingCursors:
    """Those of one topic."""

    def __init__(self, admin: Lasting, topic: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._topic = topic
        self._clock = clock
        self._passing: frozenset[str] = frozenset()
        self._asked_at = 0.0

    async def among(self, unknown: Set[str]) -> Set[str]:
        """Those of the names ``unknown`` that go with their reader. Raises :class:`AdminFailed`."""
        now = self._clock()
        if unknown and (unknown - self._passing or now - self._asked_at >= KNOWN_SECONDS):
            lasting = await self._admin.durable_subscriptions(self._topic)
            self._passing, self._asked_at = frozenset(unknown - set(lasting)), now
        return self._passing & unknown
