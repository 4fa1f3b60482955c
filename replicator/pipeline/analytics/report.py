"""Report: all analyses of some topics over one reading of them, as small Arrow tables.

1. Workers are asked for their topics; patterns choose among them.
2. The topics are read once into :func:`~replicator.pipeline.analytics.facts.facts`. Spark keeps them, on disk if memory
   is short, so that no analysis asks the workers again.
3. Spark aggregates each analysis; at most :data:`ROWS_MAX` rows of each come to the driver.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

from replicator.pipeline.analytics.assignments import SUPPOSED_CONSUMERS, Assignment, with_slots_elsewhere
from replicator.pipeline.analytics.duplicates import repeated_contents, repeated_sequence_ids
from replicator.pipeline.analytics.facts import READ_COLUMNS, facts
from replicator.pipeline.analytics.keys import consumer_loads, key_volumes
from replicator.pipeline.analytics.lag import replication_lag
from replicator.pipeline.analytics.sizes import size_histogram
from replicator.pipeline.analytics.throughput import throughput
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import BadOption, PeerUnavailable, UnexpectedAnswer, error_of_job
from replicator.pipeline.json_types import ReportAnswer
from replicator.pipeline.source.source import FORMAT_NAME
from replicator.topology.links import Link
from replicator.topology.patterns import parse_patterns

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS_MAX: Final = 200_000
"""Limit of rows per table: enough for a thousand topics over three hours of minutes, and little memory for a driver."""
BUCKETS_MAX: Final = 120
"""Limit of points per chart. Nobody could tell more of them apart, and each costs rows."""
BUCKET_SECONDS: Final = (1, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 21_600, 86_400, 604_800)
"""Widths of buckets. A report uses the smallest that needs no more than :data:`BUCKETS_MAX` of them."""
REPEAT_WINDOW_SECONDS: Final = 60
"""Default time within which equal contents count as repeated."""

TABLES: Final = {
    "throughput": ("cluster", "topic", "way", "bucket"),
    "lag": ("origin", "cluster", "topic", "bucket"),
    "keys": ("cluster", "topic", "rank"),
    "consumers": ("cluster", "topic", "subscription", "consumer"),
    "repeated_ids": ("cluster", "topic", "origin", "producer_name"),
    "repeated_contents": ("cluster", "topic", "producer_name"),
    "sizes": ("cluster", "topic", "measure", "low"),
}
"""Tables of a report, with the columns that their rows are ordered by."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Settings of a report. ``topics`` are patterns like those of links, empty for all; ``since`` is a publish time."""

    topics: tuple[str, ...] = ()
    since: datetime | None = None
    consumers: int = SUPPOSED_CONSUMERS
    """Number of equal slots that keys are counted in if no Key_Shared consumer runs."""
    repeat_window_seconds: int = REPEAT_WINDOW_SECONDS


@dataclass(frozen=True, slots=True)
class Report:
    """Outcome of a report. ``tables`` are those of :data:`TABLES`, in its order."""

    clusters: tuple[str, ...]
    topics: int
    wanted: Wanted
    messages: int
    """Number of messages read. A message counts in each cluster."""
    first: datetime | None
    """Earliest publish time, in UTC; None if there is no message."""
    last: datetime | None
    bucket_seconds: int
    tables: Mapping[str, pa.Table]
    cut: tuple[str, ...]
    """Tables with more than :data:`ROWS_MAX` rows, cut to the first ones."""
    seconds: float

    def as_json(self) -> ReportAnswer:
        """Return the report as plain values, with times in ISO 8601."""
        tables: Any = {
            name: [{key: _plain(value) for key, value in row.items()} for row in table.to_pylist()]
            for name, table in self.tables.items()
        }
        return {
            "clusters": list(self.clusters),
            "topics": self.topics,
            "messages": self.messages,
            "since": _iso(self.wanted.since),
            "first": _iso(self.first),
            "last": _iso(self.last),
            "bucket_seconds": self.bucket_seconds,
            "repeat_window_seconds": self.wanted.repeat_window_seconds,
            "tables": tables,
            "cut": list(self.cut),
            "seconds": round(self.seconds, 3),
        }

    def write_parquet(self, directory: Path) -> list[Path]:
        """Write each table as ``NAME.parquet``; return the files."""
        directory.mkdir(parents=True, exist_ok=True)
        written = []
        for name, table in self.tables.items():
            written.append(directory / f"{name}.parquet")
            pq.write_table(table, written[-1])
        return written


def make_report(
    spark: SparkSession,
    clusters: Mapping[str, str],
    wanted: Wanted,
    running: Sequence[Assignment] = (),
    topics: Sequence[tuple[str, str]] | None = None,
) -> Report:
    """Analyse topics of ``clusters`` (name to worker URL); ``running`` has the known Key_Shared consumers.

    ``topics`` is the result of an earlier :func:`find_topics`, if there was one. The call blocks until the jobs end.
    Raises the errors of :func:`find_topics`, :class:`PeerUnavailable` for a worker that goes away meanwhile, and
    :class:`SparkFailed` for other failures of a job, both in one line.
    """
    try:
        return _report(spark, clusters, wanted, running, topics)
    except PySparkException as error:
        raise error_of_job(error, PeerUnavailable) from None


