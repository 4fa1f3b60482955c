"""Figures of a drill topic by topic: the median, the 99th percentile, and the worst topic. Pure.

Each topic has a producer and subscriptions of its own, so each has a loss, repeats and a time to recover of its own. A
topic recovers from a failover when a message of it is confirmed at the other cluster and each of its subscriptions has
been handed one there. A topic without traffic after the failovers has no such time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from replicator.drills.deliveries import Deliveries
from replicator.drills.observations import Column
from replicator.drills.timeline import Timeline
from replicator.drills.vectors import nearest_rank

OVER_TOPICS: Final = {
    "lost": "messages lost",
    "repeated": "deliveries repeated",
    "recover_seconds": "seconds to recover",
}
"""Figures that each topic has, with their headings."""


@dataclass(frozen=True, slots=True)
class TopicStatistics:
    """Statistics of one figure over the topics that have it.

    ``worst_topic`` is the number of the topic with the worst value. The values are None if no topic has the figure.
    """

    p50: float | None
    p99: float | None
    worst: float | None
    worst_topic: int | None
    topics: int
    """Topics that have this figure."""


@dataclass(frozen=True, slots=True)
class TopicMeasures:
    """Statistics of each figure over all topics of a drill."""

    lost: TopicStatistics
    repeated: TopicStatistics
    recover_seconds: TopicStatistics
    """Longest recovery time of the failovers."""


def measure_topics(
    timeline: Timeline, deliveries: Sequence[Deliveries], recovered_s: Sequence[Column]
) -> TopicMeasures:
    """Return the statistics over all topics.

    ``recovered_s`` has the result of :func:`recover_seconds` for each failover.
    """
    lost, repeated = np.zeros(timeline.topics, np.int64), np.zeros(timeline.topics, np.int64)
    for seen in deliveries:
        lost += _count(timeline, np.flatnonzero(timeline.is_confirmed & ~seen.received))
        repeated += _count(timeline, seen.repeat_id)
    longest = np.full(timeline.topics, np.nan)
    for seconds in recovered_s:
        longest = np.fmax(longest, seconds)
    return TopicMeasures(_over(lost), _over(repeated), _over(longest))


def first_elsewhere(timeline: Timeline, failover: int, subscriptions: int) -> list[Column]:
    """Return the seconds from the failover's beginning to each topic's first traffic at another cluster.

    The first column is of confirmations. The others are of deliveries, one column for each subscription. A topic
    without such traffic has infinity.
    """
    at_s, left = timeline.failover_s[failover], timeline.failover_cluster[failover]
    receipts = timeline.receipts
    time_s, of, cluster, ids = (receipts.column(name) for name in ("time_s", "subscription", "cluster", "id"))
    elsewhere = (timeline.confirm_cluster != left) & (timeline.confirm_time_s > at_s)
    firsts = [_first(timeline, timeline.confirm_id[elsewhere], timeline.confirm_time_s[elsewhere])]
    there = (cluster != left) & (time_s > at_s)
    for code in range(subscriptions):
        rows = there & (of == code)
        firsts.append(_first(timeline, ids[rows], time_s[rows]))
    return [first_s - at_s for first_s in firsts]


def recover_seconds(firsts: Sequence[Column]) -> Column:
    """Return for each topic the time until it had recovered from a failover, or NaN.

    ``firsts`` is the result of :func:`first_elsewhere`.
    """
    longest = np.full(len(firsts[0]), np.nan)
    for first_s in firsts:
        longest = np.fmax(longest, np.where(np.isfinite(first_s), first_s, np.nan))
    return longest


def _first(timeline: Timeline, ids: Column, times_s: Column) -> Column:
    """Return for each topic the earliest of ``times_s`` of its messages, or infinity."""
    first_s = np.full(timeline.topics, np.inf)
    np.minimum.at(first_s, timeline.topic_of[ids], times_s)
    return first_s


def _count(timeline: Timeline, ids: Column) -> Column:
    """Count the messages ``ids`` by topic."""
    return np.bincount(timeline.topic_of[ids], minlength=timeline.topics)


def _over(figures: Column) -> TopicStatistics:
    have = np.flatnonzero(~np.isnan(figures))
    if not len(have):
        return TopicStatistics(None, None, None, None, 0)
    ordered = np.sort(figures[have])
    worst = int(have[np.argmax(figures[have])])
    return TopicStatistics(
        nearest_rank(ordered, 50), nearest_rank(ordered, 99), float(figures[worst]), worst, len(have)
    )
