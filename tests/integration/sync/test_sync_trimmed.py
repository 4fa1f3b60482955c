"""Clusters that keep their logs for different times: a message trimmed in another cluster does not count as consumed
(invariant 5), and a hub passes on what it hears of messages that it has trimmed itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engine_support import batch, message
from pyroaring import BitMap
from restored_support import Cluster, carry, carry_until, consume_all, trim

from replicator.engine.types import Ack
from replicator.topology import Link, Topology
from snapshots.position import BEFORE_ALL


async def trimmed_in_b(a: Cluster, b: Cluster) -> None:
    """Both consumed everything and have mappings; only a still has it."""
    for each in (a, b):
        await each.start()
    await a.topic.publish([message()] * 5)
    await a.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
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
        await a.subscription.moves.seek(first)
        await carry_until(lambda: b.subscription.cursor.generation == 2, (a, b), (b, a))
        (last,) = await b.topic.publish([message()])
        await carry(b, a)
        backlog = a.subscription.cursor.backlog_entries()
        assert backlog >= 6
        await b.subscription.acknowledge([Ack(last)])  # so that it tells the whole of what it has
        await carry_until(lambda: a.subscription.cursor.backlog_entries() == backlog - 1, (a, b), (b, a))
        await b.stop()
        await b.start()
        b.sync.announce_all()
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
        new = await a.topic.subscriptions.create("new", BEFORE_ALL, replicated=True)
        await carry_until(lambda: "new" in b.topic.subscriptions, (a, b), (b, a))
        (last,) = await b.topic.publish([message()])
        await carry(b, a)
        backlog = sum(not entry.marker for entry in a.topic.reading.entries(BEFORE_ALL, None, 1_000, 1 << 30))
        await b.topic.subscriptions["new"].acknowledge([Ack(last)])
        await carry_until(lambda: new.cursor.backlog_entries() < backlog, (a, b), (b, a))
        assert new.cursor.backlog_entries() == backlog - 1
        for each in (a, b):
            await each.stop()

    asyncio.run(main())


@pytest.mark.parametrize("restarted", [False, True])
def test_a_hub_tells_on_what_it_hears_of_messages_that_it_has_trimmed(tmp_path: Path, restarted: bool) -> None:
    hub = Topology((), tuple(Link(*ends) for ends in [("a", "h"), ("h", "a"), ("b", "h"), ("h", "b")]))

    async def main() -> None:
        a, b, h = (Cluster(name, tmp_path, topology=hub) for name in "abh")
        links = [(a, h), (h, a), (b, h), (h, b)]
        for each in (a, b, h):
            await each.start()
        published = await h.topic.publish([message()] * 4 + [batch([b"of", b"a", b"batch"])])
        await h.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
        await carry_until(lambda: all("sub" in each.topic.subscriptions for each in (a, b)), *links)
        kept = await h.topic.publish([message()])
        await carry_until(lambda: len(a.messages()) == len(b.messages()) == 6, *links)
        await h.subscription.acknowledge([Ack(each) for each in published + kept])
        await carry_until(lambda: a.backlog == b.backlog == 0, *links)
        await h.topic.trimming.trim(published[-1])
        assert len(h.messages()) == 1

        first = a.topic.log.first
        assert first is not None
        await a.subscription.moves.seek(first)
        await carry_until(lambda: b.subscription.cursor.generation == 2, *links)
        last = (await a.topic.publish([message()]))[0]  # of what each of them has, only its own last message
        assert (a.backlog, b.backlog) == (7, 6)
        one, *_, of_batch = [each.position for each in a.messages()][:5]
        heard = h.sync.counters()["updates_applied"]
        await a.subscription.acknowledge([Ack(last), Ack(one), Ack(of_batch, (1,))])
        if restarted:
            await carry_until(lambda: h.sync.counters()["updates_applied"] > heard, (a, h))
            await h.stop()
            await h.start()
        await carry_until(lambda: b.backlog == 5, *links)
        batch_there = next(each.position for each in b.messages() if each.origin_position == published[-1])
        await carry_until(lambda: b.subscription.cursor.acked_indexes(batch_there) == BitMap([1]), *links)
        for each in (a, b, h):
            await each.stop()

    asyncio.run(main())
