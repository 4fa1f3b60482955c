"""Invariant 5 where one cluster keeps its log for longer: what another one trimmed there is consumed by nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine_support import message
from test_sync_restored import Cluster, carry, carry_until, consume_all, trim

from replicator.engine.types import Ack
from snapshots.position import BEFORE_ALL


async def trimmed_in_b(a: Cluster, b: Cluster) -> None:
    """Both consumed everything and have mappings; only a still has it."""
    for each in (a, b):
        await each.start()
    await a.topic.publish([message()] * 5)
    await a.topic.create_subscription("sub", BEFORE_ALL, replicated=True)
    await carry_until(lambda: "sub" in b.topic.subscriptions, (a, b), (b, a))
    await b.topic.publish([message()])
    await carry_until(lambda: b.sync.counters()["mappings"] > 0, (a, b), (b, a))
    await consume_all(b)
    await carry_until(lambda: a.subscription.cursor.backlog_entries() == 0, (a, b), (b, a))
    await trim(b)
    await carry(b, a)


def test_invariant_5_a_seek_back_holds_where_the_other_cluster_has_trimmed_what_comes_again(tmp_path: Path) -> None:
    async def main() -> None:
        a, b = Cluster("a", tmp_path), Cluster("b", tmp_path)
        await trimmed_in_b(a, b)
        first = a.topic.log.first
        assert first is not None
        await a.subscription.seek(first)
        await carry_until(lambda: b.subscription.cursor.generation == 2, (a, b), (b, a))
        (last,) = await b.topic.publish([message()])
        await carry(b, a)
        backlog = a.subscription.cursor.backlog_entries()
        assert backlog >= 6
        await b.subscription.acknowledge([Ack(last)])  # so that it tells the whole of what it has
        await carry_until(lambda: a.subscription.cursor.backlog_entries() == backlog - 1, (a, b), (b, a))
        await b.stop()
        await b.start()
        b.sync.tell_all()
        told = b.sync.counters()["updates_sent"]
        await carry_until(lambda: b.sync.counters()["updates_sent"] > told, (a, b), (b, a))
        await carry_until(lambda: a.sync.counters()["updates_applied"] > 0, (b, a))
        assert a.subscription.cursor.backlog_entries() == backlog - 1
        for each in (a, b):
            await each.stop()

    asyncio.run(main())


def test_invariant_5_a_new_subscription_keeps_what_the_other_cluster_has_trimmed(tmp_path: Path) -> None:
    async def main() -> None:
        a, b = Cluster("a", tmp_path), Cluster("b", tmp_path)
        await trimmed_in_b(a, b)
        new = await a.topic.create_subscription("new", BEFORE_ALL, replicated=True)
        await carry_until(lambda: "new" in b.topic.subscriptions, (a, b), (b, a))
        (last,) = await b.topic.publish([message()])
        await carry(b, a)
        backlog = sum(not entry.marker for entry in a.topic.read_entries(BEFORE_ALL, None, 1_000, 1 << 30))
        await b.topic.subscriptions["new"].acknowledge([Ack(last)])
        await carry_until(lambda: new.cursor.backlog_entries() < backlog, (a, b), (b, a))
        assert new.cursor.backlog_entries() == backlog - 1
        for each in (a, b):
            await each.stop()

    asyncio.run(main())
