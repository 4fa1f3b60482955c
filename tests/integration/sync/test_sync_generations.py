"""Generations of a subscription that begin in one cluster while another one has what it does not know of."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine_support import message, settled
from restored_support import Cluster, carry, carry_until, consume_all

from replicator.topology import Link, Topology
from snapshots.position import BEFORE_ALL


def test_what_a_seek_elsewhere_did_not_know_of_stays_consumed_and_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        a, b = Cluster("a", tmp_path), Cluster("b", tmp_path)
        for each in (a, b):
            await each.start()
        await a.topic.publish([message()] * 3)
        await a.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
        await carry_until(lambda: "sub" in b.topic.subscriptions, (a, b))
        await b.topic.publish([message()] * 3)
        await consume_all(b)
        first = a.topic.log.first
        assert first is not None
        await a.subscription.moves.seek(first)  # of b it knows nothing yet
        await carry_until(lambda: b.subscription.cursor.generation == 2, (a, b))
        assert b.backlog == 3
        await carry(b, a)
        await carry_until(lambda: len(a.messages()) == 6 and a.backlog == 3, (b, a))
        for each in (a, b):
            await each.stop()

    asyncio.run(main())


def test_a_hub_tells_on_a_seek_to_the_first_message_in_which_nothing_is_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        links = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")]
        topology = Topology((), tuple(Link(*link) for link in links))
        a, hub, c = (Cluster(name, tmp_path, topology=topology) for name in "abc")
        for each in (a, hub, c):
            await each.start()
            await each.topic.publish([message()] * 3)
        await a.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
        carried = [(a, hub), (hub, a), (hub, c), (c, hub)]
        await carry_until(lambda: "sub" in c.topic.subscriptions, *carried)
        before: list[int] = []
        while (lengths := [each.topic.log.entries for each in (a, hub, c)]) != before:
            before = lengths
            for link in carried:
                await carry(*link)
            await settled(lambda: [each.topic.log.entries for each in (a, hub, c)], 0.1)
        first = c.topic.log.first
        assert first is not None
        await c.subscription.moves.seek(first)
        await carry_until(lambda: a.subscription.cursor.generation == 2, *carried)
        for each in (a, hub, c):
            await each.stop()

    asyncio.run(main())
