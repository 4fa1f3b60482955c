"""Invariant 5 where a cluster was restored from an old copy: what only another one has left is consumed by nobody.

The link from the restored cluster to the one that has more stands still (it lost data,
see :mod:`replicator.links.gaps`). Others go on, and over them come claims of clusters that never had what was lost.
"""

from __future__ import annotations

import asyncio
import shutil
from itertools import permutations
from pathlib import Path

import pytest
from engine_support import message
from restored_support import Cluster, carry, carry_until, consume_all, trim

from replicator.engine.types import Ack
from snapshots.position import BEFORE_ALL, Position


async def lost_by_a(a: Cluster, b: Cluster, c: Cluster) -> list[Position]:
    """Cluster a is restored to where c has everything, and goes on; b has more, which is returned."""
    lost = await restored(a, b, c)
    await a.topic.publish([message(b"new")] * 5)
    return lost


async def restored(a: Cluster, b: Cluster, *others: Cluster) -> list[Position]:
    """Cluster a is restored to where the others have everything; b has more, which is returned."""
    for each in (a, b, *others):
        topic = await each.start()
        if each is a:
            await topic.publish([message()] * 5)
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
    links = list(permutations((a, b, *others), 2))
    await carry_until(lambda: all("sub" in each.topic.subscriptions for each in (b, *others)), *links)
    await a.stop()
    shutil.copytree(a.path, a.path.with_name("old"))
    topic = await a.start()
    lost = await topic.publish([message(b"lost")] * 5)
    await carry(a, b)
    await a.stop()
    shutil.rmtree(a.path)
    a.path.with_name("old").rename(a.path)
    await a.start()
    return lost


def consumed_at(b: Cluster, origin_position: Position) -> bool:
    for entry in b.messages():
        if entry.origin == "a" and entry.origin_position == origin_position:
            return b.subscription.cursor.is_consumed(entry.position)
    raise AssertionError(f"{origin_position} is not there")


@pytest.mark.parametrize("trimmed", [False, True])
def test_invariant_5_all_of_a_restored_origin_is_not_claimed_by_who_never_had_what_it_lost(
    tmp_path: Path, trimmed: bool
) -> None:
    async def main() -> None:
        a, b, c = (Cluster(name, tmp_path) for name in "abc")
        lost = await lost_by_a(a, b, c)
        await carry(a, c)
        await consume_all(c)
        if trimmed:
            await trim(c)
            await c.stop()
            await c.start()
            await c.topic.publish([message(b"of c")])
            await carry(c, b)
            await consume_all(c)
        old = [Position(each.ledger, each.entry) for each in (await a_messages(b)) if each.ledger < lost[0].ledger]
        assert len(old) == 5
        await carry_until(lambda: all(consumed_at(b, each) for each in old), (c, b))
        assert [each for each in lost if consumed_at(b, each)] == []
        for each in (a, b, c):
            await each.stop()

    asyncio.run(main())


def test_invariant_5_a_restored_cluster_does_not_claim_what_it_lost_when_its_log_is_trimmed(tmp_path: Path) -> None:
    async def main() -> None:
        a, b, c = (Cluster(name, tmp_path) for name in "abc")
        lost = await lost_by_a(a, b, c)
        await consume_all(a)
        await trim(a)
        assert a.topic.log.trimmed > lost[-1]
        for _ in range(2):
            claimed = a.sync.vector(a.topic, a.subscription).origins["a"]
            assert [each for each in lost if claimed.covers(each)] == []
            old = [each for each in await a_messages(b) if each.ledger < lost[0].ledger]
            assert [each for each in old if not claimed.covers(each)] == []
            await a.stop()
            await a.start()
        for each in (a, b, c):
            await each.stop()

    asyncio.run(main())


async def a_messages(b: Cluster) -> list[Position]:
    return [each.origin_position for each in b.messages() if each.origin == "a"]


def test_invariant_5_a_restored_cluster_does_not_claim_what_it_could_not_take_back(tmp_path: Path) -> None:
    """It knows of the positions: they are a hole of its own. What it takes as consumed says nothing of them."""

    async def main() -> None:
        a, b = (Cluster(name, tmp_path) for name in "ab")
        lost = await restored(a, b)
        topic = a.topic
        old = [each for each in await a_messages(b) if each.ledger < lost[0].ledger]
        assert len(old) == 5
        before, upto = topic.origins.vector()["a"], b.topic.origins.vector()["a"]
        await a.engine.writer.reclaim(topic.tail, topic.log.last, (), holes=[(before, upto)], upto=upto, numbered=False)
        for _ in range(2):
            await topic.publish([message(b"new")])
            await consume_all(a)
            claimed = a.sync.vector(a.topic, a.subscription).origins["a"]
            assert [each for each in lost if claimed.covers(each)] == []
            assert [each for each in old if not claimed.covers(each)] == []
            await carry_until(lambda: all(consumed_at(b, each) for each in old), (a, b))
            assert [each for each in lost if consumed_at(b, each)] == []
            await a.stop()
            topic = await a.start()
        await b.subscription.acknowledge([Ack(entry.position) for entry in b.messages()])
        await carry_until(lambda: not a.backlog, (b, a))  # what b tells of the hole means nothing here
        for each in (a, b):
            await each.stop()

    asyncio.run(main())


def test_invariant_5_an_answer_of_who_has_what_a_third_cluster_lost_makes_no_mapping(tmp_path: Path) -> None:
    async def main() -> None:
        a, b, c = (Cluster(name, tmp_path, exact=False) for name in "abc")
        lost = await lost_by_a(a, b, c)
        await c.topic.publish([message(b"of c")])
        await answered(c, b)  # and what it is to prove waits: what a has more may still come
        await carry(a, c)
        await c.topic.publish([message(b"of c, too")])
        await answered(c, b)
        skipped = c.sync.counters()["skipped"]
        await consume_all(c)
        await c.topic.publish([message(b"the last of c")])
        await answered(c, b)
        await consume_all(c)
        await carry_until(lambda: c.sync.counters()["skipped"] > skipped, (c, b), (b, c))
        assert [each for each in lost if consumed_at(b, each)] == []
        for each in (a, b, c):
            await each.stop()

    async def answered(c: Cluster, b: Cluster) -> None:
        before = c.sync.counters()["responses"]
        await carry_until(lambda: c.sync.counters()["responses"] > before, (c, b), (b, c))

    asyncio.run(main())
