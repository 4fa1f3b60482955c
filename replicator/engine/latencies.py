"""Latencies of one worker as histograms with fixed buckets: plain numbers, counted where something is done, exported by
``GET /metrics``.

An observation is made for each group, run, block or frame, and never for each message, because it costs half a
microsecond. Only the event loop observes.
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
"""Upper bounds of the buckets, from a commit on a fast disk to a link that was cut. One more bucket counts the rest."""


class Histogram:
    """Histogram of how long something took, since the worker started."""

    __slots__ = ("counts", "sum_seconds")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_SECONDS) + 1)
        """Count of each bucket, without those of lower buckets."""
        self.sum_seconds = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Count ``count`` observations of ``seconds``. Negative times, from the clocks of two clusters, count as 0."""
        seconds = max(0.0, seconds)
        self.counts[bisect_left(BOUNDS_SECONDS, seconds)] += count
        self.sum_seconds += seconds * count


@dataclass(slots=True)
class Latencies:
    """Histograms of one worker. A latency between clusters has a histogram for each other cluster of the topology."""

    event_loop: Histogram = field(default_factory=Histogram)
    """Delay of the event loop: how much later than planned it turned, measured at each beat of the watchdog."""
    publish: Histogram = field(default_factory=Histogram)
    """Time from handing a publish to the writer until it is durable. Each commit observes its oldest publish."""
    acknowledge: Histogram = field(default_factory=Histogram)
    """Time from a change of a subscription that somebody waits for until it is durable. Each save observes its oldest
    change."""
    dispatch: defaultdict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    """By origin, the age of the oldest message that a dispatcher hands out for the first time. Each run observes
    once."""
    copy: defaultdict[tuple[str, str], Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    """By destination and link, the age of a frame's oldest block when the destination has confirmed the frame."""
    announce: Histogram = field(default_factory=Histogram)
    """Time from the first acknowledgement in a topic's update until the update's marker is durable here."""
    sync: defaultdict[str, Histogram] = field(default_factory=lambda: defaultdict(Histogram))
    """By announcing cluster, the age of the oldest marker in a round of updates when it is applied."""