def bucket_width(span_us: int) -> int:
    """Return the width of a bucket in seconds for times that span ``span_us`` microseconds."""
    return next((width for width in BUCKET_SECONDS if span_us <= width * BUCKETS_MAX * 1_000_000), BUCKET_SECONDS[-1])


def _report(
    spark: SparkSession,
    clusters: Mapping[str, str],
    wanted: Wanted,
    running: Sequence[Assignment],
    topics: Sequence[tuple[str, str]] | None,
) -> Report:
    started = time.monotonic()
    topics = find_topics(clusters, wanted.topics) if topics is None else topics
    options = {"url": ",".join(clusters.values()), "topic": ",".join(sorted({topic for _, topic in topics}))}
    if not topics:
        empty = {name: pa.table({}) for name in TABLES}
        return Report(tuple(clusters), 0, wanted, 0, None, None, 1, empty, (), time.monotonic() - started)
    messages = spark.read.format(FORMAT_NAME).schema(READ_COLUMNS).options(**options).load()
    if wanted.since is not None:
        messages = messages.where(F.col("publish_time") >= F.lit(wanted.since))
    rows = facts(messages).persist()
    try:
        of_messages = F.when(F.col("kind") == "message", F.unix_micros("publish_time"))
        (totals,) = rows.agg(
            F.count(F.when(F.col("kind") == "message", 1)).alias("messages"),
            F.min(of_messages).alias("first"),
            F.max(of_messages).alias("last"),
        ).collect()
        bucket_seconds = bucket_width((totals["last"] or 0) - (totals["first"] or 0))
        assignments = with_slots_elsewhere(running, topics, wanted.consumers)
        found = {
            "throughput": throughput(rows, bucket_seconds),
            "lag": replication_lag(rows, bucket_seconds),
            "keys": key_volumes(rows),
            "consumers": consumer_loads(rows, assignments),
            "repeated_ids": repeated_sequence_ids(rows),
            "repeated_contents": repeated_contents(rows, wanted.repeat_window_seconds),
            "sizes": size_histogram(rows),
        }
        tables = {name: _collected(found[name], order) for name, order in TABLES.items()}
    finally:
        rows.unpersist()
    return Report(
        tuple(clusters),
        len({topic for _, topic in topics}),
        wanted,
        totals["messages"],
        _time(totals["first"]),
        _time(totals["last"]),
        bucket_seconds,
        {name: table.slice(0, ROWS_MAX) for name, table in tables.items()},
        tuple(name for name, table in tables.items() if len(table) > ROWS_MAX),
        time.monotonic() - started,
    )


def _collected(frame: DataFrame, order: Sequence[str]) -> pa.Table:
    """Return up to one row more than is kept, ordered by the columns ``order``, which come first."""
    rest = [name for name in frame.columns if name not in order]
    return frame.select(*order, *rest).orderBy(*order).limit(ROWS_MAX + 1).toArrow()


def find_topics(clusters: Mapping[str, str], patterns: Sequence[str]) -> list[tuple[str, str]]:
    """Return the (cluster, topic) pairs that have messages and match some pattern, or all if there is no pattern.

    Raises :class:`BadOption` for an invalid pattern or one that no topic matches, :class:`UnexpectedAnswer` for a
    worker of another cluster, :class:`~replicator.pipeline.errors.PeerUnavailable` for one that does not answer.
    """
    try:
        chosen = Link("", "", topics=parse_patterns(list(patterns)))
    except ValueError as error:
        raise BadOption("topics", str(error)) from None
    with ThreadPoolExecutor(max_workers=max(len(clusters), 1)) as pool:
        listings = list(pool.map(_listing, clusters, clusters.values()))
    found = [
        (cluster, topic)
        for cluster, topics in zip(clusters, listings, strict=True)
        for topic in topics
        if chosen.carries(topic)
    ]
    if patterns and not found:
        raise BadOption("topics", f"no topic of {', '.join(clusters)} matches {' or '.join(patterns)}")
    return found


def _listing(cluster: str, url: str) -> Iterable[str]:
    with DataPlane(url) as worker:
        answering, topics = worker.topics()
        if answering != cluster:
            raise UnexpectedAnswer(
                f"worker at {url} is of cluster {answering}, not {cluster}: correct its address in the topology"
            )
        return [topic.name for topic in topics if topic.entries]


def _time(micros: int | None) -> datetime | None:
    return None if micros is None else datetime.fromtimestamp(micros / 1_000_000, UTC)


def _iso(value: datetime | None) -> str | None:
    return None if value is None else value.isoformat()


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
