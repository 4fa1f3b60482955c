"""Links whose SQL leaves messages out: a cluster claims nothing of messages that it lacks (invariant 5), and a hub
passes on what it hears of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from engine_support import TOPIC, batch, eventually, message
from pyroaring import BitMap
from restored_support import Cluster, carry, carry_until

from replicator.engine.log.block import BlockView
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.types import Ack
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.pipeline.live.filtering import Chain, filter_block
from replicator.topology import Link, Topology
from snapshots.position import BEFORE_ALL, Position

Leaves = Callable[[int, int], bool]


async def carry_some(source: Cluster, destination: Cluster, leaves_out: Leaves) -> None:
    """Copy as :func:`carry` does, but leave messages out, chosen by number of the entry and index."""
    topic = await destination.engine.topic(TOPIC, by_link=True)
    before, chain, sent = topic.origins.vector().get(source.name, BEFORE_ALL), Chain(TOPIC), []
    for stored in source.topic.reading.blocks(BEFORE_ALL, bytes_max=1 << 30, origins={source.name})[0]:
        if stored.header.origin_last > before:
            view = BlockView(stored.block)
            first = stored.header.origin_first.entry
            keep = [
                not leaves_out(first + entry, index)
                for entry, size in enumerate(view.batch_sizes)
                for index in range(size)
            ]
            left = filter_block(stored.block, view, np.array(keep, dtype=bool), {}, frozenset())
            sent += chain.outgoing(before, False, view, left)
            before = stored.header.origin_last
    await topic.writing.copy([CopiedBlock(each.previous, each.block, each.left_out) for each in [*sent, *chain.end()]])


def named(*clusters: str) -> bytes:
    """Return a message for ``clusters`` only; for all of them if none is named."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, replicate_to=clusters)
    return encode_entry(metadata, b"m")


def place(cluster: Cluster, origin_position: Position) -> Position:
    return next(each.position for each in cluster.messages() if each.origin_position == origin_position)


def test_invariant_5_who_consumed_all_that_it_has_leaves_the_rest_to_the_others(tmp_path: Path) -> None:
    """Entry 1 is left out, and of the batch the second message; the destination tells its whole state, too."""

    async def main() -> None:
        a, b = Cluster("a", tmp_path), Cluster("b", tmp_path)
        for each in (a, b):
            await each.start()
        published = await a.topic.publish([message(), message(), batch([b"of", b"a", b"batch"]), message()])
        await a.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
        some: Leaves = lambda entry, index: entry == 1 or (entry, index) == (2, 1)  # noqa: E731

        async def until(condition: Callable[[], bool]) -> None:
            async with asyncio.timeout(20):
                while not condition():
                    await carry_some(a, b, some)
                    await carry(b, a)
                    await asyncio.sleep(0.005)

        await until(lambda: "sub" in b.topic.subscriptions)
        mine = [place(b, published[number]) for number in (0, 2, 3)]
        await b.subscription.acknowledge([Ack(mine[0]), Ack(mine[1], (0,)), Ack(mine[1], (2,)), Ack(mine[2])])
        assert b.backlog == 0, "nobody waits for what is not there"
        await until(lambda: a.backlog == 2)
        cursor = a.subscription.cursor
        for _ in range(2):
            assert not cursor.is_consumed(published[1])
            assert cursor.acked_indexes(published[2]) == BitMap([0, 2])
            told = b.sync.counters()["updates_sent"]
            b.sync.announce_all()
            await until(lambda told=told: b.sync.counters()["updates_sent"] > told)
            await carry(b, a)
        # What is said of the rest is accepted there, and means nothing.
        await a.subscription.acknowledge([Ack(published[1]), Ack(published[2])])
        await until(lambda: a.backlog == b.backlog == 0)
        for each in (a, b):
            await each.stop()

    asyncio.run(main())


