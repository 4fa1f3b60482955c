"""A message that came by two ways, by one of them before the start of a subscription and by the other one after it."""

from __future__ import annotations

import asyncio
from pathlib import Path

from duplicates_support import ON, copy, numbered
from engine_support import TOPIC, eventually, opened
from sync_node_support import backlog
from sync_support import Cluster, acknowledged, cluster, clusters, having, in_step, quiet, taking

from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL


async def topics(*nodes: Cluster) -> list[Topic]:
    return [await node.engine.topic(TOPIC) for node in nodes]


def test_a_message_before_the_start_by_one_way_alone_is_not_told_as_acknowledged(tmp_path: Path) -> None:
    """Its producer confirmed it in A, where a subscription began after it, and sent it again to B."""

    async def main() -> None:
        async with clusters(tmp_path, "a", "b", links=(), settings=ON) as (a, b):
            at_a, at_b = await topics(a, b)
            await at_a.publish([numbered(0)])
            await at_a.subscriptions.create("sub", at_a.log.last, replicated=True)
            await at_b.publish([numbered(0)])
            links = [b.link_to(a)]
            await having(a, 2)
            await quiet(a)
            await at_b.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            links.append(a.link_to(b))
            await having(b, 2)
            await quiet(a, b)
            await in_step(a, b, 2)
            await acknowledged(*await taking(b, 1))
            await in_step(a, b, 0)
            for link in links:
                await link.stop()

    asyncio.run(main())


def test_an_acknowledgement_by_one_way_stays_when_the_start_moves_back_in_the_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path, "a", "b", "c", links=(), settings=ON) as (a, b, c):
            at_a, at_b, at_c = await topics(a, b, c)
            await at_a.publish([numbered(0)])
            first = a.link_to(c)
            await having(c, 1, name="")
            await first.stop()
            await at_a.subscriptions.create("sub", at_a.log.last, replicated=True)
            await at_b.publish([numbered(0), numbered(1)])
            links = [a.link_to(b)]
            await having(b, 3)
            links.append(b.link_to(a))
            await having(a, 3)
            await in_step(a, b, 3)
            consumer, inbox = await taking(b, 2)
            await acknowledged(consumer, inbox, slice(0, 1))
            await in_step(a, b, 1)
            consumer, inbox = await taking(a, 1)
            await at_c.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            links += [c.link_to(a), c.link_to(b)]
            await eventually(
                lambda: all(
                    t.subscriptions["sub"].cursor.state.starts["a"].position == BEFORE_ALL for t in (at_a, at_b)
                ),
                "the earlier start",
            )
            await quiet(a, b)
            assert [backlog(a), backlog(b), len(inbox.deliveries)] == [1, 1, 1]
            consumer.close()
            links += [a.link_to(c), b.link_to(c)]
            await having(c, 3)
            await in_step(a, c, 1)
            for link in links:
                await link.stop()

    asyncio.run(main())


def test_a_worker_that_ended_before_it_saved_that_the_message_is_delivered_does_so_afterwards(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "a", "a", ON) as engine, opened(tmp_path / "b", "b", ON) as other:
            here, there = await engine.topic(TOPIC), await other.topic(TOPIC)
            await here.publish([numbered(0)])
            await here.subscriptions.create("sub", here.log.last, replicated=True)
            await there.publish([numbered(0)])
            await copy(there, here)
        async with cluster(tmp_path, "a", ("a", "b"), settings=ON) as a:
            await a.engine.topic(TOPIC)
            assert backlog(a) == 2

    asyncio.run(main())
