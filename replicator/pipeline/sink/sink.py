"""Sink ``write.format("replicator")`` and ``writeStream``: rows of a query become messages of topics, exactly once.

The guarantee rests on the worker (:mod:`replicator.engine.staging.core`). This is Spark's part:

1. A task stages its messages under a name of its own, an attempt, and seals it. Nothing is visible. Attempts that
   fail, are repeated, or run twice by speculation stay apart from each other.
2. Spark hands the messages of the attempts that count to the driver, which commits them under (writer, run, epoch):
   for a stream the query's id and its batch, for a batch job its ``run``. A repeated commit does nothing.
3. All tasks of one try at an epoch are a *job*, whose name begins those of its attempts. An abort ends the job for
   good: a task that continues after it is refused, and a driver that tries the epoch again begins another job.
4. A stream with a named ``writer`` and rows with their origins uses the writer's marks at the destination: without its
   checkpoint it begins anew, and leaves out messages that are published (:mod:`.source_marks`).
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from replicator.engine.staging.values import AttemptKey, CommitRequest, EpochKey, Origin, Receipt, SourceMark
from replicator.pipeline.errors import BadOption, OldCheckpoint, PipelineError
from replicator.pipeline.sink.options import SinkColumns, SinkOptions
from replicator.pipeline.sink.source_marks import SourceMarks, merged
from replicator.pipeline.sink.staged_batches import StagedBatches, messages_only
from replicator.pipeline.sink.staging_client import CommitResult, StagingClient

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Spark's properties for the tasks of a stream. The query's id is kept in its checkpoint."""
_ATTEMPT_DIGITS: Final = 16
"""Length of an attempt's own part of its name, behind its job's. The whole name must fit into a file's name."""
_NAMELESS: Final = "job-"
"""Prefix of the writer name of a batch job without one. Names that users choose may begin with it, too."""
ABORT_SECONDS_MAX: Final = 5
"""Longest wait of an abort for a worker that is away."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Staged(WriterCommitMessage):  # type: ignore[misc]  # pyspark has no types
    """Result of one task. With ``done`` its epoch was published before, so it staged nothing.

    ``base`` is the number of the writer's commits when the task began; None if the task did not use the writer's marks.
    """

    key: EpochKey
    receipt: Receipt
    job: str
    done: bool = False
    base: int | None = None
    marks: Mapping[Origin, SourceMark] = field(default_factory=dict)
    topics: Mapping[str, int] = field(default_factory=dict)
    """Messages by topic."""
    left_out: int = 0
    """Number of rows that were left out: published before, or markers."""


class BatchWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Writer of a batch job. It is made once for a job; tasks and driver have copies."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        self._job = job = uuid.uuid4().hex
        self._key = EpochKey(options.writer or f"{_NAMELESS}{job}", options.run or f"run-{job}", 0)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return stage(self._options, self._columns, self._key, self._job, iterator, marked=False)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        commit(self._options, [message for message in messages if message is not None])

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        abort(self._options, self._key, job=self._job)


class StreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Writer of a stream. It is made anew for each micro-batch and for its commit: a task's knowledge comes with its
    message."""

    def __init__(self, options: SinkOptions, columns: SinkColumns) -> None:
        self._options = options
        self._columns = columns
        self._job = uuid.uuid4().hex

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = TaskContext.get()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if not query or not batch:
            raise PipelineError(
                f"Spark did not tell a task of the stream for which query and batch it writes ({QUERY_ID}, "
                f"{BATCH_ID}), so it wrote nothing: start the stream by writeStream, with a version of Spark that "
                "the extra replicator[spark] allows"
            )
        key = EpochKey(self._options.writer or f"query-{query}", self._options.run or query, int(batch))
        marked = self._columns.origins and self._options.writer is not None
        return stage(self._options, self._columns, key, self._job, iterator, marked=marked)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        commit(self._options, [message for message in messages if message is not None])

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        for key, job in {(message.key, message.job) for message in messages if message is not None}:
            abort(self._options, key, job=job)


def batch_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> BatchWriter:
    """Return the writer of ``df.write``. Raises :class:`BadOption`."""
    if overwrite:
        raise BadOption("mode", "topics are appended to: write with mode('append')")
    parsed = SinkOptions.parse(options)
    return BatchWriter(parsed, SinkColumns.of(schema, parsed))


