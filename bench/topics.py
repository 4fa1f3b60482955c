"""Group ``topics``: what ten thousand topics cost a worker, and what the catalog's operations take beside them.

* ``memory``, ``idle-cpu``: two real workers, linked both ways. Each topic has a message, and a replicated subscription
  with nothing acknowledged. Memory is the process's own (anonymous) memory above that of a worker without topics, at
  rest: of workers that started with the topics, and of those that had just copied them all in one burst, which
  leaves free memory between what is used. CPU time is the share of one core from then on.
* ``open``: opening the engine over them, in process.
* ``create``, ``delete``, ``find``, ``list-10``: one operation among ten thousand other topics; ``list-10`` is what
  consumers can subscribe to in a namespace of ten topics.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from bench.at_rest import at_rest, cpu_percent, everything_is_copied
from bench.cases import RUNS
from bench.clusters import DESTINATION, SOURCE, TwoClusters
from bench.measurement import Measurement
from replicator.engine.engine import Engine
from replicator.engine.log.entry import encode_entry
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL

TOPICS: Final = 10_000
AT_ONCE: Final = 1_000
FEW: Final = 10
OPERATIONS: Final = 200
IDLE_SECONDS: Final = 5.0


async def measure_topics(directory: Path) -> list[Measurement]:
    """Return all figures of group ``topics``, with the stores in ``directory``."""
    return [*await _measure_workers(directory), *await _measure_catalog(directory)]


# Workers.


async def _measure_workers(directory: Path) -> list[Measurement]:
    async with TwoClusters(directory) as clusters:
        await clusters.start(SOURCE, DESTINATION)
        await at_rest(map(clusters.pid, (SOURCE, DESTINATION)))
        empty = {name: _own_bytes(clusters, name) for name in (SOURCE, DESTINATION)}
        await clusters.stop(SOURCE)
        async with opened(clusters.data(SOURCE), SOURCE) as engine:
            await fill(engine)
        await clusters.start(SOURCE)
        await everything_is_copied(clusters.url(DESTINATION), TOPICS)
        await at_rest(map(clusters.pid, (SOURCE, DESTINATION)))
        copied = {name: _own_bytes(clusters, name) for name in (SOURCE, DESTINATION)}
        for name in (SOURCE, DESTINATION):
            await clusters.stop(name)
        await clusters.start(SOURCE, DESTINATION)
        await at_rest(map(clusters.pid, (SOURCE, DESTINATION)))
        measured: list[Measurement] = []
        for name in (SOURCE, DESTINATION):
            label = "source" if name == SOURCE else "destination"
            for figure, used in (("memory", _own_bytes(clusters, name)), ("memory-after-copy", copied[name])):
                kilobytes_each = (used - empty[name]) / TOPICS / 1e3
                measured.append(Measurement(f"topics/10k/{label}/{figure}", "kB/topic", (kilobytes_each,)))
            runs = [await cpu_percent(clusters.pid(name), IDLE_SECONDS) for _ in range(RUNS)]
            measured.append(Measurement(f"topics/10k/{label}/idle-cpu", "% of a core", tuple(runs)))
        return measured


def _own_bytes(clusters: TwoClusters, cluster: str) -> int:
    """Return the worker's anonymous memory in bytes: without pages of files, which the system can take back."""
    status = Path(f"/proc/{clusters.pid(cluster)}/status").read_text()
    (line,) = [line for line in status.splitlines() if line.startswith("RssAnon:")]
    return int(line.split()[1]) * 1024


# The catalog, in process.


async def _measure_catalog(directory: Path) -> list[Measurement]:
    path = directory / "catalog"
    async with opened(path) as engine:
        await fill(engine)
        await asyncio.gather(*(engine.topic(f"bench/few/topic-{number}") for number in range(FEW)))
    seconds: list[float] = []
    for _ in range(RUNS):
        began = time.monotonic()
        async with opened(path):
            seconds.append(time.monotonic() - began)
    async with opened(path) as engine:

        async def find(number: int) -> None:
            assert engine.find(_name(number)) is not None

        async def list_few(_: int) -> None:
            assert len(engine.catalog.subscribable("bench/few")) == FEW

        async def create(number: int) -> None:
            await engine.making.create(f"bench/many/new-{number}")

        async def delete(number: int) -> None:
            await engine.deleting.delete(f"bench/many/new-{number}")

        operations = {"create": create, "delete": delete, "find": find, "list-10": list_few}
        runs: dict[str, list[float]] = {name: [] for name in operations}
        for _ in range(RUNS):
            for name, operation in operations.items():
                runs[name].append(await _microseconds_each(operation))
    return [
        Measurement("topics/10k/open", "s", tuple(seconds)),
        *(Measurement(f"topics/10k/{name}", "µs", tuple(values)) for name, values in runs.items()),
    ]


async def _microseconds_each(operation: Callable[[int], Awaitable[None]]) -> float:
    """Run ``operation`` with 0, 1 and so on, :data:`OPERATIONS` times; return the mean time of one, in µs."""
    began = time.monotonic()
    for number in range(OPERATIONS):
        await operation(number)
    return (time.monotonic() - began) / OPERATIONS * 1e6


@asynccontextmanager
async def opened(path: Path, cluster: str = "bench") -> AsyncIterator[Engine]:
    """Open an engine over the store in ``path``, which no running worker uses; yield it, and close it on leaving."""
    engine = await Engine.open(path, cluster=cluster)
    try:
        yield engine
    finally:
        await engine.close()


async def fill(engine: Engine) -> None:
    """Make :data:`TOPICS` topics with a message and a replicated subscription each."""
    for first in range(0, TOPICS, AT_ONCE):
        await asyncio.gather(*(_make_one(engine, number) for number in range(first, first + AT_ONCE)))


async def _make_one(engine: Engine, number: int) -> None:
    topic = await engine.topic(_name(number))
    metadata = MessageMetadata(producer_name="bench", sequence_id=number, publish_time=1)
    await topic.publish([encode_entry(metadata, bytes(100))])
    await topic.subscriptions.create("bench", BEFORE_ALL, replicated=True)


def _name(number: int) -> str:
    return f"persistent://bench/many/topic-{number:05d}"
