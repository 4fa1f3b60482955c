"""``format("replicator")``: the topics of clusters as Spark tables.

Options (unknown ones are refused):

- ``url``: a worker's base URL, ``http://HOST:PORT``; several, comma-separated, read several clusters into one table.
- ``topic``: names, comma-separated; all topics of the clusters if it is not given.
- ``after``, ``upto``: positions ``ledger:entry``; entries with ``after < position <= upto`` are read. They need
  exactly one ``url`` and one ``topic``, because a position means nothing elsewhere. ``upto`` is the LAC if not given.
- ``entries_per_partition``: how many entries one Spark task reads at most, as far as the listing lets it be known.

The range of each topic is fixed when the read is planned, so the tasks of a read, and their retries, see the same.
A read with ``.schema(…)`` builds only those columns; see :data:`~replicator.pipeline.decode.COLUMNS` for all.

Planning (:func:`plan_ranges`) is pure: listings go in, ranges come out. A stream reader will plan with it too, with
the positions of its offsets instead of the options, and read with :func:`read_ranges`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from replicator.engine.errors import InvalidTopicName
from replicator.engine.topic_name import parse_topic
from replicator.pipeline.data_plane import DataPlane, TopicState, check_url
from replicator.pipeline.decode import COLUMNS, message_batches
from replicator.pipeline.errors import BadOption
from replicator.pipeline.sink import batch_writer, stream_writer
from snapshots.errors import InvalidPosition
from snapshots.position import BEFORE_ALL, Position

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT_NAME: Final = "replicator"
OPTION_NAMES: Final = ("url", "topic", "after", "upto", "entries_per_partition")
ROWS_PER_PARTITION: Final = 100_000
"""What one task reads by default: about a second of work, so that starting it (20 ms) does not count."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a read, checked. ``topics`` and ``entries_per_partition`` are None if not given."""

    urls: tuple[str, ...]
    topics: tuple[str, ...] | None = None
    after: Position = BEFORE_ALL
    upto: Position | None = None
    entries_per_partition: int | None = None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> SourceOptions:
        """Check what the user wrote; raises :class:`BadOption`, which names the option."""
        given = {name.lower(): value for name, value in options.items()}
        for name in given:
            if name not in OPTION_NAMES:
                raise BadOption(name, f"unknown; the options are {', '.join(OPTION_NAMES)}")
        if not given.get("url"):
            raise BadOption("url", "missing; give the base URL of a worker, for example http://127.0.0.1:8081")
        urls = tuple(check_url(url.strip()) for url in given["url"].split(","))
        topics = _topics(given["topic"]) if "topic" in given else None
        for name in ("after", "upto"):
            if name in given and (topics is None or len(topics) != 1 or len(urls) != 1):
                raise BadOption(name, "a position belongs to one topic of one cluster: name one url and one topic")
        return cls(
            urls=urls,
            topics=topics,
            after=_position("after", given["after"]) if "after" in given else BEFORE_ALL,
            upto=_position("upto", given["upto"]) if "upto" in given else None,
            entries_per_partition=_count("entries_per_partition", given.get("entries_per_partition")),
        )


@dataclass(frozen=True, slots=True)
class TopicRange:
    """Entries of one topic of one cluster with ``after < position <= upto``; ``entries`` is an estimate."""

    url: str
    cluster: str
    topic: str
    after: Position
    upto: Position
    entries: int


