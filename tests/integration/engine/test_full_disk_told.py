"""While a worker on a full disk refuses messages, all that tells of it says so: what refuses is what reports."""

from __future__ import annotations

import io
import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from asynchronous import asynchronous
from engine_support import TOPIC, message
from failover_support import free_ports
from monitoring_support import fires
from rich.console import Console
from small_disk import Disk, small_disk

from replicator.engine.errors import StoreFull
from replicator.engine.topic import Topic
from replicator.operating.status import look
from replicator.topology import Topology, load_topology
from replicator.worker.starting import start_worker
from replicator.worker.worker import Worker

KIB, MIB = 1024, 1024 * 1024
SIZES = (10, 300 * KIB, 3 * MIB)
NOBODY: set[str] = set()
ALL = {"the metric", "the alert", "/readyz", "the status", "the table"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk("tmpfs", tmp_path) as made:
        yield made


@asynccontextmanager
async def worker_on(disk: Disk, database: str, segment: str) -> AsyncIterator[tuple[Topology, Worker]]:
    file = disk.path.parent / "topology.yaml"
    file.write_text(
        f"clusters:\n  solo: {{address: '127.0.0.1:{free_ports(1)[0]}', data: {disk.path}, database: '{database}'}}\n"
        f"pipeline: {{engine: embedded}}\nstore: {{segment: {segment}}}\n"
    )
    topology = load_topology(file)
    worker = await start_worker(topology, "solo")
    try:
        yield topology, worker
    finally:
        await worker.stop()


async def told_by(topology: Topology) -> set[str]:
    """Return who says that messages are refused."""
    url = f"http://{topology.cluster('solo').address}"
    async with aiohttp.ClientSession() as session:

        async def asked(path: str) -> str:
            async with session.get(url + path) as answer:
                return await answer.text()

        scraped, ready = await asked("/metrics"), json.loads(await asked("/readyz"))
    answers, shown = await look(topology)
    console = Console(file=io.StringIO(), width=200, record=True)
    console.print(shown)
    says = {
        "the metric": '\nreplicator_store_disk_full{cluster="solo"} 1.0\n' in scraped,
        "the alert": fires("ReplicatorDiskFull", scraped),
        "/readyz": "full" in ready,
        "the status": answers["solo"]["store"]["full"] is not None,
        "the table": "takes no messages: the disk below" in " ".join(console.export_text().split()),
    }
    return {name for name, holds in says.items() if holds}


async def refused(topic: Topic) -> set[int]:
    """Return the sizes of messages that the store refuses."""
    found = set()
    for size in SIZES:
        try:
            await topic.publish([message(os.urandom(size))])
        except StoreFull:
            found.add(size)
    return found


@pytest.mark.parametrize("segment", ["0", "8MiB"], ids=["bodies in the table", "bodies in segments"])
@asynchronous
async def test_metric_alert_readiness_status_and_its_table_say_that_messages_are_refused_exactly_while_they_are(
    disk: Disk, postgres_url: str, segment: str
) -> None:
    some = False
    async with worker_on(disk, postgres_url, segment) as (topology, worker):
        topic = await worker.parts.engine.topic(TOPIC)
        assert await refused(topic) == set()
        assert await told_by(topology) == NOBODY
        for free in (16 * MIB, 13 * MIB, 12 * MIB, 11 * MIB, 9 * MIB, 7 * MIB, 0):
            disk.leave(free)
            sizes = await refused(topic)
            some |= 0 < len(sizes) < len(SIZES)
            told = await told_by(topology)
            assert told == (ALL if sizes else NOBODY), (free, sizes)
        assert sizes == set(SIZES)
        assert some, "only large ones were refused at some time"
        disk.make_room()
        assert await told_by(topology) == NOBODY, "nobody has to publish for that"
        assert await refused(topic) == set()
        assert await told_by(topology) == NOBODY
