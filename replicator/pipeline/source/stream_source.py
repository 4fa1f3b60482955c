"""Driver's side of a query of ``spark.readStream.format("replicator")``, which asks the workers for new entries.

It is the thin shell around :mod:`stream_offsets <replicator.pipeline.source.stream_offsets>`, :mod:`admission
<replicator.pipeline.source.admission>` and :mod:`planning <replicator.pipeline.source.planning>`. Each micro-batch:

1. Each worker is asked which topics changed since it was asked last: one request, short if they are quiet.
2. The query's offset is compared with the answers: lost entries are an error, or skipped (``onGap``).
3. The limits decide how far each topic is read; that is the next offset.
4. The ranges between the two offsets are planned as for a batch read, and read in the tasks in the same way.

After a restart only the offset is known, so the same batch is planned from the same positions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import BadOption, TopicChanged
from replicator.pipeline.source.admission import Admission
from replicator.pipeline.source.options import SourceOptions
from replicator.pipeline.source.planning import TopicSpan, bounded_spans, first_position, plan_ranges
from replicator.pipeline.source.reading import read_ranges, refresh, sample, search_times
from replicator.pipeline.source.stream_offsets import READABLE_TOPICS_MAX, Positions, decode_offset, encode_offset
from replicator.pipeline.source.topic_positions import ClusterTopics, Measured, TopicPositions
from snapshots.position import BEFORE_ALL, Position

RETRY_SECONDS_MAX: Final = 5.0
"""Longest wait for a worker that restarts. After it the query stops, and can continue from its checkpoint."""


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):  # type: ignore[misc]  # pyspark has no types
    """Reader of a stream. It lives as long as the query, in a Python process of the driver; a copy of it reads in each
    task."""

    def __init__(self, options: SourceOptions, columns: pa.Schema) -> None:
        self._options = options
        self._columns = columns
        self._standings = {url: ClusterTopics() for url in options.urls}
        self._admission = Admission(options.entries_per_trigger, options.bytes_per_trigger)
        self._target: Positions | None = None
        """End of an ``availableNow`` run."""

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's names
        """Return the start of a query without a checkpoint."""
        self._refresh()
        at_time = search_times(self._standings, self._options, self._options.start, wait_seconds=RETRY_SECONDS_MAX)
        spans = bounded_spans(self._standings, self._options, at_time)
        starts = {span.key: span.after for span in spans}
        read: dict[str, dict[str, Position]] = {of_cluster.cluster: {} for of_cluster in self._standings.values()}
        for url, of_cluster in self._standings.items():
            for name, topic in of_cluster.topics.items():
                if self._options.wants(name):
                    # A topic without a span has no entries after its start.
                    read[of_cluster.cluster][name] = starts.get((url, name), topic.last)
        return encode_offset(read)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.bytes_per_trigger is not None:
            return ReadMaxBytes(self._options.bytes_per_trigger)
        if self._options.entries_per_trigger is not None:
            return ReadMaxRows(self._options.entries_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._refresh()
        self._target = {
            of_cluster.cluster: {name: topic.last for name, topic in of_cluster.topics.items()}
            for of_cluster in self._standings.values()
        }

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        self._refresh()
        read = decode_offset(start)
        skip = self._options.on_gap == "skip"
        spans = self._spans(read, self._target)
        if isinstance(limit, ReadAllAvailable):
            reached = {span.key: span.upto for span in spans}
        else:
            reached = self._admission.admit(spans, self._measure)
        end = {
            of_cluster.cluster: {
                # Where gaps are skipped, what comes after a topic's end is read, though the query stood beyond it.
                name: reached.get((url, name), min(position, of_cluster.topics[name].last) if skip else position)
                for name, position in read.get(of_cluster.cluster, {}).items()
                if name in of_cluster.topics  # a topic that is gone, and skipped
            }
            | {span.positions.name: reached[span.key] for span in spans if span.url == url and span.key in reached}
            for url, of_cluster in self._standings.items()
        }
        return start if end == read else encode_offset(end)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Return the topics' ends, for the query's progress; None if they are too many to read."""
        ends = {
            of_cluster.cluster: {
                name: topic.last for name, topic in of_cluster.topics.items() if self._options.wants(name)
            }
            for of_cluster in self._standings.values()
        }
        return None if any(len(topics) > READABLE_TOPICS_MAX for topics in ends.values()) else encode_offset(ends)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        if start == end:
            return []
        if not all(standings.cluster for standings in self._standings.values()):
            self._refresh()  # the first batch after a restart, which was planned before it
        spans = self._spans(decode_offset(start), decode_offset(end))
        return [
            InputPartition(ranges)
            for ranges in plan_ranges(spans, sample(spans, wait_seconds=RETRY_SECONDS_MAX), self._options)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        mode = self._options.mode
        return read_ranges(partition.value or (), self._columns, mode=mode, wait_seconds=RETRY_SECONDS_MAX)

    def _spans(self, read: Positions, target: Positions | None) -> list[TopicSpan]:
        """Return the span of each topic from its read position to its target, or its LAC.

        Raises :class:`TopicChanged`, unless gaps are skipped, if a partly read topic is gone or a position never
        existed.
        """
        skip = self._options.on_gap == "skip"
        known = {of_cluster.cluster for of_cluster in self._standings.values()}
        if unknown := sorted(cluster for cluster, topics in read.items() if topics and cluster not in known):
            raise BadOption("url", f"the query has read cluster {', '.join(unknown)}, and no worker given is of it")
        spans = []
        for url, of_cluster in self._standings.items():
            positions = read.get(of_cluster.cluster, {})
            targets = None if target is None else target.get(of_cluster.cluster, {})
            if not skip:
                for name, position in positions.items():
                    if name not in of_cluster.topics:
                        raise TopicChanged(name, f"is not at {of_cluster.cluster} any more; it was read to {position}")
                for name, position in [*positions.items(), *(targets or {}).items()]:
                    if name in of_cluster.topics and self._options.wants(name):
                        _check_not_beyond(of_cluster.topics[name], position)
            for name, topic in of_cluster.topics.items():
                if targets is not None and name not in targets:
                    continue
                upto = topic.last if targets is None else min(targets[name], topic.last)
                if positions.get(name, BEFORE_ALL) < upto and self._options.wants(name):
                    after = first_position(topic, positions.get(name, BEFORE_ALL), skip)
                    if after < upto:
                        spans.append(TopicSpan(url, of_cluster.cluster, topic, after, upto))
        return spans

    def _refresh(self) -> None:
        refresh(self._standings, self._options, wait_seconds=RETRY_SECONDS_MAX)

    def _measure(
        self, url: str, ranges: Sequence[tuple[str, Position, Position, int]], bytes_max: int
    ) -> Sequence[Measured | None]:
        with DataPlane(url, wait_seconds=RETRY_SECONDS_MAX) as worker:
            return worker.measure(ranges, bytes_max)


def _check_not_beyond(topic: TopicPositions, position: Position) -> None:
    """Raise :class:`TopicChanged` for a position that the topic never had in this life.

    Otherwise messages up to there would be left out as if they had been read."""
    if position > topic.last and not topic.replaced_since(position):
        raise TopicChanged(
            topic.name,
            f"ends at {topic.last}, before {position}, up to where the checkpoint says that it was read: the worker "
            "was put back to an older state, or the checkpoint is of another cluster",
        )
