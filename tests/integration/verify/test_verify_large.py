"""Verify where there is more to compare than the driver has memory: only for `make soak`, it takes a minute."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

MESSAGES = 8_000_000
DRIVER_MEMORY_MIB = 512
"""Spark starts with no less."""
TASK_MEMORY_MIB = 300
"""Memory limit of one process that reads and compares: a page of blocks, its results, and a Python with Arrow."""
DRIVER = """
import json, sys, threading
import psutil
from bench.verify import LINKS, TOPIC
from replicator.pipeline.spark.session import spark_session
from replicator.pipeline.verify.verify import VerifySettings, verify

peaks, done = {"java": 0, "python": 0, "driver": 0}, threading.Event()

def watch():
    here = psutil.Process()
    while not done.wait(0.05):
        for process in [here, *here.children(recursive=True)]:
            try:
                kind = "driver" if process == here else "java" if "java" in process.name() else "python"
                peaks[kind] = max(peaks[kind], process.memory_info().rss >> 20)
            except psutil.Error:
                pass

watching = threading.Thread(target=watch)
watching.start()
spark = spark_session(conf={"spark.driver.memory": sys.argv[1]})
report = verify(spark, json.loads(sys.argv[2]), LINKS, [TOPIC], settings=VerifySettings(settle_seconds=0))
spark.stop()
done.set()
watching.join()
print(json.dumps([report.as_json(), peaks]))
"""


@pytest.mark.skipif("SOAK" not in os.environ, reason="takes a minute; make soak runs it")
def test_logs_larger_than_the_drivers_memory_are_compared_in_bounded_memory(tmp_path: Path) -> None:
    from bench.clusters import DESTINATION, SOURCE, TwoClusters
    from bench.verify import write_logs

    async def main() -> tuple[dict[str, int], dict[str, int]]:
        async with TwoClusters(tmp_path) as clusters:
            await write_logs(clusters.data(SOURCE), clusters.data(DESTINATION), MESSAGES)
            await clusters.start(SOURCE, DESTINATION)
            urls = json.dumps({name: clusters.url(name) for name in (SOURCE, DESTINATION)})
            command = [sys.executable, "-c", DRIVER, f"{DRIVER_MEMORY_MIB}m", urls]
            done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr[-2000:]
            report, peaks_mib = json.loads(done.stdout.splitlines()[-1])
            return report, peaks_mib

    tmp_path.chmod(0o755)
    report, peaks_mib = asyncio.run(main())
    assert report["messages"] == MESSAGES
    assert report["missing"] == report["corrupted"] == 0
    assert peaks_mib["java"] < DRIVER_MEMORY_MIB + 400, "the heap, and what a JVM needs beside it"
    assert peaks_mib["python"] < TASK_MEMORY_MIB
    assert peaks_mib["driver"] < TASK_MEMORY_MIB
