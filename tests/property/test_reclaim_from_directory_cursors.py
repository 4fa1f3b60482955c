"""Acknowledgements and subscriptions that only another directory of the store has come here by ``--from-directory``.

Engines, HTTP and the reclaim are real. Invariant (DESIGN §3): 6.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest
from engine_support import TOPIC, message, opened
from test_reclaim_faults import blocks_of, clusters, live

from replicator.backup.reclaiming import reclaim
from replicator.engine.engine import Engine
from replicator.engine.log.block import BlockKind, BlockView
from replicator.engine.log.entry import decode_entry
from replicator.engine.types import Ack, InitialPosition, SubscribeOptions, SubscriptionType
from snapshots.position import Position


async def consume(engine: Engine, name: str, wanted: set[int], *, replicated: bool) -> None:
    """Acknowledge those of the messages ``wanted`` that are here, each by itself.

    If the subscription does not exist, make it, beginning at the oldest message.
    """
    topic = await engine.topic(TOPIC)
    options = SubscribeOptions(SubscriptionType.SHARED, "c", initial=InitialPosition.EARLIEST, replicated=replicated)
    consumer = await topic.subscribe(name, options, lambda _: None)
    positions = messages(engine)
    await consumer.acknowledge([Ack(positions[number]) for number in sorted(wanted) if number in positions])
    consumer.close()


def messages(engine: Engine) -> dict[int, Position]:
    """Return the position of each message by its number."""
    topic = engine.find(TOPIC)
    assert topic is not None
    found: dict[int, Position] = {}
    for block in blocks_of(topic):
        if block.header.kind is BlockKind.MESSAGES:
            for number, entry in enumerate(BlockView(block.block, block.header).entries()):
                at = Position(block.position.ledger, block.position.entry + number)
                found[int(bytes(decode_entry(entry)[1]))] = at
    return found


async def publish(engine: Engine, first: int, last: int) -> None:
    await (await engine.topic(TOPIC)).publish([message(b"%d" % number) for number in range(first, last)])


def left(engine: Engine, name: str) -> set[int]:
    topic = engine.find(TOPIC)
    assert topic is not None
    cursor = topic.subscriptions[name].cursor
    return {number for number, at in messages(engine).items() if not cursor.is_consumed(at)}


@pytest.mark.parametrize("seed", range(4))
def test_invariant_6_what_either_copy_acknowledged_is_acknowledged_and_nothing_else(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        drawn = random.Random(seed)
        async with clusters(tmp_path) as found:
            replicated = drawn.random() < 0.5

            def some() -> set[int]:
                return {number for number in range(30) if drawn.random() < 0.5}

            acked: dict[str, set[int]] = {"both": some() & set(range(10)), "there": set()}
            async with opened(found.data) as engine:
                await publish(engine, 0, 10)
                await consume(engine, "both", acked["both"], replicated=replicated)
            shutil.copytree(found.data, tmp_path / "aside")
            async with opened(tmp_path / "aside") as engine:
                await publish(engine, 10, 20)
                there = some()
                acked["both"] |= there & set(range(20))
                await consume(engine, "both", there, replicated=replicated)
                acked["there"] = some() & set(range(20))
                await consume(engine, "there", acked["there"], replicated=replicated)
            async with opened(found.data) as engine:
                if drawn.random() < 0.5:
                    await publish(engine, 20, 30)
                here = some() - set(range(10, 20))
                acked["both"] |= here
                await consume(engine, "both", here, replicated=replicated)
            for _ in range(2):
                await reclaim(found.topology, "us-east", from_directory=tmp_path / "aside")
                async with opened(found.data) as engine:
                    every = set(messages(engine))
                    assert every >= set(range(20))
                    for name in acked:
                        assert left(engine, name) == every - acked[name], name
                    topic = engine.find(TOPIC)
                    assert topic is not None
                    assert topic.subscriptions["there"].cursor.state.replicated is replicated

    asyncio.run(main())


@pytest.mark.parametrize("replicated", [False, True])
def test_subscriptions_of_a_topic_in_which_only_others_published_are_merged_too(
    tmp_path: Path, replicated: bool
) -> None:
    options = SubscribeOptions(SubscriptionType.SHARED, "c", initial=InitialPosition.EARLIEST, replicated=replicated)

    async def consume_one(engine: Engine, name: str, number: int) -> None:
        topic = await engine.topic(TOPIC)
        consumer = await topic.subscribe(name, options, lambda _: None)
        await consumer.acknowledge([Ack(blocks_of(topic)[number].position)])
        consumer.close()

    async def main() -> None:
        async with clusters(tmp_path) as found:
            await live(found.data, ["copy"] * 3, [0])
            async with opened(found.data) as engine:
                await consume_one(engine, "both", 0)
            shutil.copytree(found.data, tmp_path / "aside")
            async with opened(tmp_path / "aside") as engine:
                await consume_one(engine, "both", 1)
                await consume_one(engine, "audit", 2)
            for _ in range(2):
                done = await reclaim(found.topology, "us-east", from_directory=tmp_path / "aside")
                assert (done.topics, done.lost) == ([], [])
                async with opened(found.data) as engine:
                    topic = await engine.topic(TOPIC)
                    consumed = {
                        name: [each.cursor.is_consumed(block.position) for block in blocks_of(topic)]
                        for name, each in topic.subscriptions.items()
                    }
                assert consumed == {"both": [True, True, False], "audit": [False, False, True]}

    asyncio.run(main())


def test_subscriptions_of_a_topic_that_is_not_here_are_named_unless_links_bring_them(tmp_path: Path) -> None:
    async def main() -> None:
        async with clusters(tmp_path) as found:
            await live(tmp_path / "aside", ["copy"], [0])
            async with opened(tmp_path / "aside") as engine:
                topic = await engine.topic(TOPIC)
                for name, replicated in (("audit", False), ("shared", True)):
                    options = SubscribeOptions(SubscriptionType.SHARED, "c", replicated=replicated)
                    (await topic.subscribe(name, options, lambda _: None)).close()
            done = await reclaim(found.topology, "us-east", from_directory=tmp_path / "aside")
            (lost,) = done.lost
            assert lost.startswith(f"{TOPIC}: subscriptions that only {tmp_path / 'aside'} has do not come here")
            assert "life that it has there: audit. Make" in lost

    asyncio.run(main())
