"""Live copy by real Spark while parts of it are killed, deleted and restarted: once, and in order, in each case.

The engines and the workers' paths are in this process, Spark's driver is the shared session; one test has a driver of
its own, to kill it. What must hold is always the same: the destination's log is the source's, by identity.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import link_support
import pytest
from engine_support import TOPIC, eventually, logged
from link_support import Web, link_of, web

from replicator.engine.engine import Engine
from replicator.links import plans, transfer
from replicator.pipeline.live import driver as live
from replicator.pipeline.spark.session import DAEMON_MODULE
from replicator.topology import SPARK
from replicator.topology import Link as LinkSpec

A_TO_B = LinkSpec("a", "b")
BATCH_SECONDS = 0.5
SECONDS_MAX = 240.0
AHEAD_MAX = 1_000
"""Limit of entries that are published and have not arrived yet."""
"""Spark's first job takes seconds; a driver that starts on a busy machine takes a minute and more."""
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "RETRY_SECONDS_MAX", 0.1)
    monkeypatch.setattr(live, "POLL_SECONDS", 0.1)
    listed = link_support.Plans.pipeline

    def pipeline(self: link_support.Plans) -> dict[str, object]:
        return {"cluster": "a", "master": "local[2]", "batch_seconds": BATCH_SECONDS, "conf": {}, **listed(self)}

    monkeypatch.setattr(link_support.Plans, "pipeline", pipeline)


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    directory = tmp_path / "scratch"
    directory.mkdir()
    return directory


class Load:
    """Publishes at ``a`` until it is stopped, and compares."""

    def __init__(self, made: Web) -> None:
        self._made = made
        self._stopping = False
        self._task = asyncio.create_task(self._publish())
        self.published = 0

    async def _publish(self) -> None:
        """Publish with a bound: Spark takes its time to start, and all that it finds then is copied and counted."""
        while not self._stopping:
            while self.published - self._there() > AHEAD_MAX and not self._stopping:  # noqa: ASYNC110 - it is counted
                await asyncio.sleep(0.1)
            await self._made.publish("a", self.published, 6)
            self.published += 6
            await asyncio.sleep(0.005)

    def _there(self) -> int:
        """Return the number of arrived messages without reading them; works while the destination is closed, too."""
        topic = self._made.engines["b"].find(TOPIC)
        return 0 if topic is None else topic.log.messages

    def arrived(self) -> int:
        return len(self._made.entries("b", "a"))

    async def more(self, count: int = 60) -> None:
        """Wait until ``count`` more entries than now have arrived at ``b``."""
        wanted = self.arrived() + count
        await eventually(lambda: self.arrived() >= wanted, f"{count} more", SECONDS_MAX)

    async def stop(self) -> None:
        self._stopping = True
        await self._task

    async def check(self) -> None:
        await self.stop()
        await eventually(lambda: self.arrived() >= self.published, "all that was published", SECONDS_MAX)
        here, there = (self._made.engines[cluster].find(TOPIC) for cluster in "ab")
        assert here is not None
        assert there is not None
        assert logged(there) == logged(here)


@asynccontextmanager
async def clusters(path: Path) -> AsyncIterator[Web]:
    async with web(path, [A_TO_B], engine=SPARK) as made:
        await made.carriers["a>b"].stop()
        yield made


@asynccontextmanager
async def copying(spark: Any, made: Web, scratch: Path) -> AsyncIterator[live.LiveCopy]:
    """A driver in this process, in the shared session. ``scratch`` is a directory."""
    driver = live.LiveCopy(spark, f"http://{made.servers['a'].address}", 1, scratch)
    ended = threading.Event()
    running = asyncio.create_task(in_session(spark, driver.run, ended))
    try:
        yield driver
    finally:
        ended.set()
        await running
        await asyncio.to_thread(driver.close)


async def in_session(spark: Any, function: Callable[..., Any], *arguments: Any) -> Any:
    """Call it in a thread of its own, in which the session is the active one: Spark looks sources up there."""

    def call() -> Any:
        spark.createDataFrame([], "nothing int")
        return function(*arguments)

    return await asyncio.to_thread(call)


def copy_while_written(directory: Path, to: Path) -> None:
    """Copy a checkpoint while its files come and go."""
    with contextlib.suppress(shutil.Error):
        shutil.copytree(directory, to)


