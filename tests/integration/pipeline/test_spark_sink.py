"""The sink in a real Spark session, writing to a real staging area over real HTTP: exactly once, whatever happens."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import staging_child
from engine_support import opened
from spark_cluster import run_driver
from staging_support import StagingWorker, metadata_in, payloads_of

from replicator.engine.staging import area
from replicator.engine.staging.core import StagingLimits
from replicator.engine.staging.values import EpochKey
from replicator.metadata.metadata_pb2 import ZSTD
from replicator.pipeline.errors import WriteRefused
from replicator.pipeline.sink import sink
from replicator.pipeline.sink.options import SinkColumns, SinkOptions
from replicator.pipeline.sink.sink import BatchWriter, Staged

OUT = "persistent://public/default/out"
EPOCH = EpochKey("w", "r", 0)


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[StagingWorker]:
    with StagingWorker(tmp_path / "data") as worker:
        yield worker


def writing(frame: Any, worker: StagingWorker, **options: Any) -> Any:
    return frame.write.format("replicator").mode("append").options(url=worker.url, **{"topic": "out"} | options)


def numbers(spark: Any, count: int, partitions: int = 2) -> Any:
    return spark.range(0, count, 1, partitions).selectExpr("cast(id as string) as payload")


def options_of(url: str, **options: str) -> tuple[SinkOptions, SinkColumns]:
    from pyspark.sql.types import StringType, StructType

    parsed = SinkOptions.parse({"url": url, "topic": "out"} | options)
    return parsed, SinkColumns.of(StructType().add("payload", StringType()), parsed)


def staged(url: str, payloads: list[bytes], epoch: EpochKey = EPOCH, **options: str) -> Staged:
    """Stage a batch as a task does, without Spark."""
    batch = pa.record_batch({"payload": pa.array([payload.decode() for payload in payloads])})
    return sink.stage(*options_of(url, **options), epoch, "job", iter([batch]), marked=False)


# Batch jobs.


def test_rows_become_messages_with_their_keys_properties_and_times(spark: Any, worker: StagingWorker) -> None:
    rows = spark.sql(
        "select 'a' as value, 'k1' as key, map('x', '1', 'y', '2') as properties,"
        " timestamp'2024-01-01 00:00:00' as event_time, 'other' as topic"
        " union all select null, null, null, null, 'out'"
    ).coalesce(1)
    rows.write.format("replicator").mode("append").options(url=worker.url, compression="zstd").save()
    read = spark.read.format("replicator").options(url=worker.url).load().orderBy("topic").collect()
    assert [(row.topic, row.key, row.properties, row.payload) for row in read] == [
        ("persistent://public/default/other", "k1", {"x": "1", "y": "2"}, bytearray(b"a")),
        (OUT, None, {}, None),
    ], "a null payload is a tombstone"
    metadata = worker.run(lambda: _metadata(worker, "persistent://public/default/other"))
    assert [each.compression for each in metadata] == [ZSTD]


async def _metadata(worker: StagingWorker, topic: str) -> list[Any]:
    return metadata_in(worker.engine, topic)


def test_a_job_is_published_whole_in_the_order_of_its_partitions(spark: Any, worker: StagingWorker) -> None:
    writing(numbers(spark, 5_000, 4), worker, batch_messages=100).save()
    assert worker.payloads(OUT) == [b"%d" % number for number in range(5_000)]
    assert len(worker.run(lambda: _metadata(worker, OUT))) == 52, "52 = 4 partitions of 12 batches and a short one"
    assert worker.staging.status() | {"writers": []} == worker.staging.status() | {
        "commits": 1,
        "messages": 5_000,
        "staged_bytes": 0,
        "attempts": 0,
        "writers": [],
    }


def test_a_job_that_runs_again_under_its_name_and_run_does_nothing(spark: Any, worker: StagingWorker) -> None:
    for _ in range(2):
        writing(numbers(spark, 10), worker, writer="nightly", run="2026-11-21").save()
    assert len(worker.payloads(OUT)) == 10
    writing(numbers(spark, 10), worker, writer="nightly", run="2026-11-22").save()
    assert len(worker.payloads(OUT)) == 20


def test_a_job_that_fails_leaves_nothing(spark: Any, worker: StagingWorker) -> None:
    failing = numbers(spark, 40_000, 1).selectExpr("if(payload = '39999', raise_error('no'), payload) as payload")
    with pytest.raises(Exception, match="no"):
        writing(failing, worker).save()
    assert worker.payloads(OUT) == []
    assert (worker.staging.core.attempts, worker.staging.core.staged_bytes) == (0, 0)
    assert worker.staging.files.scan() == {}


def test_keys_choose_the_partition_as_clients_do(spark: Any, worker: StagingWorker) -> None:
    worker.run(lambda: worker.engine.partitioned.create(OUT, 3))
    writing(spark.range(300).selectExpr("cast(id as string) payload", "concat('k', id % 7) key"), worker).save()
    parts = [worker.payloads(f"{OUT}-partition-{index}") for index in range(3)]
    assert sum(map(len, parts)) == 300
    from replicator.protocol.key_hashes import java_string_hash

    for index, payloads in enumerate(parts):
        found = [int(payload) for payload in payloads]
        assert {java_string_hash(f"k{number % 7}") % 3 for number in found} <= {index}
        for key in range(7):
            of_key = [number for number in found if number % 7 == key]
            assert of_key == sorted(of_key)


def test_what_is_wrong_with_a_write_is_named_before_anything_is_written(spark: Any, worker: StagingWorker) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException, match="option 'colour': unknown to a write"):
        writing(numbers(spark, 10), worker, colour="red").save()
    with pytest.raises(AnalysisException, match="column 'age' cannot be written: drop it"):
        writing(numbers(spark, 10).selectExpr("payload", "1 as age"), worker).save()
    assert worker.staging.counters.staged_bytes == 0


FAILS_ONCE = """
import os, sys
from replicator.pipeline.spark.session import spark_session
url, marker = sys.argv[1:]
spark = spark_session("local[2,2]")

