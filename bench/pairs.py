"""Interface of a system in group ``peers``: two running clusters of it, one copying from the other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from bench.arrival import Arrival
from bench.cases import Case
from bench.lag import Lag


class Pair(Protocol):
    """Two clusters of a system, filled once. Each copy brings the whole backlog to a destination without it."""

    def pids(self) -> Iterable[int]:
        """Return the ids of all running processes of the system; their children may be left out."""

    async def fill(self, case: Case) -> None:
        """Publish the backlog of ``case`` at the source, as far as all copies share it."""

    async def copy(self, case: Case) -> Arrival:
        """Copy the whole backlog from the source to an empty destination; return the times of its arrival."""

    async def lag(self) -> Lag:
        """Return the lag of another topic, measured after the copies."""


@dataclass(frozen=True, slots=True)
class System:
    """System to measure, with its settings. ``promise`` says where a confirmed or copied message is stored safely."""

    name: str
    title: str
    promise: str
    missing: Callable[[], str | None]
    """Function that returns why the system cannot run here, and how to get it; None if it can."""
    started: Callable[[Path], AbstractAsyncContextManager[Pair]]
    """Context manager that runs the system with its data in a directory, and yields it as a :class:`Pair`."""
    ours: bool = False
    """Whether the system is the replicator; the others are its peers."""
