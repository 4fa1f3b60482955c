"""Group ``mapping``: size of the exact mapping in Postgres, and time to look up positions, for ten million messages.

Three ways in which copied entries lie between others:

* ``batched``: entries of 100 messages; one in fifty blocks is followed by a block of somebody else.
* ``mixed``: entries of one message, in blocks of 1 to 200 with a block of somebody else after each: two clusters that
  publish at the same pace.
* ``worst``: entries of one message, every one of them followed by one of somebody else.

What is in Postgres is counted with indexes and TOAST, and with what rewriting the last segment leaves behind.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

import numpy as np
from sqlalchemy import text

from bench.cases import RUNS
from bench.measurement import Measurement
from replicator.index.database import Database
from snapshots.extents import Extent, ExtentTable
from snapshots.position import Position
from snapshots.repository import ExtentKey, SnapshotRepository
from snapshots.repository.extents import SEGMENT_RUNS, Segment

MESSAGES: Final = 10_000_000
TRANSLATIONS: Final = 1_000_000
LOOK_UPS: Final = 300
REWRITES: Final = 8
"""Number of times that a segment is written while it grows."""
SEGMENTS_AT_ONCE: Final = 16
LEDGER: Final = 1_763_000_000_000


async def measure_mapping(directory: Path) -> list[Measurement]:
    """Return all figures of group ``mapping``: size of the mapping, and time of translations."""
    database = Database("embedded", directory / "mapping", cluster="bench", known_good=False)
    await database.start()
    assert database.engine is not None
    repository = SnapshotRepository(database.engine, "bench")
    measured: list[Measurement] = []
    try:
        for name, messages_each, runs in (("batched", 100, _batched()), ("mixed", 1, _mixed()), ("worst", 1, _worst())):
            key = ExtentKey(f"persistent://bench/default/{name}", "us-east", LEDGER)
            async with database.engine.begin() as connection:
                await connection.execute(text("TRUNCATE extent_segments"))
            await _write(repository, key, runs)
            async with database.engine.begin() as connection:
                size = (await connection.execute(text("SELECT pg_total_relation_size('extent_segments')"))).scalar_one()
            entries = (await repository.count_extents(key.topic))[2]
            assert entries * messages_each == MESSAGES
            measured.append(Measurement(f"mapping/{name}/bytes-a-message", "B", (size / MESSAGES,)))
            measured.append(await _bulk(repository, key, name, entries))
            measured.append(await _single(repository, key, name, entries))
    finally:
        await database.stop()
    return measured


def _batched() -> Iterator[Extent]:
    return _runs(MESSAGES // 100, lambda randomness: 10 * randomness.randint(1, 100), others=10)


def _mixed() -> Iterator[Extent]:
    return _runs(MESSAGES, lambda randomness: randomness.randint(1, 200), others=100)


def _worst() -> Iterator[Extent]:
    return _runs(MESSAGES, lambda _: 1, others=1)


def _runs(entries: int, length: object, *, others: int) -> Iterator[Extent]:
    assert callable(length)
    randomness = random.Random(1)
    origin, local = 0, 0
    while origin < entries:
        run = min(entries - origin, int(length(randomness)))
        yield Extent(Position(LEDGER, origin), Position(LEDGER + 7, local), run)
        origin += run
        local += run + randomness.randint(1, 2 * others - 1)


async def _write(repository: SnapshotRepository, key: ExtentKey, extents: Iterator[Extent]) -> None:
    """Write extents to Postgres as the index writer does, which rewrites the last segment as it grows."""
    table = ExtentTable()
    full: list[Segment] = []
    for extent in extents:
        if len(table) == SEGMENT_RUNS:
            assert table.first is not None
            full.append(Segment(key, table.first.origin_first, table))
            table = ExtentTable()
            if len(full) == SEGMENTS_AT_ONCE:
                await repository.write_segments(full)
                full.clear()
        table.append(*extent)
        if len(table) % (SEGMENT_RUNS // REWRITES) == 0 and not full:
            assert table.first is not None
            await repository.write_segments([Segment(key, table.first.origin_first, table)])
    assert table.first is not None
    await repository.write_segments([*full, Segment(key, table.first.origin_first, table)])


async def _bulk(repository: SnapshotRepository, key: ExtentKey, name: str, entries: int) -> Measurement:
    rates: list[float] = []
    for run in range(RUNS):
        wanted = np.random.default_rng(run).integers(0, entries, TRANSLATIONS).astype(np.uint64)
        ledgers = np.full(TRANSLATIONS, LEDGER, np.uint64)
        began = time.perf_counter()
        _, _, found = await repository.to_local_many(key, ledgers, wanted)
        rates.append(TRANSLATIONS / (time.perf_counter() - began))
        assert found.all()
    return Measurement(f"mapping/{name}/bulk", "positions/s", tuple(rates))


async def _single(repository: SnapshotRepository, key: ExtentKey, name: str, entries: int) -> Measurement:
    medians: list[float] = []
    for run in range(RUNS):
        randomness = random.Random(run)
        milliseconds: list[float] = []
        for _ in range(LOOK_UPS):
            position = Position(LEDGER, randomness.randrange(entries))
            began = time.perf_counter()
            local = await repository.to_local(key, position)
            milliseconds.append((time.perf_counter() - began) * 1000)
            assert local is not None
        medians.append(median(milliseconds))
    return Measurement(f"mapping/{name}/look-up", "ms", tuple(medians))
