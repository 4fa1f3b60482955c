"""Watchdog of requests: each one must end, and none may stand still while no worker does anything."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection
from pathlib import Path
from typing import Final, TypeVar

from histories.model import Violation

REQUEST_SECONDS: Final = 20.0
"""No request of a client or an operator may take longer."""
LOOK_SECONDS: Final = 0.5
STILL_LOOKS: Final = 8
"""A request stands still if nothing moves during so many looks in a row. That is shorter than most periodic work of a
worker, which may wake what slept by mistake."""
IDLE_SHARE: Final = 0.2
"""Share of a core that all workers together use while they only look at their clocks."""
LATE_SECONDS: Final = 0.05
"""A look that comes later says that the machine is busy. Then nothing is concluded."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")

T = TypeVar("T")


class Watch:
    """Awaits requests, and judges how long they take. ``pids`` returns the ids of the workers' processes."""

    def __init__(self, pids: Callable[[], Collection[int]]) -> None:
        self._pids = pids

    async def ended(self, request: Awaitable[T], what: str) -> T:
        """Return the result of ``request``. Raise :class:`Violation` if it takes too long, or stands still."""
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(request)
        deadline = loop.time() + REQUEST_SECONDS
        still, used, looked = 0, 0.0, loop.time()
        try:
            while not (await asyncio.wait({task}, timeout=LOOK_SECONDS))[0]:
                now = loop.time()
                on_time = now - looked < LOOK_SECONDS + LATE_SECONDS
                before, used, looked = used, cpu_seconds(self._pids()), now
                idle = on_time and before > 0 and used - before < IDLE_SHARE * LOOK_SECONDS
                still = still + 1 if idle else 0
                if still >= STILL_LOOKS:
                    seconds = STILL_LOOKS * LOOK_SECONDS
                    raise Violation(f"{what} stands still: no worker did anything for {seconds:.0f} s")
                if now > deadline:
                    raise Violation(f"{what} did not end within {REQUEST_SECONDS:.0f} s")
            return task.result()
        finally:
            task.cancel()


def cpu_seconds(pids: Collection[int]) -> float:
    """Return the processor time that processes used so far. A process that is gone counts as 0."""
    total = 0
    for pid in pids:
        try:
            stat = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        user, system = stat.rpartition(")")[2].split()[11:13]
        total += int(user) + int(system)
    return total / _TICKS
