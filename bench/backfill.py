"""Group ``backfill``: history of several topics into an empty cluster, by Spark's tasks on this machine's cores.

1. The history is published once: 100 B messages in producer batches, and of 100 kB, over :data:`TOPICS` topics each.
2. For each run the destination is emptied, and the whole backfill is run by a session that is up already, as
   ``replicator backfill`` would. The figure is of the time in which history was carried, with its jobs' own cost. The
   first run starts the tasks' processes, and does not count.

Both workers, the driver's JVM and its Python processes share this machine's cores.
"""

from __future__ import annotations

import asyncio
import platform
from pathlib import Path
from typing import Final

import aiohttp

from bench.cases import RUNS
from bench.clusters import DESTINATION, SOURCE, TwoClusters
from bench.measurement import Measurement
from bench.network import publish
from replicator.client import Client
from replicator.pipeline.backfill.backfill import BackfillRequest, BackfillRun, link_for
from replicator.pipeline.backfill.report import BackfillReport
from replicator.pipeline.spark.session import spark_session

TOPICS: Final = 8
HISTORIES: Final = (("100B/batched", 100, 1_000_000), ("100kB/single", 100_000, 1_000))
"""Name, bytes of a message, messages of a topic: 800 MB of payload each, some seconds."""
NOBODY: Final = f"process 999999999 on {platform.node() or 'localhost'} since 2000-01-01T00:00:00Z"
"""Name of a process that does not run. A link that it carries copies nothing until a real backfill takes over."""


async def measure_backfill(directory: Path) -> list[Measurement]:
    """Return the figures of group ``backfill``: MB of payload a second while history is carried."""
    spark = await asyncio.to_thread(spark_session, "local[2]", short_lived=False)
    measured = []
    try:
        for name, size_bytes, messages in HISTORIES:
            path = directory / name.partition("/")[0]
            path.mkdir()
            async with TwoClusters(path) as clusters:
                await clusters.start(SOURCE)
                await _publish(clusters.client_url(SOURCE), size_bytes, messages)
                runs = []
                for _ in range(1 + RUNS):
                    await clusters.empty(DESTINATION)
                    await _hold_link(clusters.url(SOURCE))
                    await clusters.start(DESTINATION)
                    report = await asyncio.to_thread(_run, clusters, spark)
                    payload_bytes = TOPICS * messages * size_bytes
                    assert report.done, report.reason
                    assert report.carried_bytes > payload_bytes, "the live link brought a part of it"
                    runs.append(payload_bytes / 1e6 / report.carrying_seconds)
                measured.append(Measurement(f"backfill/{name}", "MB/s", tuple(runs[1:])))
    finally:
        spark.stop()
    return measured


def _run(clusters: TwoClusters, spark: object) -> BackfillReport:
    request = BackfillRequest(clusters.topology, link_for(clusters.topology, SOURCE, DESTINATION, None))
    return BackfillRun(request, lambda: spark, lambda _: None).run()


async def _publish(url: str, size_bytes: int, messages: int) -> None:
    async with Client(url) as client:
        for number in range(TOPICS):
            producer = await client.create_producer(
                f"persistent://bench/default/history-{number}",
                batching_enabled=size_bytes < 10_000,
                max_pending_messages=max(16, min(20_000, 32 * 1024 * 1024 // size_bytes)),
            )
            await publish(producer, bytes(size_bytes), messages)
            await producer.close()


async def _hold_link(url: str) -> None:
    """Give the link to a carrier that copies nothing, so that live copy brings nothing of the backlog."""
    path = f"{url}/pipeline/v1/links/{SOURCE}%3E{DESTINATION}/plan"
    body = {"carrier": NOBODY, "kind": "backfill", "lanes": 1, "bytes_max": 1, "wait_ms": 0}
    async with aiohttp.ClientSession() as session, session.post(path, json=body) as response:
        response.raise_for_status()