@pytest.mark.parametrize("restarted", [False, True])
def test_a_hub_tells_on_what_it_hears_of_messages_that_were_left_out_on_their_way_to_it(
    tmp_path: Path, restarted: bool
) -> None:
    ways = [("o", "a"), ("o", "b"), ("o", "h"), ("a", "h"), ("h", "a"), ("b", "h"), ("h", "b")]
    topology = Topology((), tuple(Link(*ends) for ends in ways))

    async def main() -> None:
        o, a, b, h = (Cluster(name, tmp_path, topology=topology) for name in "oabh")
        for each in (o, a, b, h):
            await each.start()
        published = await o.topic.publish([message()] * 2 + [batch([b"of", b"a", b"batch"])] * 2 + [message()])
        for each in (a, b):
            await carry(o, each)
        await carry_some(o, h, lambda entry, index: entry == 0 or (entry in (2, 3) and index == 1))
        links = [(a, h), (h, a), (b, h), (h, b)]
        await a.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
        await carry_until(lambda: all("sub" in each.topic.subscriptions for each in (b, h)), *links)
        heard = h.sync.counters()["updates_applied"]
        await a.subscription.acknowledge([Ack(place(a, published[0])), Ack(place(a, published[2]))])
        await a.subscription.acknowledge([Ack(place(a, published[3]), (1,))])
        if restarted:
            await carry_until(lambda: h.sync.counters()["updates_applied"] > heard, (a, h))
            await h.stop()
            await h.start()
        await carry_until(lambda: b.backlog == 3, *links)
        cursor = b.subscription.cursor
        assert cursor.is_consumed(place(b, published[0])), "the hub does not have it"
        assert cursor.is_consumed(place(b, published[2])), "the hub has a part of it"
        await carry_until(lambda: cursor.acked_indexes(place(b, published[3])) == BitMap([1]), *links)
        for each in (o, a, b, h):
            await each.stop()

    asyncio.run(main())


def test_invariant_5_messages_for_some_clusters_are_left_to_those_that_have_them(tmp_path: Path) -> None:
    """b consumes all that it has, and tells its whole state: what is for c, or for a alone, is left to a."""

    async def main() -> None:
        a, b, c = (Cluster(name, tmp_path) for name in "abc")
        for each in (a, b, c):
            await each.start()
        published = []
        for clusters in ((), ("c",), ("b",), ("__local__",), (), ("b", "c")):
            published += await a.topic.publish([named(*clusters)])
        await a.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
        links = [(a, b), (b, a), (a, c), (c, a)]
        await carry_until(lambda: all("sub" in each.topic.subscriptions for each in (b, c)), *links)
        assert [each.origin_position for each in b.messages()] == [published[at] for at in (0, 2, 4, 5)]
        assert [each.origin_position for each in c.messages()] == [published[at] for at in (0, 1, 4, 5)]

        await b.subscription.acknowledge([Ack(each.position) for each in b.messages()])
        assert b.backlog == 0, "nobody waits for what is not there"
        await carry_until(lambda: a.backlog == 2, *links)
        cursor = a.subscription.cursor
        for _ in range(2):
            assert [at for at, each in enumerate(published) if not cursor.is_consumed(each)] == [1, 3]
            told = b.sync.counters()["updates_sent"]
            b.sync.announce_all()
            await carry_until(lambda told=told: b.sync.counters()["updates_sent"] > told, *links)
            await carry(b, a)
        await carry_until(lambda: c.backlog == 1, *links)
        assert not c.subscription.cursor.is_consumed(place(c, published[1])), "b never had it"

        await c.subscription.acknowledge([Ack(place(c, published[1]))])
        await carry_until(lambda: a.backlog == 1, *links)
        assert not cursor.is_consumed(published[3]), "nobody else has it"
        await a.subscription.acknowledge([Ack(published[3])])
        await carry_until(lambda: a.backlog == b.backlog == c.backlog == 0, *links)
        for each in (a, b, c):
            await each.stop()

    asyncio.run(main())


def test_invariant_5_an_answer_that_waited_for_a_third_cluster_proves_nothing_if_messages_are_left_out_there(
    tmp_path: Path,
) -> None:
    """The answer of b says how far b is in the messages of c. When they come to a, one of them is left out."""

    async def main() -> None:
        a, b, c = (Cluster(name, tmp_path) for name in "abc")
        for each in (a, b, c):
            await each.start()
        (only_b,) = await c.topic.publish([named("b")])
        await c.topic.publish([message()])
        await carry(c, b)
        await a.topic.publish([message()])
        await a.topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
        await carry_until(lambda: b.sync.counters()["answers"] > 0, (a, b))
        await carry_until(lambda: a.sync.counters()["responses"] > 0, (b, a))
        assert a.sync.counters()["mappings"] == 0, "b knows more of c"

        def judged() -> int:
            counters = a.sync.counters()
            return counters["mappings"] + counters["skipped"]

        before = judged()
        await carry(c, a)
        await eventually(lambda: judged() > before, "the end of the waiting")
        await a.subscription.acknowledge([Ack(each.position) for each in a.messages()])
        assert a.backlog == 0, "nobody waits for what is not there"
        await carry_until(lambda: b.backlog <= 1, (a, b))
        for _ in range(2):
            told = a.sync.counters()["updates_sent"]
            a.sync.announce_all()
            await carry_until(lambda told=told: a.sync.counters()["updates_sent"] > told, (a, b))
            await carry(a, b)
        assert not b.subscription.cursor.is_consumed(place(b, only_b)), "a never had it"
        assert a.sync.counters()["mappings"] == 0
        for each in (a, b, c):
            await each.stop()

    asyncio.run(main())
