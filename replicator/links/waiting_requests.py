"""Requests of one link's carriers that wait until there is something to carry. Their number and time are limited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Final

from replicator.links.copier import LANES_MAX
from replicator.links.errors import TooManyPolls
from replicator.running.timeouts import timeout

WAIT_SECONDS_MAX: Final = 30.0
POLLS_MAX: Final = 4 * LANES_MAX
"""Most requests of one link that wait at once."""
POLL_AGAIN_SECONDS: Final = 5.0
"""Time after which a waiting request looks again, so that its carrier counts as alive and does not lose the link."""


class WaitingRequests:
    """Waiting requests of the link ``key``.

    ``pause_seconds`` returns the time after which they look again in any case; 0 if there is none."""

    def __init__(self, key: str, pause_seconds: Callable[[], float]) -> None:
        self._key = key
        self._pause_seconds = pause_seconds
        self._changed = asyncio.Event()
        self._waiting = 0
        self._stopped = False

    def wake(self) -> None:
        """Make all waiting requests look again, because something changed."""
        self._changed.set()
        self._changed = asyncio.Event()

    def start(self) -> None:
        self._stopped = False

    def stop(self) -> None:
        """End all waiting requests, and let no new request wait."""
        self._stopped = True
        self.wake()

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """Count a request while it waits. Raises :class:`TooManyPolls` if too many wait already."""
        if self._waiting >= POLLS_MAX:
            raise TooManyPolls(
                f"link {self._key}: too many requests, {self._waiting}, wait for blocks to copy; try again later"
            )
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    async def wait(self, deadline: float) -> bool:
        """Wait for a change, for some seconds, or until the pause is over. Return whether to look again."""
        left = deadline - time.monotonic()
        if left <= 0 or self._stopped:
            return False
        seconds = min(left, POLL_AGAIN_SECONDS, self._pause_seconds() or left)
        changed = self._changed
        with suppress(TimeoutError):
            async with timeout(seconds):
                await changed.wait()
        return not self._stopped


def deadline_of(wait_ms: int) -> float:
    """Return when to answer a request that waits ``wait_ms``, on the clock of :func:`time.monotonic`."""
    return time.monotonic() + min(max(wait_ms / 1000, 0.0), WAIT_SECONDS_MAX)
