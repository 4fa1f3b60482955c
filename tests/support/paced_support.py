"""A clock that a test passes to what waits, so that waiting takes no time."""

from __future__ import annotations

import threading

from replicator.backup.reclaim_reading import Pace


class Clock:
    """A clock that goes on only while somebody waits."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds


class Waits(threading.Event):
    """Event whose waits end at once. They let the clock go on by the time that they would take."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._clock.seconds += timeout
        return self.is_set()


def paced(bytes_per_second: int) -> tuple[Pace, Clock]:
    """Return the pace of a reclaim with a limit, and its clock."""
    clock = Clock()
    pace = Pace(bytes_per_second, clock.now)
    pace._paused = Waits(clock)
    return pace, clock
