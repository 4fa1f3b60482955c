"""Group ``spark``: live copy by Spark's tasks, beside the embedded engine, of the same backlog in the same run.

1. For each engine a pair of clusters gets the same backlog; the time until the emptied destination has it is taken,
   first embedded, then Spark, whose driver runs already.
2. With Spark, in a third pair: lag as in group ``lag``, and acknowledgements as in group ``sync``.

Both workers, the driver's JVM and its Python processes share this machine's cores.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Final

import aiohttp

from bench.arrival import seconds_to_arrive
from bench.cases import CASES, RUNS
from bench.clusters import DESTINATION, SOURCE, TwoClusters
from bench.lag import measure_lag_between
from bench.measurement import Measurement
from bench.network import publish_rates
from bench.sync import measure_acknowledgements
from replicator.topology.fields import SPARK
from replicator.topology.scalars import EMBEDDED

CASE: Final = replace(CASES[0], messages=1_800_000)
"""Case whose backlog takes about a second at full speed: more than a burst, and one micro-batch or two."""
STARTED_SECONDS_MAX: Final = 90.0


async def measure_spark(directory: Path) -> list[Measurement]:
    """Return the copy rates of 100 B messages in producer batches, in MB of payload a second, by both engines.

    With Spark also return the lag, and the ms until an acknowledgement is seen at the destination.
    """
    embedded = await _copy_rates(directory / EMBEDDED, EMBEDDED)
    spark = await _copy_rates(directory / SPARK, SPARK)
    async with _clusters(directory / "lag", SPARK) as clusters:
        await clusters.start(SOURCE, DESTINATION)
        async with _driver(clusters):
            lag = await measure_lag_between(clusters, "spark/100B/batched/lag")
            acknowledged = await measure_acknowledgements(clusters, "spark")
    return [Measurement("spark/100B/batched/copy", "MB/s", spark, "embedded engine", embedded), *lag, *acknowledged]


async def _copy_rates(directory: Path, engine: str) -> tuple[float, ...]:
    async with _clusters(directory, engine) as clusters:
        await clusters.start(SOURCE)
        await publish_rates(clusters.client_url(SOURCE), CASE)
        async with _driver(clusters) if engine == SPARK else nullcontext():
            return tuple([await _copy_rate(clusters) for _ in range(RUNS)])


async def _copy_rate(clusters: TwoClusters) -> float:
    await clusters.empty(DESTINATION)
    await clusters.start(DESTINATION)
    seconds = await seconds_to_arrive(lambda: clusters.messages(DESTINATION, CASE.topic), CASE.messages)
    return CASE.messages * CASE.size_bytes / 1e6 / seconds


def _clusters(directory: Path, engine: str) -> TwoClusters:
    directory.mkdir()
    return TwoClusters(directory, engine=engine)


@asynccontextmanager
async def _driver(clusters: TwoClusters) -> AsyncIterator[None]:
    """Run a Spark driver for the source's links while the context lasts, which begins when it carries all of them."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "replicator.pipeline.live.driver", "--worker", clusters.url(SOURCE)),
        stdin=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None
    try:
        async with asyncio.timeout(STARTED_SECONDS_MAX), aiohttp.ClientSession() as session:
            while not await _has_carrier(session, clusters.url(SOURCE)):  # noqa: ASYNC110 - another process's state
                await asyncio.sleep(0.1)
        yield
    finally:
        process.stdin.close()
        await process.wait()


async def _has_carrier(session: aiohttp.ClientSession, url: str) -> bool:
    async with session.get(f"{url}/replication/v1/links") as response:
        return all(link["carrier"] for link in (await response.json())["links"])
