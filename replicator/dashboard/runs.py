"""Runs that the dashboard has started: it keeps the newest, and the tasks that carry them out.

A run begins, says what it does, and ends once. Newer runs take the place of older ones that have ended; one that goes
on is never forgotten. Tasks end with the worker.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from replicator.engine.errors import EngineError
from replicator.running.short_tasks import in_background


class RunNotFound(EngineError):
    """No run of that id: it is older than those that are kept, or the worker was restarted."""

    status = 404


class NotNow(EngineError):
    """A run that cannot begin at this moment, or for this asker; the message says why."""

    status = 409


@dataclass(frozen=True, slots=True)
class RunStart:
    """A run's id, who began it, and when."""

    run_id: str
    who: str
    at_ms: int
    clock: float
    """By the clock of :class:`Runs`, in seconds."""


@dataclass(slots=True, kw_only=True)
class Run:
    """One run, from its beginning on."""

    beginning: RunStart
    error: str = ""
    seconds: float | None = None
    """Duration of the run; None while it goes on."""

    @property
    def run_id(self) -> str:
        return self.beginning.run_id

    @property
    def who(self) -> str:
        return self.beginning.who

    @property
    def at_ms(self) -> int:
        return self.beginning.at_ms

    @property
    def going(self) -> bool:
        return self.seconds is None


RunT = TypeVar("RunT", bound=Run)


class Runs(Generic[RunT]):
    """Runs of one kind in one worker's dashboard."""

    def __init__(self, kept_max: int, close_seconds_max: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Make an empty collection. ``close_seconds_max`` is the time that tasks may take to end when the worker
        does.
        """
        self._kept_max = kept_max
        self._close_seconds_max = close_seconds_max
        self._clock = clock
        self._runs: OrderedDict[str, RunT] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    def newest(self) -> list[RunT]:
        return list(reversed(self._runs.values()))

    def unended(self) -> list[RunT]:
        """Return the runs that go on, the oldest first."""
        return [run for run in self._runs.values() if run.going]

    def find(self, run_id: str) -> RunT:
        """Return the run of that id. Raise :class:`RunNotFound`."""
        if run_id not in self._runs:
            raise RunNotFound(
                "this worker does not know this dry run, switch or drill any more: it was restarted, or newer "
                "ones took its place; begin another"
            )
        return self._runs[run_id]

    def _beginning(self, who: str) -> RunStart:
        """Return the beginning of a run that begins now."""
        return RunStart(uuid.uuid4().hex, who, time.time_ns() // 1_000_000, self._clock())

    def _seconds(self, run: RunT) -> float:
        """Return the seconds since the run began."""
        return self._clock() - run.beginning.clock

    def _keep(self, run: RunT) -> RunT:
        """Keep a run that begins, and forget the oldest ended runs if there are too many."""
        self._runs[run.run_id] = run
        ended = [each.run_id for each in self._runs.values() if not each.going]
        for run_id in ended[: max(0, len(self._runs) - self._kept_max)]:
            del self._runs[run_id]
        return run

    def _in_background(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Do some work of a run in the background; it is given up when the worker ends."""
        task = in_background(work, name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=self._close_seconds_max)