def fails_once(batches):
    yield from batches
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    raise RuntimeError("the first attempt")

rows = spark.range(0, 100000, 1, 2).selectExpr("rpad(cast(id as string), 100, ' ') as payload")
rows = rows.mapInArrow(fails_once, "payload string")
rows.write.format("replicator").mode("append").options(url=url, topic="out").save()
spark.stop()
"""


def test_a_task_that_fails_when_it_has_staged_and_is_tried_again_writes_once(
    worker: StagingWorker, tmp_path: Path
) -> None:
    """A driver of its own: the session of the tests tries no task again."""
    answer = run_driver(FAILS_ONCE, worker.url, str(tmp_path / "failed"), timeout=300)
    assert answer.returncode == 0, answer.stderr
    assert (tmp_path / "failed").exists()
    assert [int(payload) for payload in worker.payloads(OUT)] == list(range(100_000))
    assert worker.staging.counters.staged_bytes > worker.staging.counters.bytes, "the attempt that failed staged, too"
    assert worker.staging.files.scan() == {}


# Attempts, commits and workers that go.


def test_of_two_attempts_at_a_partition_one_is_published(worker: StagingWorker) -> None:
    """Speculation, and a task that failed after it had staged all: Spark commits one of them."""
    first, again = staged(worker.url, [b"a", b"b"]), staged(worker.url, [b"a", b"b"])
    options, _ = options_of(worker.url)
    published = sink.commit(options, [again])
    assert published is not None
    assert (published.messages, list(published.topics)) == (2, [OUT])
    assert worker.payloads(OUT) == [b"a", b"b"]
    assert worker.staging.files.scan() == {}, "what the other attempt staged is gone"
    late = sink.commit(options, [first])
    assert late is not None
    assert late.repeated
    assert worker.payloads(OUT) == [b"a", b"b"]
    assert staged(worker.url, [b"a", b"b"]).done, "a task that runs later has nothing to do"


def test_files_that_somebody_deleted_are_missed_before_the_decision_and_not_for_ever_after_it(
    worker: StagingWorker,
) -> None:
    options, _ = options_of(worker.url)
    message = staged(worker.url, [b"a"])
    for file in worker.staging.files.path.iterdir():
        file.unlink()
    with pytest.raises(WriteRefused, match="what partition 0 staged is not here any more"):
        sink.commit(options, [message])
    sink.commit(options, [staged(worker.url, [b"a"])])
    assert worker.payloads(OUT) == [b"a"]


def test_a_writer_with_a_name_is_remembered_whatever_the_name(worker: StagingWorker) -> None:
    sink.commit(
        options_of(worker.url, writer="job-nightly")[0],
        [staged(worker.url, [b"a"], EpochKey("job-nightly", "r", 0), writer="job-nightly")],
    )
    options, columns = options_of(worker.url)
    job = BatchWriter(options, columns)
    job.commit([job.write(iter([pa.record_batch({"payload": pa.array(["a"])})]))])
    kept = {name: state.facts.kept for name, state in worker.staging.core.writers.items()}
    assert kept.pop("job-nightly")
    assert [*kept.values()] == [False], "a job without a name is for a day"


def test_an_abort_leaves_nothing_and_spares_what_is_decided(worker: StagingWorker) -> None:
    options, columns = options_of(worker.url)
    job = BatchWriter(options, columns)
    message = job.write(iter([pa.record_batch({"payload": pa.array(["a"])})]))
    assert worker.staging.core.attempts == 1
    job.abort([message, None])
    assert (worker.staging.core.attempts, worker.staging.files.scan()) == (0, {})
    with pytest.raises(WriteRefused, match=r"epoch 0: the job of attempt .* was aborted"):
        job.commit([message])
    assert worker.payloads(OUT) == []


@pytest.mark.parametrize("restarted", [False, True])
def test_a_task_that_goes_on_after_the_abort_is_refused_and_a_new_try_is_not(
    worker: StagingWorker, restarted: bool
) -> None:
    """When a job fails, Spark leaves Python processes behind that have not noticed yet."""
    options, columns = options_of(worker.url, writer="nightly", run="1")
    job = BatchWriter(options, columns)
    begun, aborted = threading.Event(), threading.Event()

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"payload": pa.array(["a"])})
        begun.set()
        assert aborted.wait(60)

    with ThreadPoolExecutor(1) as threads:
        late = threads.submit(job.write, rows())
        assert begun.wait(60)
        job.abort([None])
        if restarted:
            worker.stop()
            worker.start()
        aborted.set()
        with pytest.raises(WriteRefused) as refused:
            late.result(60)
    assert refused.value.code == "AttemptAborted"
    with pytest.raises(WriteRefused, match="was aborted"):
        job.write(iter([]))  # a task of the job that begins only now
    assert (worker.staging.core.attempts, worker.staging.files.scan()) == (0, {})
    again = BatchWriter(options, columns)
    again.commit([again.write(iter([pa.record_batch({"payload": pa.array(["b"])})]))])
    assert worker.payloads(OUT) == [b"b"]


def test_a_worker_that_is_started_anew_has_what_was_staged(worker: StagingWorker) -> None:
    message = staged(worker.url, [b"a", b"b"])
    empty = replace(message, receipt=replace(staged(worker.url, []).receipt, partition=1))
    worker.stop()
    worker.start()
    sink.commit(options_of(worker.url)[0], [message, empty])
    assert worker.payloads(OUT) == [b"a", b"b"]


def test_a_worker_that_is_killed_in_the_middle_of_a_commit_goes_on_where_it_was(tmp_path: Path) -> None:
    """kill -9 after a step of several; the driver waits for the worker to come back, and asks again."""
    expected = [b"%06d" % number + b"x" * 20_000 for number in range(2_000)]

    def said(child: subprocess.Popen[str], word: str) -> str:
        assert child.stdout is not None
        return next(line for line in child.stdout if line.startswith(word))  # it logs as well

    def start(port: int, *arguments: str) -> tuple[subprocess.Popen[str], int]:
        command = [sys.executable, staging_child.__file__, str(tmp_path / "data"), str(port), *arguments]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        return child, int(said(child, "ready").split()[1])

    child, port = start(0, "hold")
    restarted: list[subprocess.Popen[str]] = []
    try:
        url = f"http://127.0.0.1:{port}"
        message = staged(url, expected)

        def kill_and_start_anew() -> None:
            said(child, "step")
            child.kill()
            child.wait()
            restarted.append(start(port)[0])

        killing = threading.Thread(target=kill_and_start_anew)
        killing.start()
        published = sink.commit(options_of(url)[0], [message])
        killing.join()
        assert published is not None
        assert message.receipt.bytes > 3 * area.STEP_BYTES_MAX
    finally:
        for process in (child, *restarted):
            process.kill()
            process.communicate()

    async def read() -> list[bytes]:
        async with opened(tmp_path / "data") as engine:
            return payloads_of(engine, OUT)

    assert asyncio.run(read()) == expected


def test_a_task_waits_for_room_and_then_says_what_for(tmp_path: Path) -> None:
    with StagingWorker(tmp_path, limits=StagingLimits(staged_bytes_max=200_000)) as worker:
        message = staged(worker.url, [b"x" * 150_000])
        with pytest.raises(WriteRefused, match=r"bytes are staged, .* over the limit of 200000.*gave up after 1 s"):
            staged(worker.url, [b"y" * 150_000], EpochKey("v", "r", 0), wait_seconds="1")
        waiting = threading.Thread(target=staged, args=(worker.url, [b"y" * 150_000], EpochKey("v", "r", 0)))
        waiting.start()
        sink.commit(options_of(worker.url)[0], [message])
        waiting.join(20)
        assert not waiting.is_alive(), "a commit makes room"
        assert worker.staging.core.attempts == 1


# Streams.


class Feed:
    """Files of rows as a topic gives them, one for each micro-batch."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir()
        self._files = 0

    def add(self, *places: tuple[int, int, int], origin: str = "eu-west") -> None:
        count = len(places)
        rows = {
            "payload": [b"%d:%d:%d" % place for place in places],
            "origin": [origin] * count,
            "incarnation": pa.array([7] * count, pa.int64()),
            "origin_ledger": pa.array([place[0] for place in places], pa.int64()),
            "origin_entry": pa.array([place[1] for place in places], pa.int64()),
            "batch_index": pa.array([place[2] for place in places], pa.int32()),
        }
        file = self.directory / f"{self._files:04d}.parquet"
        pq.write_table(pa.table(rows), file)
        stamp = 1_700_000_000 + self._files  # Spark reads the oldest first
        os.utime(file, (stamp, stamp))
        self._files += 1


