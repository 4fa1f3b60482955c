"""Runs of a comparison: as one Spark job, or in this process if there is too little to start Spark for.

Both run the same functions over the same rows:

1. tasks read ranges of logs (:mod:`~replicator.pipeline.verify.entry_reader`) into rows, one a block;
2. rows of one cell come together: sorted by Spark, which spills, or here;
3. cells are compared (:mod:`~replicator.pipeline.verify.comparison.faults`), a batch of them at a time;
4. findings are added up in the tasks, so that the results are small however much is wrong: sums, and examples.

Only if a log is out of order, its rows are sorted once more, by its own positions.
"""

from __future__ import annotations

import json
import pickle  # nosec B403
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from replicator.pipeline.errors import PeerUnavailable, UnexpectedAnswer, error_of_job
from replicator.pipeline.verify.blocks import LogRange, Selection
from replicator.pipeline.verify.cluster_state import Progress, no_progress
from replicator.pipeline.verify.comparison import order
from replicator.pipeline.verify.comparison.faults import compare
from replicator.pipeline.verify.comparison.rows import (
    CELL_KEY,
    DIFFERENCE_COLUMNS,
    FINDINGS,
    PIECES,
    FindingRow,
    findings_table,
    whole_cells,
)
from replicator.pipeline.verify.comparison.scope import Scope
from replicator.pipeline.verify.entry_reader import read_entries, read_pieces
from replicator.pipeline.verify.plane import BlockUnreadable
from snapshots.position import Position

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

TASK_MESSAGES: Final = 1_000_000
"""Number of messages that one task reads, about: a second of work, so that its start (20 ms) does not count."""
TASK_ENTRIES: Final = 200_000
TASK_RANGES: Final = 2_000
"""Limit of ranges that one task reads. Small topics share a task; each takes some milliseconds."""
SORT_ENTRIES: Final = 5_000_000
"""Number of entries in one partition of the sort. Most blocks hold hundreds of entries."""
BATCH_ROWS: Final = 10_000
READERS: Final = 4
"""Number of threads that read logs in this process: while one waits for a worker, the others decode blocks."""
READ_TOGETHER: Final = 50
"""Number of ranges that one thread reads over its connections before it takes more."""
_SPECIAL: Final = "#"
_EACH: Final = ("#run", "#descent", "#probe", "#damaged", "mismapped")
"""Kinds of findings that are passed on one by one. There are few, and several tasks may find the same."""


@dataclass(slots=True)
class Tally:
    """Sum of all findings of one kind, topic and pair of clusters."""

    kind: str
    topic: str
    cluster: str | None
    other: str | None
    count: int = 0
    examples: list[str] = field(default_factory=list)
    notes: list[FindingRow] = field(default_factory=list)
    """Single findings, for the kinds in :data:`_EACH`."""


class Runs(Protocol):
    """Interface of the place where a comparison runs: this process or Spark."""

    def compare(
        self, tasks: Sequence[Sequence[LogRange]], scope: Scope, selection: Selection, write_to: Path | None
    ) -> list[Tally]:
        """Compare the ranges of ``tasks``. All differences are also written to ``write_to``, as Parquet."""

    def reordered(
        self, tasks: Sequence[Sequence[LogRange]], scope: Scope, selection: Selection, suspect: set[tuple[int, int]]
    ) -> list[FindingRow]:
        """Return the entries of suspect logs (topic, cluster) that are out of order."""


def plan_tasks(scope: Scope, messages_each: Callable[[int, int], float]) -> list[list[LogRange]]:
    """Return the ranges of each task. ``messages_each`` returns about how many messages an entry of a topic in a
    cluster has."""
    tasks: list[list[LogRange]] = []
    bundle: list[LogRange] = []
    share = 0.0
    for topic, of_topic in enumerate(scope.topics):
        for cluster, standing in of_topic.standings.items():
            size_max = max(int(min(TASK_ENTRIES, TASK_MESSAGES / max(messages_each(topic, cluster), 1))), 1)
            number = 0
            for ledger, first, last in standing.runs:
                while first <= last:
                    # Fill the task that is open, unless little is left of it.
                    room = int(size_max * (1 - share)) if share < 0.9 else size_max
                    end = min(last, first + max(room, 1) - 1)
                    if bundle and (share >= 0.9 or len(bundle) >= TASK_RANGES):
                        tasks.append(bundle)
                        bundle, share = [], 0.0
                    after, upto = Position(ledger, first - 1), Position(ledger, end)
                    bundle.append(LogRange(cluster, topic, number, after, upto, standing.copied_upto))
                    share += (end - first + 1) / size_max
                    first, number = end + 1, number + 1
    return [*tasks, bundle] if bundle else tasks


