"""Fences: records of aborted jobs and attempts, whose later requests are refused. Sans-IO.

Invariant (DESIGN §3): 11. An abort is final, though a task of the job may end, or a request arrive, long after it. So
the abort leaves a *fence*: the epoch, and the name of a job or of a single attempt. The epoch itself stays open:
a query that starts again stages the same epoch under a new job.

Fences are rows of the store, so that they outlive a restart. They are deleted after :data:`FENCED_MS_MAX`, and beyond
:data:`FENCES_MAX` the oldest first. Attempts of even later requests are swept like all that nobody commits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

from replicator.engine.errors import AttemptAborted
from replicator.engine.staging.values import AttemptKey, EpochKey

FENCES_MAX: Final = 10_000
"""Limit of fences, which take about 3 MB of memory. A job leaves one, and one more for each of its failed tasks."""
FENCED_MS_MAX: Final = 7 * 24 * 60 * 60 * 1000
"""Time for which a fence is kept: longer than a machine that hangs over a weekend delays a task."""


class Fence(NamedTuple):
    """Record of an abort. ``name`` is that of the job or the attempt."""

    epoch: EpochKey
    name: str


class Fences:
    """Aborted jobs and attempts with the times of their aborts, oldest first."""

    def __init__(self, aborted_ms: Mapping[Fence, int], fences_max: int = FENCES_MAX) -> None:
        self._aborted_ms = dict(sorted(aborted_ms.items(), key=lambda item: item[1]))
        self._fences_max = fences_max

    def __len__(self) -> int:
        return len(self._aborted_ms)

    def add(self, fences: Iterable[Fence], now_ms: int) -> tuple[list[Fence], list[Fence]]:
        """Add fences. Return the new ones, and those that were dropped because there are too many."""
        new = [fence for fence in dict.fromkeys(fences) if fence not in self._aborted_ms]
        self._aborted_ms.update(dict.fromkeys(new, now_ms))
        excess = list(self._aborted_ms)[: max(len(self._aborted_ms) - self._fences_max, 0)]
        for fence in excess:
            del self._aborted_ms[fence]
        gone = set(excess)
        return [fence for fence in new if fence not in gone], excess

    def covers(self, key: AttemptKey) -> bool:
        return Fence(key.epoch, key.attempt) in self._aborted_ms or Fence(key.epoch, key.job) in self._aborted_ms

    def check(self, key: AttemptKey) -> None:
        """Raise :class:`AttemptAborted` if the attempt or its job was aborted."""
        if self.covers(key):
            raise AttemptAborted(
                f"writer {key.epoch.writer!r}, epoch {key.epoch.epoch}: the job of attempt {key.attempt!r} was "
                "aborted, and nothing of it is taken any more: start it again"
            )

    def sweep(self, now_ms: int) -> list[Fence]:
        """Remove and return expired fences."""
        expired = [fence for fence, aborted_ms in self._aborted_ms.items() if now_ms - aborted_ms > FENCED_MS_MAX]
        for fence in expired:
            del self._aborted_ms[fence]
        return expired