def run_stream(spark: Any, feed: Feed, worker: StagingWorker, checkpoint: Path, **options: str) -> Any:
    schema = "payload binary, origin string, incarnation long, origin_ledger long, origin_entry long, batch_index int"
    rows = spark.readStream.schema(schema).option("maxFilesPerTrigger", 2).parquet(str(feed.directory))
    sinking = rows.writeStream.format("replicator").options(url=worker.url, topic="out", **options)
    query = sinking.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()
    assert query.awaitTermination(60)
    return query


def test_a_stream_goes_on_from_its_checkpoint_and_repeats_nothing(
    spark: Any, worker: StagingWorker, tmp_path: Path
) -> None:
    feed, checkpoint = Feed(tmp_path / "feed"), tmp_path / "checkpoint"
    feed.add((1, 0, 0), (1, 0, 1))
    query = run_stream(spark, feed, worker, checkpoint)
    assert query.lastProgress["sink"]["numOutputRows"] == 2
    feed.add((1, 1, 0))
    run_stream(spark, feed, worker, checkpoint)
    assert worker.payloads(OUT) == [b"1:0:0", b"1:0:1", b"1:1:0"]
    shutil.rmtree(checkpoint / "commits")  # as if the driver had died after the worker published the last batch
    run_stream(spark, feed, worker, checkpoint)
    assert worker.payloads(OUT) == [b"1:0:0", b"1:0:1", b"1:1:0"]
    assert worker.staging.counters.commits == 2


