"""How long a backlog takes to arrive somewhere: one rule for us and for the peer.

The clock runs from the last look at which the destination had nothing (or from the start, if there was none) to the
first at which it had everything. So what is needed to connect does not count, and the first piece's own time does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final

LOOK_EVERY_SECONDS: Final = 0.005
"""A look costs the destination a fraction of a millisecond; every 5 ms that is a few per cent of a core, of both."""
ARRIVAL_SECONDS_MAX: Final = 120.0


class NotArrived(Exception):
    """A backlog did not arrive in time; the text says how much did."""


async def seconds_to_arrive(count: Callable[[], Awaitable[int]], wanted: int) -> float:
    """Call ``count`` until it says ``wanted``; returns the seconds from nothing to everything.

    Raises :class:`NotArrived` after :data:`ARRIVAL_SECONDS_MAX`.
    """
    began = time.monotonic()
    empty_at = began
    while True:
        here = await count()
        now = time.monotonic()
        if here == 0:
            empty_at = now
        if here >= wanted:
            assert here == wanted, f"{here} messages arrived of {wanted}"
            return now - empty_at
        if now - began > ARRIVAL_SECONDS_MAX:
            raise NotArrived(f"{here} of {wanted} messages arrived within {ARRIVAL_SECONDS_MAX:.0f} s")
        await asyncio.sleep(LOOK_EVERY_SECONDS)
