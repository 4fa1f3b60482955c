"""Rules for tasks that ended unasked: when they start again, and when they count as failing. Time and chance are given.

1. Each end that nobody asked for is told with its time. The answer is the pause before the next start.
2. Pauses double from :data:`PAUSE_SECONDS_MIN` to :data:`PAUSE_SECONDS_MAX`. Chance takes up to half of each away, so
   that tasks which ended together do not come back together.
3. A task that ran for :data:`WELL_SECONDS` begins with the shortest pause again.
4. A task is failing while :data:`FAILING_ENDS` of its ends lie within the last :data:`WINDOW_SECONDS`. So it is healthy
   again by itself when it has ended less often for a while.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, Protocol

PAUSE_SECONDS_MIN: Final = 0.1
PAUSE_SECONDS_MAX: Final = 30.0
WELL_SECONDS: Final = 60.0
"""Twice the longest pause: a task that runs so long does not end at its start."""
FAILING_ENDS: Final = 5
WINDOW_SECONDS: Final = 600.0


class RandomSource(Protocol):
    """Interface of a source of random numbers: the needed part of :class:`random.Random`."""

    def random(self) -> float: ...


@dataclass(frozen=True, slots=True)
class Restart:
    """Decision after a task ended unasked: start it again after ``pause_seconds``.

    ``newly_failing`` says that with this end the task began to count as failing.
    """

    pause_seconds: float
    newly_failing: bool


class RestartHistory:
    """Record of one task's ends that nobody asked for, and decision when it starts again."""

    __slots__ = ("_chance", "_ends", "_pause_seconds", "ends")

    def __init__(self, chance: RandomSource) -> None:
        self._chance = chance
        self._ends: deque[float] = deque(maxlen=FAILING_ENDS)
        self._pause_seconds = 0.0
        self.ends = 0
        """Number of ends so far."""

    def ended(self, now_seconds: float, *, ran_seconds: float) -> Restart:
        """Record that the task ended unasked after a run of ``ran_seconds``, and return what to do."""
        was_failing = self.failing(now_seconds)
        self._ends.append(now_seconds)
        self.ends += 1
        if ran_seconds >= WELL_SECONDS or not self._pause_seconds:
            self._pause_seconds = PAUSE_SECONDS_MIN
        else:
            self._pause_seconds = min(2 * self._pause_seconds, PAUSE_SECONDS_MAX)
        pause_seconds = self._pause_seconds * (1 - self._chance.random() / 2)
        return Restart(pause_seconds, newly_failing=not was_failing and self.failing(now_seconds))

    def failing(self, now_seconds: float) -> bool:
        return self.healthy_at > now_seconds

    @property
    def healthy_at(self) -> float:
        """Return when the task stops to count as failing, if it does not end again; a past time if it is healthy."""
        return self._ends[0] + WINDOW_SECONDS if len(self._ends) == FAILING_ENDS else float("-inf")
