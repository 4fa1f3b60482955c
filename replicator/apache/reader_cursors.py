"""Cursors of readers at the brokers, which end with their reader. They are no subscriptions, so they are not copied.

A broker shows such a cursor among the others, and it looks like any. Only the statistics, a second request, say whether
it is durable. So the bridge asks for them only if it sees an unknown name, and again after :data:`KNOWN_SECONDS` while
there are such names: a subscription may be created with the name of a reader that has gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Set
from typing import Final, Protocol

KNOWN_SECONDS: Final = 10.0
"""One request in this time for each topic with readers; a subscription that takes a reader's name waits so long."""


class DurableLookup(Protocol):
    """Interface of the brokers, as :class:`ReaderCursors` uses it."""

    async def durable_subscriptions(self, topic: str) -> list[str]:
        """Return the names of the durable subscriptions of ``topic``."""


class ReaderCursors:
    """Readers' cursors of one topic at the brokers."""

    def __init__(self, admin: DurableLookup, topic: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._admin = admin
        self._topic = topic
        self._clock = clock
        self._passing: frozenset[str] = frozenset()
        self._asked_at = 0.0

    async def among(self, unknown: Set[str]) -> Set[str]:
        """Return those names in ``unknown`` whose cursors end with their reader. Raises :class:`AdminFailed`."""
        now = self._clock()
        if unknown and (unknown - self._passing or now - self._asked_at >= KNOWN_SECONDS):
            lasting = await self._admin.durable_subscriptions(self._topic)
            self._passing, self._asked_at = frozenset(unknown - set(lasting)), now
        return self._passing & unknown
