"""A worker starts although blocks of markers are damaged, and mends them from other clusters.

DESIGN §4.5; invariants 5 and 6.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from asynchronous import asynchronous
from backup_support import ORDERS
from engine_support import READ_FROM_DISK, opened
from lost_disk_support import Workers, workers
from verify_support import change_block, flipped

from replicator.engine.engine import Engine
from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import BlockKind
from replicator.engine.log.store_tables import HighWater
from replicator.engine.topic import Topic
from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.failover.epochs import precedence
from replicator.failover.epochs_log import EpochsLog
from replicator.failover.service import RECORD
from replicator.sync.marker_log import Counters, MarkerLog
from snapshots.markers import FailoverEpoch
from snapshots.position import BEFORE_ALL

BOTH_WAYS = "[{between: [A, B]}]"


def records(engine: Engine) -> list[FailoverEpoch]:
    return list(EpochsLog(engine, lambda _: None).records())


def damage_markers(engine: Engine, name: str, number: int) -> None:
    """Flip a byte in the last entry of a block of markers."""
    topic = engine.find(name)
    assert topic is not None
    heads = engine.store.block_heads(topic.topic_id, BEFORE_ALL, topic.log.last, blocks_max=10_000)
    markers = [index for index, head in enumerate(heads) if head.header.kind is BlockKind.MARKERS]
    change_block(topic, markers[number], flipped(-1))
    with pytest.raises(BlockCorrupt):
        list(topic.reading.pages(BEFORE_ALL, topic.log.last, bytes_max=1 << 20))


async def switch(made: Workers, to: str, kind: str) -> None:
    """Let the cluster ``to`` serve the clients of A, and wait until both clusters have the record in their logs."""
    failover = made.running[to].parts.failover
    known = [len(records(made.engine(name))) for name in "AB"]
    expected = precedence(failover._core.record)
    await failover.propose(kind=kind, homes=["A"], expected=expected, keep_consumers=False)
    await made.until(
        lambda: [len(records(made.engine(name))) for name in "AB"] == [count + 1 for count in known], "the record"
    )
    await made.until(
        lambda: {made.running[name].parts.failover.state()["epoch"] for name in "AB"} == {known[0] + 1}, "it counts"
    )


@asynchronous
async def test_a_worker_starts_although_a_record_of_a_failover_is_damaged_and_mends_it(tmp_path: Path) -> None:
    async with workers(tmp_path, "AB", BOTH_WAYS) as made:
        await switch(made, "B", "unplanned")
        await switch(made, "A", "failback")
        both = records(made.engine("A"))
        await made.stop("A")
        async with opened(made.data("A"), "A", READ_FROM_DISK) as engine:
            damage_markers(engine, EPOCHS_TOPIC, 0)
            assert records(engine) == both[1:]
            await engine.writer.put("meta", RECORD.encode(), None)  # so that only the log has the newest record
        await made.start("A")
        state = made.running["A"].parts.failover.state()
        assert (state["epoch"], state["fenced"]) == (2, False)
        await made.until(lambda: made.running["A"].parts.mending.status() == {"mended": 1, "damaged": []}, "mended")
        assert records(made.engine("A")) == both


@asynchronous
async def test_a_worker_starts_although_markers_of_subscriptions_are_damaged_and_mends_them(tmp_path: Path) -> None:
    async with workers(tmp_path, "AB", BOTH_WAYS) as made:
        await made.fill(3)
        await made.until(lambda: reached(made, "A") == reached(made, "B"), "all markers of both at both")
        await made.stop("A")
        async with opened(made.data("A"), "A", READ_FROM_DISK) as engine:
            topic, counted = engine.find(ORDERS), Counters()
            assert topic is not None
            before = read(topic, counted)
            damage_markers(engine, ORDERS, -1)
            assert 0 < read(topic, counted) < before
            assert counted.markers_corrupt == 1
        await made.start("A")
        await made.until(lambda: made.running["A"].parts.mending.status() == {"mended": 1, "damaged": []}, "mended")
        await made.until_agreed()


def reached(made: Workers, name: str) -> list[HighWater | None]:
    """Return how far a cluster has what A and B wrote."""
    topic = made.engine(name).find(ORDERS)
    assert topic is not None
    return [topic.origins.high_water(origin) for origin in "AB"]


def read(topic: Topic, counted: Counters) -> int:
    """Return the number of entries in all blocks of markers that can be read."""
    return sum(stored.header.entries for stored in MarkerLog(topic, counted).newest_first())