def python_workers(spark: Any) -> list[int]:
    """The processes in which the session's tasks run."""
    jvm = spark.sparkContext._gateway.proc.pid
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes()
                lineage = [parent_of(int(entry.name))]
                lineage.append(parent_of(lineage[-1]))
            except (OSError, ValueError):
                continue
            if f"{DAEMON_MODULE}\0pyspark.worker".encode() in command and jvm in lineage[1:]:
                found.append(int(entry.name))
    return found


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_lanes_go_on_between_batches_and_are_relieved(
    tmp_path: Path, scratch: Path, spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A task that a busy machine does not let run for five seconds is no lost one: lanes would rightly be dealt anew.
    monkeypatch.setattr(plans, "LANE_SILENCE_SECONDS", SECONDS_MAX)

    async def main() -> None:
        async with clusters(tmp_path) as made:
            link = made.links["a>b"]
            async with copying(spark, made, scratch):
                load = Load(made)
                await load.more()
                first = link.planner._plan.number
                await eventually(lambda: (link.planner._plan.number or 0) > first + 2, "batches", SECONDS_MAX)
                assert link.planner._plan.before == link.planner._plan.number - 1, "no lane was dealt anew"
                await load.check()
                # A lane reports with its next question, after the blocks have arrived.
                await eventually(lambda: link.figures.entries >= load.published, "the last report", SECONDS_MAX)
            assert link.figures.entries == load.published

    asyncio.run(main())


def test_python_workers_that_are_killed_in_a_task_lose_and_repeat_nothing(
    spark: Any, tmp_path: Path, scratch: Path
) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as made, copying(spark, made, scratch):
            load = Load(made)
            for _ in range(2):
                await load.more()
                await eventually(lambda: python_workers(spark), "tasks", SECONDS_MAX)
                for pid in python_workers(spark):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            await load.more()
            await load.check()

    asyncio.run(main())


def test_checkpoints_that_are_deleted_or_old_lose_and_repeat_nothing(spark: Any, tmp_path: Path, scratch: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as made:
            load = Load(made)
            kept = tmp_path / "kept"
            async with copying(spark, made, scratch) as driver:
                await load.more()
                (checkpoint,) = scratch.iterdir()  # noqa: ASYNC240 - of a local file system
                query = driver._queries["a>b"]
                await asyncio.to_thread(copy_while_written, checkpoint, kept)
                shutil.rmtree(checkpoint, ignore_errors=True)
                await eventually(lambda: driver._queries.get("a>b") not in (None, query), "another", SECONDS_MAX)
                await load.more()
            driver = live.LiveCopy(spark, f"http://{made.servers['a'].address}", 1, scratch)
            listed = {**made.links["a>b"].planned(), "batch_seconds": BATCH_SECONDS}
            query = await in_session(spark, driver._query, listed, kept.as_uri())
            try:
                await load.more()
                assert query.isActive
                await load.check()
            finally:
                await asyncio.to_thread(query.stop)

    asyncio.run(main())


def test_a_destination_that_is_restarted_gets_everything_once(spark: Any, tmp_path: Path, scratch: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as made, copying(spark, made, scratch):
            load = Load(made)
            for _ in range(2):
                await load.more()
                await made.servers["b"].stop()
                await made.engines["b"].close()
                await asyncio.sleep(BATCH_SECONDS)
                made.engines["b"] = made.servers["b"].engine = await Engine.open(tmp_path / "b", cluster="b")
                await made.servers["b"].start()
            await load.more()
            await load.check()
            await made.engines["b"].close()

    asyncio.run(main())


def test_a_source_that_is_restarted_is_copied_on(spark: Any, tmp_path: Path, scratch: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as made, copying(spark, made, scratch):
            load = Load(made)
            await load.more()
            await load.stop()
            published = load.published
            await made.links["a>b"].stop()
            await made.servers["a"].stop()
            await made.engines["a"].close()
            made.engines["a"] = made.servers["a"].engine = await Engine.open(tmp_path / "a", cluster="a")
            made.links["a>b"] = link_of(made, A_TO_B)
            await made.servers["a"].start()
            made.links["a>b"].start()
            load = Load(made)
            load.published = published
            await load.more()
            await load.check()
            await made.links["a>b"].stop()
            await made.engines["a"].close()

    asyncio.run(main())


async def started(worker_url: str) -> asyncio.subprocess.Process:
    """A driver that ends when its input is closed."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "replicator.pipeline.live.driver", "--worker", worker_url),
        stdin=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def test_a_driver_that_is_killed_within_a_batch_is_started_again_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kill takes its JVM, too; the Python processes of its tasks live on for a moment."""
    # Nobody tells the link that it was killed, as a worker would: only its silence does.
    monkeypatch.setitem(plans.CARRIER_SILENCE_SECONDS, plans.LIVE, 2 * plans.LANE_SILENCE_SECONDS)

    async def main() -> None:
        async with clusters(tmp_path) as made:
            url = f"http://{made.servers['a'].address}"
            load = Load(made)
            killed = await started(url)
            try:
                await load.more(120)
            finally:
                killed.kill()
                await killed.wait()
            driver = await started(url)
            assert driver.stdin is not None
            assert driver.stderr is not None
            try:
                await load.more(120)
                await load.check()
            finally:
                driver.stdin.close()
                said = await driver.stderr.read()
                status = await driver.wait()
            assert status == 0, said
            # Spark's own process that asks the source for offsets may be ended while it waits for its next question.
            tracebacks = said.split(b"Traceback")[1:]
            assert all(b"python_streaming_source_runner" in each for each in tracebacks), said

    asyncio.run(main())