class ReplicatorDataSource(DataSource):  # type: ignore[misc]  # pyspark has no types
    """What ``spark.dataSource.register`` takes."""

    @classmethod
    def name(cls) -> str:
        return FORMAT_NAME

    def schema(self) -> StructType:
        SourceOptions.parse(self.options)  # a wrong option is reported before anything is planned
        return from_arrow_schema(COLUMNS)

    def reader(self, schema: StructType) -> DataSourceReader:
        return BatchReader(SourceOptions.parse(self.options), _selection(schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return batch_writer(self.options, schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        return stream_writer(self.options, schema, overwrite=overwrite)


class BatchReader(DataSourceReader):  # type: ignore[misc]
    """Plans on the driver, reads in the tasks."""

    def __init__(self, options: SourceOptions, columns: pa.Schema) -> None:
        self._options = options
        self._columns = columns

    def partitions(self) -> list[InputPartition]:
        listings = {}
        for url in self._options.urls:
            with DataPlane(url) as worker:
                listings[url] = worker.topics()
        return [InputPartition(ranges) for ranges in plan_ranges(listings, self._options)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Spark makes one partition without a value when there is nothing to read.
        return read_ranges(partition.value or (), self._columns)


def register(spark: SparkSession) -> None:
    """Make ``format("replicator")`` known to a session."""
    spark.dataSource.register(ReplicatorDataSource)


def plan_ranges(
    listings: Mapping[str, tuple[str, Sequence[TopicState]]], options: SourceOptions
) -> list[tuple[TopicRange, ...]]:
    """What each Spark partition reads: parts of large topics by themselves, small topics together.

    ``listings`` has, for each URL, the cluster's name and its topics. A topic that no cluster has is an error; one
    that only some have is read there. Raises :class:`BadOption`.
    """
    known = {topic.name for _, topics in listings.values() for topic in topics}
    for name in options.topics or ():
        if name not in known:
            raise BadOption("topic", f"no topic {name} at {', '.join(options.urls)}")
    planned: list[tuple[TopicRange, ...]] = []
    for url, (cluster, topics) in listings.items():
        bundle: list[TopicRange] = []
        bundled_share = 0.0
        for topic in topics:
            if options.topics is not None and topic.name not in options.topics:
                continue
            size_max = options.entries_per_partition or _entries_per_task(topic)
            for part in _split(url, cluster, topic, options.after, options.upto, size_max):
                share = part.entries / size_max  # of what a task may read
                if bundle and bundled_share + share > 1:
                    planned.append(tuple(bundle))
                    bundle, bundled_share = [], 0.0
                bundle.append(part)
                bundled_share += share
        if bundle:
            planned.append(tuple(bundle))
    return planned


def read_ranges(ranges: Iterable[TopicRange], columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The rows of ranges, one connection for each worker at a time."""
    for part in ranges:
        with DataPlane(part.url) as worker:
            blocks = worker.blocks(part.topic, part.after, part.upto)
            yield from message_batches(blocks, part.cluster, part.topic, part.after, part.upto, columns)


def _split(
    url: str, cluster: str, topic: TopicState, after: Position, upto: Position | None, size_max: int
) -> Iterator[TopicRange]:
    """Cut a topic into ranges of about ``size_max`` entries.

    The listing says where a topic starts and ends and how many entries it has, not how they spread over the ledgers
    between. So the last ledger's share is known, the rest is taken to lie in the first one, and what is cut too late
    or too early for that makes ranges uneven, never wrong: they always meet end to end.
    """
    if not topic.entries:
        return
    last = topic.last if upto is None else min(upto, topic.last)
    start = max(after, Position(topic.first.ledger, topic.first.entry - 1))
    if start >= last:
        return
    if start.ledger == last.ledger:
        pieces = [(start, last, last.entry - start.entry)]
    else:
        border = Position(last.ledger, -1)
        in_last = last.entry + 1
        pieces = [(start, border, max(topic.entries - in_last, 1)), (border, last, in_last)]
    for low, high, entries in pieces:
        while entries > size_max:
            middle = Position(low.ledger, low.entry + size_max)
            yield TopicRange(url, cluster, topic.name, low, middle, size_max)
            low, entries = middle, entries - size_max
        if low < high:
            yield TopicRange(url, cluster, topic.name, low, high, entries)


def _entries_per_task(topic: TopicState) -> int:
    messages_per_entry = max(topic.messages / max(topic.entries, 1), 1)
    return max(int(ROWS_PER_PARTITION / messages_per_entry), 1)


def _selection(schema: StructType) -> pa.Schema:
    """The columns that a user's schema asks for; raises :class:`BadOption` where they are not ours."""
    available = {field.name: field for field in from_arrow_schema(COLUMNS)}
    for field in schema:
        if field.name not in available:
            raise BadOption("schema", f"no column {field.name}; the columns are {', '.join(available)}")
        if field.dataType != available[field.name].dataType:
            expected = available[field.name].dataType.simpleString()
            raise BadOption("schema", f"column {field.name} is {expected}, not {field.dataType.simpleString()}")
    # Spark compares the schema of what it is given with the one that it makes itself, nullability included.
    return to_arrow_schema(schema, timezone="UTC")


def _topics(text: str) -> tuple[str, ...]:
    names = []
    for name in text.split(","):
        try:
            names.append(str(parse_topic(name.strip())))
        except InvalidTopicName as error:
            raise BadOption("topic", str(error)) from None
    return tuple(dict.fromkeys(names))


def _position(option: str, text: str) -> Position:
    try:
        return Position.parse(text.strip())
    except InvalidPosition as error:
        raise BadOption(option, str(error)) from None


def _count(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal() or int(text) < 1:
        raise BadOption(option, f"{text!r} is not a whole number from 1 up")
    return int(text)