def test_a_stream_with_a_name_that_lost_its_checkpoint_publishes_only_what_is_new(
    spark: Any, worker: StagingWorker, tmp_path: Path
) -> None:
    feed = Feed(tmp_path / "feed")
    feed.add((1, 0, 0), (1, 0, 1))
    feed.add((1, 1, 0), origin="us-east")
    feed.add((1, 2, 0))
    run_stream(spark, feed, worker, tmp_path / "first", writer="orders")
    before = worker.payloads(OUT)
    assert len(before) == 4
    worker.stop()
    worker.start()
    feed.add((1, 2, 1), (2, 0, 0))
    run_stream(spark, feed, worker, tmp_path / "second", writer="orders")
    assert worker.payloads(OUT) == [*before, b"1:2:1", b"2:0:0"]


@pytest.mark.parametrize(("batches", "writer"), [(2, {}), (2, {"writer": "orders"}), (1, {"writer": "orders"})])
def test_a_checkpoint_that_is_older_than_what_was_written_loses_no_rows(
    spark: Any, worker: StagingWorker, tmp_path: Path, batches: int, writer: dict[str, str]
) -> None:
    """Spark numbers batches of other rows by numbers that are published: those must not pass for repetitions."""
    from pyspark.errors import StreamingQueryException

    feed, checkpoint = Feed(tmp_path / "feed"), tmp_path / "checkpoint"
    feed.add((1, 0, 0))
    run_stream(spark, feed, worker, checkpoint, **writer)
    shutil.copytree(checkpoint, tmp_path / "older")
    for batch in range(batches):
        feed.add((1, 1 + batch, 0))
        run_stream(spark, feed, worker, checkpoint, **writer)
    before = worker.payloads(OUT)
    feed.add((1, 9, 0))
    with pytest.raises(StreamingQueryException, match=r"batch 1 is published already, and .* Give it a new checkpoint"):
        run_stream(spark, feed, worker, tmp_path / "older", **writer)
    assert worker.payloads(OUT) == before
    if writer:
        run_stream(spark, feed, worker, tmp_path / "new", **writer)
        assert worker.payloads(OUT) == [*before, b"1:9:0"]


