"""Time in which a backlog arrives at its destination, measured by one rule for us and for the peer.

The clock runs from the last look at which the destination had nothing (or from the start, if there was none) to the
first at which it had everything. So what is needed to connect does not count, and the first piece's own time does.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

from replicator.running.together import until_all_end

LOOK_EVERY_SECONDS: Final = 0.005
"""A look costs the destination a fraction of a millisecond; every 5 ms that is a few per cent of a core, of both."""
LOOK_SECONDS_MAX: Final = 0.25
"""Longest pause between looks while much is still to come: each costs other systems a millisecond or two."""
ARRIVAL_SECONDS_MAX: Final = 120.0


class NotArrived(Exception):
    """A backlog did not arrive in time, or its copy cannot be timed; the text says why."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """Time span in which a whole backlog arrived at its destination, on the clock of ``time.monotonic``."""

    empty_at: float
    """Time of the last look at which nothing was there; without such a look, the beginning."""
    full_at: float
    """Time of the first look at which everything was there."""
    began_empty: bool
    """Whether a look saw an empty destination: else the copy may have begun before the looks did."""

    @property
    def seconds(self) -> float:
        return self.full_at - self.empty_at


def pause_seconds(here: int, wanted: int, since: float, look_every_seconds: float) -> float:
    """Return the seconds until the next look at a destination: a quarter of the time that the rest needs.

    ``here`` of ``wanted`` messages came in ``since`` seconds. The pause is at least ``look_every_seconds``."""
    left_seconds = since * (wanted - here) / here if here else 0.0
    return max(look_every_seconds, min(left_seconds / 4, LOOK_SECONDS_MAX))


async def arrival(count: Callable[[], Awaitable[int]], wanted: int, look_every_seconds: float) -> Arrival:
    """Call ``count`` until it returns ``wanted``, and return when the backlog began and ended to arrive.

    ``count`` returns how many messages have arrived. It is called every ``look_every_seconds`` at the beginning and
    towards the end.

    Raises :class:`NotArrived` after :data:`ARRIVAL_SECONDS_MAX`.
    """
    began = time.monotonic()
    empty_at = began
    began_empty = False
    while True:
        here = await count()
        now = time.monotonic()
        if here == 0:
            empty_at, began_empty = now, True
        if here >= wanted:
            assert here == wanted, f"{here} messages arrived of {wanted}"
            return Arrival(empty_at, now, began_empty)
        if now - began > ARRIVAL_SECONDS_MAX:
            raise NotArrived(f"{here} of {wanted} messages arrived within {ARRIVAL_SECONDS_MAX:.0f} s")
        await asyncio.sleep(pause_seconds(here, wanted, now - empty_at, look_every_seconds))


async def arrival_during(
    begin: Coroutine[Any, Any, Any], count: Callable[[], Awaitable[int]], wanted: int, look_every_seconds: float
) -> Arrival:
    """Run ``begin``, which lets the backlog go, and return the times of its arrival as :func:`arrival` does.

    The first look comes before ``begin``."""
    found: list[Arrival] = []

    async def watch() -> None:
        found.append(await arrival(count, wanted, look_every_seconds))

    await until_all_end(watch(), begin)
    return found[0]


async def seconds_to_arrive(count: Callable[[], Awaitable[int]], wanted: int) -> float:
    """Return the seconds from nothing to everything; see :func:`arrival` for when it looks."""
    return (await arrival(count, wanted, LOOK_EVERY_SECONDS)).seconds
