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
        """Return all its running processes; their children may be left out."""

    async def fill(self, case: Case) -> None:
        """Make what all copies need."""

    async def copy(self, case: Case) -> Arrival:
        """Copy the whole backlog once, from the moment at which all of it stands at the source."""

    async def lag(self) -> Lag:
        """Measure the lag of a topic of its own, after the copies."""


@dataclass(frozen=True, slots=True)
class System:
    """A system with its settings. ``promise`` says what is safe of a message that is confirmed, or that was copied."""

    name: str
    title: str
    promise: str
    missing: Callable[[], str | None]
    """Return why it cannot run here, and how to get it; None if it can."""
    started: Callable[[Path], AbstractAsyncContextManager[Pair]]
    """Start it with its data in a directory, and end it."""
    ours: bool = False
    """Whether it is the replicator, measured beside the others."""