def test_two_queries_of_one_name_are_told_apart(worker: StagingWorker) -> None:
    """Both began before either committed: what the second leaves out would be wrong."""
    from pyspark.sql.types import IntegerType, LongType, StringType, StructType

    schema = StructType().add("payload", StringType())
    schema = schema.add("origin", StringType()).add("incarnation", LongType())
    schema = schema.add("origin_ledger", LongType()).add("origin_entry", LongType()).add("batch_index", IntegerType())
    options = SinkOptions.parse({"url": worker.url, "topic": "out", "writer": "orders"})
    columns = SinkColumns.of(schema, options)

    def batch() -> pa.RecordBatch:
        return pa.record_batch(
            {
                "payload": ["a"],
                "origin": ["eu-west"],
                "incarnation": [7],
                "origin_ledger": [1],
                "origin_entry": [0],
                "batch_index": pa.array([0], pa.int32()),
            }
        )

    one, other = (
        sink.stage(options, columns, EpochKey("orders", run, 0), "job", iter([batch()]), marked=True) for run in "ab"
    )
    sink.commit(options, [one])
    with pytest.raises(WriteRefused, match="is another query running with the same `writer`"):
        sink.commit(options, [other])
    third = sink.stage(options, columns, EpochKey("orders", "b", 1), "job", iter([batch()]), marked=True)
    assert (third.left_out, third.receipt.messages) == (1, 0)
    assert worker.payloads(OUT) == [b"a"]
