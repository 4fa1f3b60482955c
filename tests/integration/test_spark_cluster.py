"""The pipeline on a standalone cluster whose nodes have nothing of ours: what runs there was shipped.

One short test for every day; with SOAK set also verify, executors that die, zip archives, and memory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_cluster import SparkCluster, run_driver, spark_cluster
from wire_worker import WireWorker, batch_entry

FLIGHTS = "persistent://public/default/flights"
soak = pytest.mark.skipif(not os.environ.get("SOAK"), reason="minutes; set SOAK to run it")

PRELUDE = """
import json, sys
from replicator.pipeline.session import spark_session
master, archive, *arguments = sys.argv[1:]
spark = spark_session(
    master,
    conf={
        "spark.archives": archive + "#replicator_env",
        "spark.driver.host": "127.0.0.1",
        "spark.executor.memory": "512m",
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


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[SparkCluster]:
    with spark_cluster(tmp_path / "spark") as cluster:
        yield cluster


@pytest.fixture
def worker() -> Iterator[WireWorker]:
    with WireWorker("us-east") as worker:
        yield worker


def drive(cluster: SparkCluster, archive: Path, script: str, *arguments: str) -> Any:
    """What a driver of its own printed last, which is JSON."""
    answer = run_driver(PRELUDE + script, cluster.master, str(archive), *arguments)
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
