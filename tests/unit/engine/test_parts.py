"""Batches that a link shortened: in blocks, in cursors, in topics that start again; and notes for blocks."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engine_support import TOPIC, batch, make_block, message, opened, subscribed
from pyroaring import BitMap

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import BlockKind, BlockView, verify_block
from replicator.engine.log.left_out import LeftOutNote, encode_note
from replicator.engine.log.parts import decode_parts
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.log.store_tables import HighWater
from replicator.engine.policies import TopicPolicies
from replicator.engine.types import Ack
from snapshots.position import BEFORE_ALL, Position

THREE = [batch([b"a", b"b", b"c"]), message(b"d"), batch([b"e"] * 9)]
BLOCK = make_block(Position(5, 10), THREE, origin="x", batch_sizes=[3, 1, 9], absent={0: [1], 2: [0, 8]})


def test_a_block_says_what_its_batches_lack_and_keeps_saying_so_when_it_is_cut() -> None:
    view = BlockView(BLOCK, verify_block(BLOCK))
    assert view.absent == {0: BitMap([1]), 2: BitMap([0, 8])}
    assert [bytes(entry) for entry in view.entries()] == THREE
    rest = view.slice(1, 3)
    assert BlockView(rest, verify_block(rest)).absent == {1: BitMap([0, 8])}
    alone = view.slice(1, 2)
    assert verify_block(alone).parts_bytes == 0, "as any block that lacks nothing"
    assert alone == make_block(Position(5, 11), THREE[1:2], origin="x")


@pytest.mark.parametrize("at", range(1, 20))
def test_what_is_damaged_of_it_is_found(at: int) -> None:
    damaged = bytearray(BLOCK)
    damaged[-at] ^= 1
    with pytest.raises(BlockCorrupt):
        verify_block(bytes(damaged))


@pytest.mark.parametrize(
    "section",
    [
        b"\0\0\0\0",
        b"\1\0\0\0\3\0\0\0\1",
        b"\2\0\0\0\1\0\0\0\0\0\0\0\1\1",
        b"\1\0\0\0\0\0\0\0\0",
        b"\1\0\0\0\0\0\0\0\7",
        b"\1\0\0\0\0\0\0\0\x0a",
        b"\1\0\0\0\0\0\0\0\2\0",
        b"\xff\xff\xff\xff",
    ],
    ids=[
        "nothing",
        "no such entry",
        "out of order",
        "lacks none",
        "lacks all",
        "no such index",
        "too long",
        "too many",
    ],
)
def test_a_section_that_cannot_be_true_is_refused(section: bytes) -> None:
    sizes = BlockView(BLOCK).batch_sizes
    with pytest.raises(BlockCorrupt):
        decode_parts(section, sizes)


def test_markers_lack_nothing() -> None:
    with pytest.raises(AssertionError):
        make_block(Position(1, 0), [b"m"], kind=BlockKind.MARKERS, batch_sizes=[0], absent={0: [0]})


NOTE = LeftOutNote("x", 7, Position(5, 20))


def test_a_batch_is_consumed_with_all_that_is_here_of_it_also_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, BLOCK), CopiedBlock(Position(5, 12), encode_note(NOTE))])
            assert topic.origins.high_water("x") == HighWater(7, Position(5, 20)), "block and note in one commit"
            consumer, inbox = await subscribed(topic)
            await inbox.holds(3)
            assert BitMap.deserialize(inbox.deliveries[0].acked) == BitMap([1]), "clients are told what is not there"
            await consumer.acknowledge([Ack(inbox.positions[0], (0,))])
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            assert list(topic.origins.partly_left_out("x")) == [Position(5, 10), Position(5, 12)]
            assert topic.origins.high_water("x") == HighWater(7, Position(5, 20))
            assert topic.origins.left_out("x") == [(BEFORE_ALL, Position(5, 9)), (Position(5, 12), Position(5, 20))][1:]
            consumer, inbox = await subscribed(topic)
            await inbox.holds(3)
            cursor = topic.subscriptions["sub"].cursor
            assert cursor.acked_indexes(inbox.positions[0]) == BitMap([0, 1])
            await consumer.acknowledge([Ack(inbox.positions[0], (2,))])
            assert cursor.is_consumed(inbox.positions[0])

    asyncio.run(main())


@pytest.mark.parametrize("lacks", [False, True])
def test_a_batch_that_lacks_messages_is_no_duplicate_of_one_that_has_them(tmp_path: Path, lacks: bool) -> None:
    """Otherwise the messages that only the other batch has would be hidden or consumed with it."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.policies.set(TopicPolicies(deduplication=True))
            sent_to_both = batch([b"a", b"b"])
            absent = {0: [1]} if lacks else {}
            copied = make_block(Position(5, 0), [sent_to_both], origin="x", batch_sizes=[2], absent=absent)
            again = make_block(Position(6, 0), [sent_to_both], origin="y", batch_sizes=[2])
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, copied)])
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, again)])
            _, inbox = await subscribed(topic)
            await inbox.holds(2 if lacks else 1)
            assert (topic.log.duplicates is None) == lacks

    asyncio.run(main())


def test_a_cumulative_acknowledgement_says_nothing_of_what_is_not_here(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, BLOCK)])
            subscription = await topic.subscriptions.create("sub", BEFORE_ALL)
            first = topic.log.first
            assert first is not None
            await subscription.acknowledge_cumulative(first, 1)
            assert subscription.cursor.state.batch_acks[first] == BitMap([0]), "nobody here has seen the second"
            await subscription.acknowledge_cumulative(first, 2)
            assert subscription.cursor.mark_delete == first

    asyncio.run(main())
