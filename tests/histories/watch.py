"""Watchdog of requests: each one must end, and none may stand still while no worker does anything."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

from histories.model import Violation

REQUEST_SECONDS: Final = 20.0
"""No request of a client or an operator may take longer."""
LOOK_SECONDS: Final = 0.5
STILL_LOOKS: Final = 8
"""A request stands still if nothing moves during so many looks in a row. That is shorter than most periodic work of a
worker, which may wake what slept by mistake."""
IDLE_SECONDS: Final = 0.015
"""Processor time of a worker between two looks while it only looks at its clocks. A worker that works uses more even
where ten processes share its core."""
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
        still, looked = 0, loop.time()
        used: Mapping[int, float] = {}
        try:
            while not (await asyncio.wait({task}, timeout=LOOK_SECONDS))[0]:
                now = loop.time()
                on_time = now - looked < LOOK_SECONDS + LATE_SECONDS
                before, used, looked = used, cpu_seconds(self._pids()), now
                still = still + 1 if on_time and _are_idle(before, used) else 0
                if still >= STILL_LOOKS:
                    seconds = STILL_LOOKS * LOOK_SECONDS
                    raise Violation(f"{what} stands still: no worker did anything for {seconds:.0f} s")
                if now > deadline:
                    raise Violation(f"{what} did not end within {REQUEST_SECONDS:.0f} s")
            return task.result()
        finally:
            task.cancel()


def cpu_seconds(pids: Collection[int]) -> dict[int, float]:
    """Return the processor time that each process used so far. A process that is gone is left out."""
    found = {}
    for pid in pids:
        with suppress(OSError):
            user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            found[pid] = (int(user) + int(system)) / _TICKS
    return found


def _are_idle(before: Mapping[int, float], now: Mapping[int, float]) -> bool:
    return bool(now) and all(now[pid] - before.get(pid, -1.0) < IDLE_SECONDS for pid in now)