class LocalComparison:
    """Comparison in this process, in memory: for logs that are read in a moment."""

    def __init__(self, progress: Progress = no_progress) -> None:
        self._progress = progress

    def compare(
        self, tasks: Sequence[Sequence[LogRange]], scope: Scope, selection: Selection, write_to: Path | None
    ) -> list[Tally]:
        tallies: dict[tuple[Any, ...], Tally] = {}
        found = list(self._found(tasks, scope, selection))
        for each in found:
            add_found(tallies, each)
        if write_to is not None:
            write_to.mkdir(parents=True, exist_ok=True)
            differences = dict.fromkeys(each for each in found if not each.kind.startswith(_SPECIAL))
            rows = [asdict(each) for each in differences]
            table = pa.Table.from_pylist(rows, schema=DIFFERENCE_COLUMNS)
            pq.write_table(table, write_to / "part-00000.parquet")
        return list(tallies.values())

    def reordered(
        self, tasks: Sequence[Sequence[LogRange]], scope: Scope, selection: Selection, suspect: set[tuple[int, int]]
    ) -> list[FindingRow]:
        copies = [
            order.first_copies(cells, len(scope.clusters), suspect) for cells in self._cells(tasks, scope, selection)
        ]
        log = pa.Table.from_batches(copies, schema=order.COPIES)
        log = log.sort_by([(name, "ascending") for name in (*order.LOG_KEY, "ledger", "entry")])
        return list(order.order_violations([log], tuple(topic.name for topic in scope.topics), scope.clusters))

    def _found(self, tasks: Sequence[Sequence[LogRange]], scope: Scope, selection: Selection) -> Iterator[FindingRow]:
        read = read_entries(scope)
        for cells in self._cells(tasks, scope, selection):
            yield from compare(cells, scope, read)

    def _cells(self, tasks: Sequence[Sequence[LogRange]], scope: Scope, selection: Selection) -> Iterator[pa.Table]:
        """Read the ranges of all tasks with several threads, and return the pieces sorted by cell and start.

        All pieces of one cell are in one table.
        """
        ranges = [each for task in tasks for each in task]
        bundles = [ranges[start : start + READ_TOGETHER] for start in range(0, len(ranges), READ_TOGETHER)]
        pieces: list[pa.RecordBatch] = []
        with ThreadPoolExecutor(READERS, thread_name_prefix="verify") as pool:
            for number, batches in enumerate(
                pool.map(lambda bundle: list(read_pieces(bundle, scope, selection)), bundles), 1
            ):
                pieces += batches
                self._progress("ranges of logs", min(number * READ_TOGETHER, len(ranges)), len(ranges))
        table = pa.Table.from_batches(pieces, schema=PIECES)
        table = table.sort_by([(name, "ascending") for name in (*CELL_KEY, "start")])
        return whole_cells(table.to_batches(max_chunksize=BATCH_ROWS))