def stream_writer(options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> StreamWriter:
    """Return the writer of ``df.writeStream``. Raises :class:`BadOption`."""
    if overwrite:
        raise BadOption("outputMode", "topics are appended to: write with outputMode('append') or 'update'")
    parsed = SinkOptions.parse(options)
    if parsed.run is not None:
        raise BadOption("run", "belongs to df.write: runs of a stream are told apart by the query's id")
    return StreamWriter(parsed, SinkColumns.of(schema, parsed))


def stage(
    options: SinkOptions,
    columns: SinkColumns,
    epoch: EpochKey,
    job: str,
    batches: Iterator[pa.RecordBatch],
    *,
    marked: bool,
) -> Staged:
    """Stage the rows of one task of a job. With ``marked``, rows that the writer has published before are left out.

    Raises :class:`OldCheckpoint` if Spark plans a published batch anew, with other rows.
    """
    context = TaskContext.get()
    partition = 0 if context is None else context.partitionId()
    key = AttemptKey(epoch, partition, f"{job}.{uuid.uuid4().hex[:_ATTEMPT_DIGITS]}")
    with StagingClient(options.url, wait_seconds=options.wait_seconds) as client:
        opened = client.open(key, marks=marked)
        marks = SourceMarks(opened.marks) if marked else None
        if opened.done:
            if opened.epoch > epoch.epoch:
                # Spark repeats a query's last batch and no earlier one.
                raise OldCheckpoint(epoch.writer, epoch.epoch, f"so are later ones up to {opened.epoch}")
            if marks is not None:
                _check_published(epoch, columns, marks, batches)
            return Staged(epoch, Receipt(partition, key.attempt, 0, 0, 0), job, done=True)
        made = StagedBatches(
            options,
            columns,
            producer=f"{epoch.writer}-{partition}",
            sequence_from=opened.sequence_from,
            turn=partition,
            partitions_of=client.topics,
            wall_clock_ms=lambda: time.time_ns() // 1_000_000,
            marks=marks,
        )
        try:
            at = 0
            for body in _bodies(made, batches):
                client.append(key, at, body)
                at += len(body)
            client.seal(key, at)
        except BaseException:
            abort(options, epoch, attempts=[key.attempt])
            raise
    receipt = Receipt(partition, key.attempt, at, made.entries, made.messages, made.sequence_last)
    return Staged(
        epoch,
        receipt,
        job,
        base=opened.commits if marked else None,
        marks={} if marks is None else marks.reached,
        topics=made.topics,
        left_out=made.left_out,
    )


def commit(options: SinkOptions, staged: Sequence[Staged]) -> CommitResult | None:
    """Publish the staged messages of an epoch; return None if there is nothing to do."""
    written = [each for each in staged if not each.done]
    if not written:
        return None
    key = written[0].key
    request = CommitRequest(
        key=key,
        receipts=[each.receipt for each in written],
        marks=merged([each.marks for each in written]),
        base=min((each.base for each in written if each.base is not None), default=None),
        kept=options.writer is not None or not key.writer.startswith(_NAMELESS),
    )
    topics = sorted({topic for each in written for topic in each.topics})
    with StagingClient(options.url, wait_seconds=options.wait_seconds) as client:
        published = client.commit(request, topics)
    log.info(
        "writer %s run %s epoch %d: %s %d messages in %d entries, %d bytes, to %d topics; %d rows left out",
        *key,
        "published before:" if published.repeated else "published",
        published.messages,
        published.entries,
        published.bytes,
        len(topics),
        sum(each.left_out for each in written),
    )
    return published


def abort(options: SinkOptions, key: EpochKey, *, job: str | None = None, attempts: Sequence[str] = ()) -> None:
    """End a job of an epoch, or the given attempts. It raises nothing: the rest is swept later, and the user must see
    the first error."""
    with StagingClient(options.url, wait_seconds=ABORT_SECONDS_MAX) as client, contextlib.suppress(PipelineError):
        client.abort(key, job=job, attempts=attempts)


def _check_published(
    epoch: EpochKey, columns: SinkColumns, marks: SourceMarks, batches: Iterator[pa.RecordBatch]
) -> None:
    """Raise :class:`OldCheckpoint` if a published batch has rows that are not published by the marks."""
    for batch in batches:
        marks.unpublished(messages_only(batch) if columns.kind else batch)
        if marks.reached:
            raise OldCheckpoint(epoch.writer, epoch.epoch, "it had other rows then")


def _bodies(made: StagedBatches, batches: Iterator[pa.RecordBatch]) -> Iterator[bytes]:
    for batch in batches:
        yield from made.add(batch)
    yield from made.flush()
