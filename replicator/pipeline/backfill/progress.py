"""Progress of a backfill: amounts, speed, and the limit of the speed. Pure; the clock is passed in.

Invariant (DESIGN §3): 11. Over any time t no more is let through than ``rate * t``, one burst, and one segment.

The amount done is the size of the link's topics minus what is left of them, both measured at the source. So a backfill
that was killed and continues shows the amount that is there already, and one of a growing topic does not run past its
end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

RATE_SECONDS: Final = 15.0
"""Time over which the shown rate is averaged: long enough to hide single segments, short enough to follow."""
BURST_SECONDS: Final = 0.5
"""Time of its rate that a lane may catch up on after it waited for a worker."""


@dataclass(frozen=True, slots=True)
class Amount:
    """Amount to be carried, as the source's worker measured it."""

    bytes_total: int
    """Bytes of all blocks of the topics, including those that the destination has."""
    bytes_left: int
    entries_left: int = 0
    topics: int = 0
    topics_left: int = 0

    @property
    def bytes_done(self) -> int:
        return max(0, self.bytes_total - self.bytes_left)

    @property
    def percent(self) -> int:
        """Percentage done, rounded down: 100 only if nothing is left."""
        if self.bytes_left <= 0:
            return 100
        return min(99, 100 * self.bytes_done // max(self.bytes_total, 1))


class Progress:
    """Progress of one run, from amounts that are measured now and then."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self.amount: Amount | None = None

    def on_amount(self, amount: Amount, now_seconds: float) -> None:
        self.amount = amount
        self._samples.append((now_seconds, amount.bytes_done))
        while len(self._samples) > 2 and self._samples[1][0] <= now_seconds - RATE_SECONDS:
            self._samples.popleft()

    @property
    def rate_bytes(self) -> float | None:
        """Bytes per second of the last :data:`RATE_SECONDS`; None before there are two measurements."""
        if len(self._samples) < 2:
            return None
        (first_at, first), (last_at, last) = self._samples[0], self._samples[-1]
        return max(0.0, (last - first) / (last_at - first_at)) if last_at > first_at else None

    @property
    def seconds_left(self) -> float | None:
        """Seconds left at that rate; None if the rate is not known."""
        rate = self.rate_bytes
        if self.amount is None or not rate:
            return None
        return self.amount.bytes_left / rate

    def line(self) -> str:
        """Return the progress for people: ``43 %, 1.2 of 2.8 GB, 212 MB/s, 8 s left, 3 of 5 topics left``."""
        amount = self.amount
        if amount is None:
            return "measuring"
        return ", ".join(self._parts(amount))

    def _parts(self, amount: Amount) -> Iterator[str]:
        yield f"{amount.percent} %"
        yield f"{format_bytes(amount.bytes_done)} of {format_bytes(amount.bytes_total)}"
        if (rate := self.rate_bytes) is not None:
            yield f"{format_bytes(rate)}/s"
        if (seconds := self.seconds_left) is not None and amount.bytes_left:
            yield f"{format_seconds(seconds)} left"
        yield f"{amount.topics_left} of {amount.topics} topics left"


class Pace:
    """Throttle to ``rate_bytes`` per second: each segment moves the time at which the next one may start."""

    def __init__(self, rate_bytes: float, now_seconds: float) -> None:
        assert rate_bytes > 0
        self._rate_bytes = rate_bytes
        self._due_seconds = now_seconds

    def wait_seconds(self, now_seconds: float) -> float:
        """Return how long the next segment has to wait; 0 if it may go."""
        return max(0.0, self._due_seconds - now_seconds)

    def take(self, size_bytes: int, now_seconds: float) -> None:
        """Count a segment of that size, or a correction of an earlier segment's size, which may be negative."""
        self._due_seconds = max(self._due_seconds, now_seconds - BURST_SECONDS) + size_bytes / self._rate_bytes


def share_of(rate_bytes: int, lanes: int, slots: int) -> float:
    """Return what one lane may carry per second: at most ``slots`` of the ``lanes`` run at once."""
    return rate_bytes / max(1, min(lanes, slots))


def format_bytes(size_bytes: float) -> str:
    """Return a size with the unit (powers of 1,000) in which it has one to three digits before the point."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 99.95 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def format_seconds(seconds: float) -> str:
    """Return a duration as short text: ``8 s``, ``12 min``, ``3.5 h``."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"
