"""Latencies of one worker as histograms with fixed buckets: plain numbers, counted where something is done, exported by
``GET /metrics``.

What is observed is a group, a run, a block or a frame, never a message: an observation costs half a microsecond. Only
the event loop observes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

BOUNDS_SECONDS: Final = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0),
)
"""Up to which each bucket counts, from a commit on a fast disk to a link that was cut; one more counts the rest."""


class Histogram:
    """How often something took how long, since the worker started."""

    __slots__ = ("counts", "sum_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_SECONDS) + 1)
        """By bucket, without those below it."""
        self.sum_seconds = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """So many took that long. By clocks of two clusters it may be less than nothing, which counts as nothing."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += count
        self.sum_seconds += seconds * count


@dataclass(slots=True)
class Latencies:
    """Histograms of one worker. A latency between clusters has a histogram for each other cluster of the topology."""

    event_loop: Histogram = field(default_factory=Histogram)
    """Delay of the event loop: how much later than planned it turned, measured at each beat of the watchdog."""
    publish: Histogram = field(default_factory=Histogram)
    """Of each publish, from when it is handed to the writer until it is durable: that of the oldest of its commit."""
    acknowledge: Histogram = field(default_factory=Histogram)
    """Of each change of a subscription that somebody waits for, until it is durable: that of the oldest of a save."""
    dispatch: defaultdict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    """By origin: of each run of a dispatcher, the age of the oldest message that it hands out for the first time."""
    copy: defaultdict[tuple[str, str], Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    """By destination and link: of each frame, the age of its oldest block when the destination has confirmed it."""
    announce: Histogram = field(default_factory=Histogram)
    """Of each topic's update, from the first acknowledgement that it tells of until its marker is durable here."""
    sync: defaultdict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    """By the cluster that announces: of each round of updates, the age of its oldest marker when it is applied."""