class SparkComparison:
    """Comparison on a Spark session. Values that all tasks need go to each executor once."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def compare(
        self, tasks: Sequence[Sequence[LogRange]], scope: Scope, selection: Selection, write_to: Path | None
    ) -> list[Tally]:
        from pyspark.errors import PySparkException

        shared = self._spark.sparkContext.broadcast(pickle.dumps(scope))

        def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            of_task: Scope = pickle.loads(shared.value)  # nosec B301
            read = read_entries(of_task)
            for cells in whole_cells(batches):
                yield findings_table(compare(cells, of_task, read))

        found = _in_arrow(self._cells(tasks, scope, selection), find, FINDINGS)
        try:
            if write_to is not None:
                found = found.persist()
                differences = found.where(~found["kind"].startswith(_SPECIAL)).select(*DIFFERENCE_COLUMNS.names)
                differences.dropDuplicates().write.mode("overwrite").parquet(str(write_to))
            return self._tallied(found)
        except PySparkException as error:
            raise error_of_job(error, PeerUnavailable, BlockUnreadable, UnexpectedAnswer) from None
        finally:
            if write_to is not None:
                found.unpersist()
            shared.unpersist()

    def reordered(
        self, tasks: Sequence[Sequence[LogRange]], scope: Scope, selection: Selection, suspect: set[tuple[int, int]]
    ) -> list[FindingRow]:
        clusters, topics = scope.clusters, tuple(topic.name for topic in scope.topics)

        def copies(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            for cells in whole_cells(batches):
                yield order.first_copies(cells, len(clusters), suspect)

        def find(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            tables = (pa.Table.from_batches([batch]) for batch in batches)
            yield findings_table(order.order_violations(tables, topics, clusters))

        logs = _in_arrow(self._cells(tasks, scope, selection), copies, order.COPIES)
        sorted_logs = logs.repartition(*order.LOG_KEY).sortWithinPartitions(*order.LOG_KEY, "ledger", "entry")
        return [FindingRow(**row.asDict()) for row in _in_arrow(sorted_logs, find, FINDINGS).collect()]

    def _cells(self, tasks: Sequence[Sequence[LogRange]], scope: Scope, selection: Selection) -> DataFrame:
        """Read the ranges of all tasks with Spark, and return the pieces sorted by cell and start.

        All pieces of one cell are in one partition.
        """
        shared = self._spark.sparkContext.broadcast(pickle.dumps((list(map(tuple, tasks)), scope.names_only())))

        def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            planned, names = pickle.loads(shared.value)  # nosec B301
            for batch in batches:
                for number in batch.column(0).to_pylist():
                    yield from read_pieces(planned[number], names, selection)

        count = max(len(tasks), 1)
        pieces = _in_arrow(self._spark.range(0, len(tasks), 1, count), read, PIECES)
        entries = sum(standing.entries for topic in scope.topics for standing in topic.standings.values())
        keys: list[Any] = list(CELL_KEY)
        if entries > SORT_ENTRIES:
            keys.insert(0, -(-entries // SORT_ENTRIES) + 1)
        return pieces.repartition(*keys).sortWithinPartitions(*CELL_KEY, "start")

    def _tallied(self, found: DataFrame) -> list[Tally]:
        from pyspark.sql import functions as F  # noqa: N812 - as all of Spark's users write it

        note: Column = F.when(F.col("kind").isin(*_EACH), F.to_json(F.struct(*FINDINGS.names)))
        grouped = found.withColumn("note", note).groupBy("kind", "topic", "cluster", "other", "note")
        rows = grouped.agg(
            F.sum("count").alias("count"),
            F.collect_list(F.when(F.col("shown"), F.col("detail"))).alias("examples"),
        )
        tallies: dict[tuple[Any, ...], Tally] = {}
        for row in rows.collect():
            tally = _tally(tallies, row["kind"], row["topic"], row["cluster"], row["other"])
            tally.count += row["count"]
            tally.examples += row["examples"]
            if row["note"] is not None:
                tally.notes.append(FindingRow(**json.loads(row["note"])))
        return list(tallies.values())


def _tally(tallies: dict[tuple[Any, ...], Tally], *key: Any) -> Tally:
    if key not in tallies:
        tallies[key] = Tally(*key)
    return tallies[key]


def add_found(tallies: dict[tuple[Any, ...], Tally], found: FindingRow) -> None:
    """Add a finding to the tally of its kind, topic and two clusters; make the tally if there is none."""
    tally = _tally(tallies, found.kind, found.topic, found.cluster, found.other)
    tally.count += found.count
    if found.shown and found.detail is not None:
        tally.examples.append(found.detail)
    if found.kind in _EACH:
        tally.notes.append(found)


_TYPES: Final = {
    pa.string(): "string",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.bool_(): "boolean",
    pa.binary(): "binary",
}


def _in_arrow(
    frame: DataFrame, function: Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: pa.Schema
) -> DataFrame:
    from replicator.pipeline.spark.session import without_pandas_warning

    with without_pandas_warning():
        return frame.mapInArrow(function, _ddl(schema))


def _ddl(schema: pa.Schema) -> str:
    return ", ".join(f"`{field.name}` {_TYPES[field.type]}" for field in schema)
