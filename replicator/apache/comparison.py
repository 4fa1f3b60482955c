"""Comparison of one topic at the brokers with what the worker read of it and published to it. Pure.

Invariant (DESIGN §3): 2, nothing of a topic is left out in silence. Reading and publishing notice their own faults, and
the cursor by which the worker reads notices what brokers pass over or lose. This comparison trusts none of them. It
names what stands still for :data:`STANDS_STILL_SECONDS`:

1. The brokers have entries behind what was read, and reading does not move.
2. The worker has messages for the brokers, and publishing does not move.

It needs no request of its own, because it gets the internal statistics that the comparison of subscriptions asks for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from replicator.apache.shown import TopicInternals
from replicator.apache.skipped_messages import Gap, runs_in
from snapshots.position import BEFORE_ALL, Position

STANDS_STILL_SECONDS: Final = 15.0
"""Time after which what does not move is a difference. A worker finds a topic that has moved to another broker within
this time. A minute is promised."""
QUIET_SECONDS: Final = 5.0
"""Shortest time between comparisons of a topic whose messages are all acknowledged, on both sides. A new message, or a
change in another cluster, ends it at once. A seek back or a new subscription at the brokers is seen within it."""
SPREAD: Final = 0.5
"""Part by which a longer time is lengthened at random, so that many topics are not compared at the same moment."""


def quiet_seconds(topics: int, requests_per_second: int, chance: float = 0.0) -> float:
    """Return the time between two comparisons of a quiet topic, so that ``topics`` need no more requests.

    It is :data:`QUIET_SECONDS` as long as that suffices. ``chance``, from 0 to 1, spreads longer times.
    """
    seconds = topics / requests_per_second
    return QUIET_SECONDS if seconds <= QUIET_SECONDS else seconds * (1 + SPREAD * chance)


@dataclass(frozen=True, slots=True)
class WorkerProgress:
    """State of one topic in the worker. It must be older than the statistics that it is compared with."""

    read: Position
    """The last position of the brokers up to which all was read."""
    to_publish: Mapping[str, tuple[Position, Position]]
    """By origin whose messages wait: the last position at the brokers, and the last position here."""


class _Moving:
    """A figure, and the time since which it has not changed."""

    __slots__ = ("_figure", "_since")

    def __init__(self) -> None:
        self._figure: Position | None = None
        self._since = 0.0

    def unchanged_seconds(self, figure: Position | None, now: float) -> float:
        """Return for how many seconds ``figure`` has been the same; 0 if not for :data:`STANDS_STILL_SECONDS`."""
        if figure != self._figure:
            self._figure, self._since = figure, now
        seconds = now - self._since
        return seconds if seconds >= STANDS_STILL_SECONDS else 0.0


class Comparison:
    """Differences between one topic at the brokers and in the worker. Times are those of one clock, in seconds."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._end = BEFORE_ALL
        self._unread = 0
        self._reading = _Moving()
        self._publishing: defaultdict[str, _Moving] = defaultdict(_Moving)
        self._differences: list[str] = []

    def look(self, internals: TopicInternals, own: WorkerProgress, passed: Position, now: float) -> None:
        """Compare. ``passed`` is the mark-delete position of the bridge's cursor in ``internals``."""
        self._at, self._end = now, internals.last
        there = {ledger: last for ledger, last in internals.last_entries.items() if ledger in internals.ledgers}
        reached = max(own.read, passed)
        runs = runs_in(Gap(reached, internals.last), there)
        self._unread = sum(last.entry - first.entry + 1 for first, last in runs)
        self._differences = []
        seconds = self._reading.unchanged_seconds(reached if self._unread else None, now)
        if seconds and self._unread:
            self._differences.append(
                f"{self._unread} entries at the brokers, up to {internals.last}, are not read: reading has stood at "
                f"{reached} for {seconds:.0f} s"
            )
        for origin in self._publishing.keys() - own.to_publish.keys():
            del self._publishing[origin]
        for origin, (through, here) in own.to_publish.items():
            if seconds := self._publishing[origin].unchanged_seconds(through, now):
                self._differences.append(
                    f"messages of {origin} up to {here} are not at the brokers: publishing has stood at {through} for "
                    f"{seconds:.0f} s"
                )

    def status(self, now: float) -> dict[str, Any]:
        """Return what the last comparison with the brokers found, and its age. Before the first one the age is None."""
        return {
            "age_seconds": None if self._at is None else round(now - self._at, 1),
            "brokers_end": None if self._at is None else str(self._end),
            "unread": self._unread,
            "differences": list(self._differences),
        }
