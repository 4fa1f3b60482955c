"""While a worker refuses messages because disk or store is full, all that tells of it says so."""

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
OF_DISK = {"the metric of the disk", "the alert of the disk"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk("tmpfs", tmp_path) as made:
        yield made


@asynccontextmanager
async def worker_on(data: Path, database: str, store: str) -> AsyncIterator[tuple[Topology, Worker]]:
    file = data.parent / "topology.yaml"
    file.write_text(
        f"clusters:\n  solo: {{address: '127.0.0.1:{free_ports(1)[0]}', data: {data}, database: '{database}'}}\n"
        f"pipeline: {{engine: embedded}}\nstore: {{{store}}}\n"
    )
    topology = load_topology(file)
    worker = await start_worker(topology, "solo")
    try:
        yield topology, worker
    finally:
        await worker.stop()


async def told_by(topology: Topology) -> set[str]:
    """Return the places that say that messages are refused: the metric, ``/readyz``, the status and so on."""
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
        "the metric": '\nreplicator_store_full{cluster="solo"} 1.0\n' in scraped,
        "the alert": fires("ReplicatorDiskFull", scraped) != fires("ReplicatorStoreFull", scraped),
        "the metric of the disk": '\nreplicator_store_disk_full{cluster="solo"} 1.0\n' in scraped,
        "the alert of the disk": fires("ReplicatorDiskFull", scraped),
        "/readyz": "full" in ready,
        "the status": answers["solo"]["store"]["full"] is not None,
        "the table": "takes no messages: the " in " ".join(console.export_text().split()),
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
    async with worker_on(disk.path, postgres_url, f"segment: {segment}") as (topology, worker):
        topic = await worker.parts.engine.topic(TOPIC)
        assert await refused(topic) == set()
        assert await told_by(topology) == NOBODY
        for free in (16 * MIB, 13 * MIB, 12 * MIB, 11 * MIB, 9 * MIB, 7 * MIB, 0):
            disk.leave(free)
            sizes = await refused(topic)
            some |= 0 < len(sizes) < len(SIZES)
            told = await told_by(topology)
            assert told == (ALL | OF_DISK if sizes else NOBODY), (free, sizes)
        assert sizes == set(SIZES)
        assert some, "only large ones were refused at some time"
        disk.make_room()
        assert await told_by(topology) == NOBODY, "nobody has to publish for that"
        assert await refused(topic) == set()
        assert await told_by(topology) == NOBODY


@asynchronous
async def test_all_of_them_say_that_the_store_has_reached_its_limit_and_none_that_the_disk_is_full(
    tmp_path: Path, postgres_url: str
) -> None:
    async with worker_on(tmp_path / "data", postgres_url, "size_max: 8MiB, segment: 0") as (topology, worker):
        topic, store = await worker.parts.engine.topic(TOPIC), worker.parts.engine.store
        assert await refused(topic) == set()
        assert await told_by(topology) == NOBODY
        while not (sizes := await refused(topic)):
            assert await told_by(topology) == NOBODY
        assert sizes < set(SIZES), "only large ones are refused"
        assert store.size_bytes() < 0.9 * store.size_max, "no other alert is true of it"
        assert await told_by(topology) == ALL
        await topic.trimming.trim(topic.log.last)
        assert await told_by(topology) == NOBODY
        assert await refused(topic) == set()
