"""Planning of a read: it divides topics into ranges for Spark tasks. Pure: standings and samples in, ranges out.

1. :func:`bounded_spans` makes of the options one span for each wanted topic of each cluster that has anything to read,
   and reports requests that cannot be met.
2. :func:`plan_ranges` cuts large spans into tasks, and puts small ones together into one.

The ranges of a span meet end to end and lie in order: nothing is read twice, nothing is left out. A topic with nothing
to read costs nothing; a thousand with a little share some tasks, because a task takes 10 to 20 ms to start.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from replicator.pipeline.errors import BadOption, TopicChanged
from replicator.pipeline.source.filters import PushedFilters
from replicator.pipeline.source.options import SourceOptions
from replicator.pipeline.source.topic_positions import ClusterTopics, Measured, TopicPositions
from snapshots.position import BEFORE_ALL, Position

ROWS_PER_PARTITION: Final = 250_000
"""Rows that one task reads by default: some tenths of a second, so that starting it (20 ms) does not count."""
RANGES_PER_PARTITION: Final = 250
"""Limit of small topics in one task: each is a request of a millisecond or two."""
PARTITIONS_MAX: Final = 10_000
"""Limit of partitions in one plan. Spark's driver keeps a few kB for each; larger reads get larger partitions."""
SAMPLED_ENTRIES_MIN: Final = 100
"""Number of entries below which a topic is not sampled for their size."""


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Entries of one topic of one cluster with ``after < position <= upto``; ``entries`` is their number."""

    url: str
    cluster: str
    topic: str
    after: Position
    upto: Position
    entries: int
    incarnation: int | None = None
    """Life of the topic in which the whole range must exist when it is read; None to read whatever exists."""


@dataclass(frozen=True, slots=True)
class TopicSpan:
    """Part of one topic that a read takes: the entries with ``after < position <= upto``."""

    url: str
    cluster: str
    positions: TopicPositions
    after: Position
    upto: Position

    @property
    def key(self) -> tuple[str, str]:
        return self.url, self.positions.name

    @property
    def entries(self) -> int:
        return self.positions.entries_between(self.after, self.upto)


def wanted_topics(standings: Mapping[str, ClusterTopics], options: SourceOptions) -> dict[str, list[TopicPositions]]:
    """Return, for each URL, the topics to be read.

    Raises :class:`BadOption` for a name that no cluster has, and for a pattern that matches nothing."""
    wanted = {
        url: [topic for name, topic in sorted(of_cluster.topics.items()) if options.wants(name)]
        for url, of_cluster in standings.items()
    }
    found = {topic.name for topics in wanted.values() for topic in topics}
    where = ", ".join(f"{of_cluster.cluster} ({url})" for url, of_cluster in standings.items())
    for name in options.topics or ():
        if name not in found:
            raise BadOption("topic", f"no topic {name} at {where}")
    if options.pattern is not None and not found:
        raise BadOption("pattern", f"{options.pattern} matches no topic at {where}")
    return wanted


def bounded_spans(
    standings: Mapping[str, ClusterTopics],
    options: SourceOptions,
    at_start: Mapping[tuple[str, str], Position] | None = None,
    at_end: Mapping[tuple[str, str], Position] | None = None,
) -> list[TopicSpan]:
    """Return the span of each topic that a batch read takes; ``standings`` are by URL.

    ``at_start`` and ``at_end`` have, by URL and topic, the last position before the times that the options give. Raises
    :class:`BadOption` if nothing is found or a position is out of range. Raises :class:`TopicChanged`, unless gaps are
    skipped, if a start was trimmed, or a position is of an earlier life of its topic.
    """
    spans = []
    for url, topics in wanted_topics(standings, options).items():
        for topic in topics:
            after = _start(topic, options, (at_start or {}).get((url, topic.name)))
            upto = _end(topic, options, (at_end or {}).get((url, topic.name)))
            if after < upto:
                spans.append(TopicSpan(url, standings[url].cluster, topic, after, upto))
    return spans


def first_position(topic: TopicPositions, start: Position, on_gap_skip: bool) -> Position:
    """Return where to continue in a topic that was read up to ``start``: there, or at the first entry if gaps are
    skipped.

    Raises :class:`TopicChanged` if entries above ``start`` are gone, and gaps are not skipped.
    """
    if start == BEFORE_ALL:
        return topic.trimmed  # a reader that has read nothing wants all that exists
    if topic.replaced_since(start):
        reason = f"was deleted and made anew after {start}, up to where it was read"
    elif topic.lost_after(start):
        reason = f"was trimmed up to {topic.trimmed}, past {start}, up to where it was read"
    else:
        return start
    if not on_gap_skip:
        raise TopicChanged(topic.name, reason)
    return topic.trimmed


def _start(topic: TopicPositions, options: SourceOptions, at_time: Position | None) -> Position:
    start = options.start
    if start is None:
        return topic.trimmed
    if start.latest:
        return topic.last
    if start.position is None:
        return max(at_time or BEFORE_ALL, topic.trimmed)
    if start.position > topic.last:
        raise BadOption(start.option, f"{start.text} is beyond the last entry of {topic.name}, which is {topic.last}")
    return first_position(topic, start.position, options.on_gap == "skip")


def _end(topic: TopicPositions, options: SourceOptions, at_time: Position | None) -> Position:
    end = options.end
    if end is None:
        return topic.last
    if end.position is None:
        return min(at_time or BEFORE_ALL, topic.last)
    if end.position > topic.last:
        raise BadOption(end.option, f"{end.text} is beyond the last entry of {topic.name}, which is {topic.last}")
    if topic.replaced_since(end.position) and options.on_gap == "fail":
        raise TopicChanged(topic.name, f"was deleted and made anew after {end.position}, up to where it is to be read")
    return end.position


def narrowed_spans(spans: Iterable[TopicSpan], filters: PushedFilters) -> list[TopicSpan]:
    """Return the spans, reduced by the filters."""
    narrowed = []
    for span in spans:
        if filters.wants_topic(span.cluster, span.positions.name):
            after, upto = filters.narrowed(span.after, span.upto)
            if after < upto:
                narrowed.append(replace(span, after=after, upto=upto))
    return [span for span in narrowed if span.entries]


def to_sample(spans: Iterable[TopicSpan]) -> list[TopicSpan]:
    """Return the spans that are large enough to be sampled, so that tasks get equal work."""
    return [span for span in spans if span.entries >= SAMPLED_ENTRIES_MIN]


def plan_ranges(
    spans: Sequence[TopicSpan], samples: Mapping[tuple[str, str], Measured], options: SourceOptions
) -> list[tuple[TopicRange, ...]]:
    """Return the ranges of each Spark partition: parts of large topics alone, small topics together.

    ``samples`` has, by URL and topic, the sizes of entries at the start of a span.
    """
    size_max = {span.key: _entries_per_task(samples.get(span.key), options) for span in spans}
    total = sum(span.entries / size_max[span.key] for span in spans)
    scale = max(total / PARTITIONS_MAX, 1.0)
    planned: list[tuple[TopicRange, ...]] = []
    bundle: list[TopicRange] = []
    share = 0.0
    for span in spans:
        entries_max = int(size_max[span.key] * scale)
        for part in _cut(span, entries_max, pinned=options.on_gap == "fail"):
            weight = part.entries / entries_max
            full = share + weight > 1 or len(bundle) >= RANGES_PER_PARTITION
            if bundle and (full or bundle[0].url != part.url):
                planned.append(tuple(bundle))
                bundle, share = [], 0.0
            bundle.append(part)
            share += weight
    if bundle:
        planned.append(tuple(bundle))
    return planned


def _cut(span: TopicSpan, entries_max: int, *, pinned: bool) -> Iterator[TopicRange]:
    """Yield ranges of at most ``entries_max`` entries."""
    after, left = span.after, span.entries
    while left > 0:
        size = min(left, entries_max)
        upto = span.upto if size == left else span.positions.advance(after, size)
        yield TopicRange(
            span.url,
            span.cluster,
            span.positions.name,
            after,
            upto,
            size,
            span.positions.incarnation if pinned else None,
        )
        after, left = upto, left - size


def _entries_per_task(sample: Measured | None, options: SourceOptions) -> int:
    if options.entries_per_partition is not None:
        return options.entries_per_partition
    if sample is None or not sample.entries:
        return ROWS_PER_PARTITION
    by_rows = ROWS_PER_PARTITION * sample.entries / max(sample.messages, 1)
    by_bytes = options.bytes_per_partition * sample.entries / max(sample.size_bytes, 1)
    return max(int(min(by_rows, by_bytes)), 1)
