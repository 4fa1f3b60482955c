"""Limit of log lines that somebody outside the worker causes: a flood of them must not fill the disk.

1. One source may cause :data:`LINES_MAX` lines of one event within :data:`WINDOW_SECONDS`. The window begins with its
   first line.
2. Lines beyond that are counted. When the window ends, one line says how many were left out.
3. :data:`SOURCES_MAX` sources are remembered. While all of them are within their windows, further sources share one
   window, so that somebody with many addresses writes no more than that.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog

LINES_MAX: Final = 10
"""Lines of one event that one source may cause in a window: enough to see a problem and to find its cause."""
WINDOW_SECONDS: Final = 60.0
SOURCES_MAX: Final = 1_000
"""Sources that are remembered at once. Together they write at most ten thousand lines in a minute, some megabytes."""
OTHERS: Final = "others"
"""Name under which all sources beyond :data:`SOURCES_MAX` are counted together."""

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Window:
    ends_at: float
    lines: int = 0
    left_out: int = 0


@dataclass(frozen=True, slots=True)
class SuppressedLines:
    """Number of lines of one event and one source that were not written."""

    event: str
    source: str
    lines: int


class LineLimits:
    """Decision which lines are written. It has no clock: callers pass the time."""

    def __init__(self) -> None:
        self._windows: dict[tuple[str, str], _Window] = {}
        """Open windows. All last equally long, so their order is that of their ends."""

    def take(self, event: str, source: str, now: float) -> bool:
        """Return whether ``source`` may write one more line of ``event``. If it may not, count the line."""
        key = (event, source)
        if key not in self._windows and len(self._windows) >= SOURCES_MAX:
            key = (event, OTHERS)
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(now + WINDOW_SECONDS)
        if window.lines >= LINES_MAX:
            window.left_out += 1
            return False
        window.lines += 1
        return True

    def end(self, now: float) -> list[SuppressedLines]:
        """Close the windows that are over. Return, for each with lines left out, how many these were."""
        over = []
        for key, window in self._windows.items():
            if window.ends_at > now:
                break
            over.append(key)
        closed = [(key, self._windows.pop(key)) for key in over]
        return [
            SuppressedLines(event, source, window.left_out) for (event, source), window in closed if window.left_out
        ]

    @property
    def next_end(self) -> float | None:
        """Time at which the next window ends; None if no window is open."""
        return next((window.ends_at for window in self._windows.values()), None)


class LimitedLog:
    """Log of one process for lines that others cause. Only event loops use it."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, tell: Callable[[SuppressedLines], None] | None = None
    ) -> None:
        """Make the limiter. ``tell`` writes the line about what was left out; by default it goes to the log of the
        worker.
        """
        self._clock = clock
        self._tell_of = tell or _tell
        self._limits = LineLimits()
        self._loop: asyncio.AbstractEventLoop | None = None
        """Event loop that ends the windows; None while no line was left out since the last end."""

    def say(self, write: Callable[..., Any], event: str, source: str, /, **fields: Any) -> None:
        """Write a line by ``write``, such as ``log.info``, unless ``source`` has written too many of ``event``."""
        if self.may_log(event, source):
            write(event, **fields)

    def may_log(self, event: str, source: str) -> bool:
        """Return whether ``source`` may write one more line of ``event``; if not, the line counts as left out."""
        self._tell()
        written = self._limits.take(event, source, self._clock())
        if not written:
            self._schedule_report()
        return written

    def _tell(self) -> None:
        for each in self._limits.end(self._clock()):
            self._tell_of(each)

    def _schedule_report(self) -> None:
        """Have the lines left out be logged when their windows end, even if no further line comes."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            return  # the next line says it
        if self._loop is loop:
            return
        self._loop = loop
        self._at_next_end(loop)

    def _at_next_end(self, loop: asyncio.AbstractEventLoop) -> None:
        ends_at = self._limits.next_end
        if ends_at is None:
            self._loop = None
        else:
            loop.call_later(max(0.0, ends_at - self._clock()), self._end, loop)

    def _end(self, loop: asyncio.AbstractEventLoop) -> None:
        self._tell()
        if self._loop is loop:
            self._at_next_end(loop)


def _tell(left_out: SuppressedLines) -> None:
    log.warning("log lines left out", of=left_out.event, source=left_out.source, lines=left_out.lines)


LIMITED: Final = LimitedLog()
"""The limited log of this process, as standard error is one for the process."""
