"""Watchdog of requests: each one must end, and none may stand still while no worker does anything.

A limit of time that is exceeded on a busy machine is :class:`Late`, and no finding by itself: the history runs again
alone, with longer limits.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Final, TypeVar

from histories.judging import Violation

PATIENCE: Final[ContextVar[float]] = ContextVar("patience", default=1.0)
"""Factor of all limits of time."""
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


class Late(Violation):
    """Something did not end within a limit of time, and workers were busy until then."""


def patient(seconds: float) -> float:
    """Return a limit of time, longer if the history runs with patience."""
    return seconds * PATIENCE.get()


class Watch:
    """Awaits requests, and judges how long they take. ``pids`` returns the ids of the workers' processes."""

    def __init__(self, pids: Callable[[], Collection[int]]) -> None:
        self._pids = pids

    async def ended(self, request: Awaitable[T], what: str) -> T:
        """Return the result of ``request``. Raise :class:`Violation` if it stands still, :class:`Late` if it takes too
        long."""
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(request)
        deadline = loop.time() + patient(REQUEST_SECONDS)
        still, looked = 0, loop.time()
        used: Mapping[int, float] = {}
        try:
            while not (await asyncio.wait({task}, timeout=LOOK_SECONDS))[0]:
                now = loop.time()
                before, used = used, cpu_seconds(self._pids())
                still = still + 1 if _stood_still(now - looked, before, used) else 0
                looked = now
                if still >= STILL_LOOKS:
                    seconds = STILL_LOOKS * LOOK_SECONDS
                    raise Violation(f"{what} stands still: no worker did anything for {seconds:.0f} s")
                if now > deadline:
                    raise Late(f"{what} did not end within {patient(REQUEST_SECONDS):.0f} s")
            return task.result()
        finally:
            task.cancel()

    async def is_busy(self) -> bool:
        """Return whether a worker works, or the machine is too busy to tell. This takes one look."""
        loop = asyncio.get_running_loop()
        began, before = loop.time(), cpu_seconds(self._pids())
        await asyncio.sleep(LOOK_SECONDS)
        return not _stood_still(loop.time() - began, before, cpu_seconds(self._pids()))


def cpu_seconds(pids: Collection[int]) -> dict[int, float]:
    """Return the processor time that each process used so far. A process that is gone is left out."""
    found = {}
    for pid in pids:
        with suppress(OSError):
            user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
            found[pid] = (int(user) + int(system)) / _TICKS
    return found


def _stood_still(took: float, before: Mapping[int, float], now: Mapping[int, float]) -> bool:
    """Return whether no worker did anything during a look that took so many seconds."""
    is_on_time = took < LOOK_SECONDS + LATE_SECONDS
    return is_on_time and _are_idle(before, now) and not _waits_for_disks()


def _are_idle(before: Mapping[int, float], now: Mapping[int, float]) -> bool:
    return bool(now) and all(now[pid] - before.get(pid, -1.0) < IDLE_SECONDS for pid in now)


def _waits_for_disks() -> bool:
    """Return whether a process of this machine waits for a disk, which a worker may do, too."""
    with suppress(OSError):
        for line in Path("/proc/stat").read_text().splitlines():
            if line.startswith("procs_blocked "):
                return int(line.split()[1]) > 0
    return False
