"""Several lives of one origin in a log: one mark for all of them, and look-ups that find each entry by its position."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engine_support import HeldClock, entries_of, make_block, marker, message, one_group, opened

from replicator.engine.engine import Engine
from replicator.engine.errors import BlockCorrupt, NotAllowedError
from replicator.engine.log.block import BlockKind
from replicator.engine.log.extent_rows import Life, lives
from replicator.engine.log.left_out import LeftOutNote, decode_note, encode_note
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.log.store_tables import HighWater
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position

LIVES = {7: 9, 20: 21, 30: 33}
"""The incarnations of x, each with its one ledger."""


def block(incarnation: int, kind: BlockKind = BlockKind.MESSAGES, first: int = 0) -> bytes:
    entry = message() if kind is BlockKind.MESSAGES else marker()
    return make_block(Position(LIVES[incarnation], first), [entry] * 3, origin="x", incarnation=incarnation, kind=kind)


async def with_lives(engine: Engine) -> Topic:
    """Make a topic that has three entries of each life."""
    topic = await engine.topic("orders")
    before = BEFORE_ALL
    for incarnation, ledger in LIVES.items():
        await engine.writer.keep_both(topic.tail, {"x": HighWater(incarnation, BEFORE_ALL)})
        await topic.writing.copy([CopiedBlock(before, block(incarnation))])
        before = Position(ledger, 2)
    return topic


def test_entries_of_all_lives_are_found_by_their_positions_also_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        for restarted in (False, True):
            async with opened(tmp_path) as engine:
                topic = await engine.topic("orders") if restarted else await with_lives(engine)
                store, topic_id = engine.store, topic.topic_id
                assert topic.origins.high_water("x") == HighWater(30, Position(33, 2))
                expected = [Life(each, Position(ledger, 0), Position(ledger, 2)) for each, ledger in LIVES.items()]
                assert lives(store, topic_id) == {"x": expected}
                assert topic.origins.earlier_lives() == {"x/7": Position(9, 2), "x/20": Position(21, 2)}
                here = [entry.position for entry in topic.reading.entries(BEFORE_ALL, None, 100, 10**6)]
                for index, (ledger, entry) in enumerate((each, at) for each in LIVES.values() for at in range(3)):
                    assert store.floor(topic_id, "x", Position(ledger, entry)) == here[index]
                    assert topic.origins.had("x", Position(ledger, entry))
                assert store.floor(topic_id, "x", Position(15, 0)) == here[2], "between two lives"
                assert store.floor(topic_id, "x", Position(8, 0)) is None
                assert not topic.origins.had("x", Position(9, 3))
                assert store.newest_message(topic_id, "x", here[4]) == Position(21, 2), "blocks are looked at whole"
                assert store.newest_message(topic_id, "us-east", here[4]) is None

    asyncio.run(main())


def test_the_newest_message_of_an_origin_is_no_marker(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic("orders")
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, block(7))])
            await topic.writing.copy([CopiedBlock(Position(9, 2), block(7, BlockKind.MARKERS, first=3))])
            assert engine.store.newest_message(topic.topic_id, "x", topic.log.last) == Position(9, 2)

    asyncio.run(main())


def test_invariant_12_a_request_with_a_number_that_no_row_can_hold_is_refused_alone(tmp_path: Path) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=clock.settings()) as engine:
            topic = await with_lives(engine)
            before = topic.origins.high_water("x")
            results = await one_group(
                engine,
                clock,
                topic.publish([message(b"1")]),
                engine.writer.keep_both(topic.tail, {"x": HighWater(2**64, BEFORE_ALL)}),
                topic.publish([message(b"2")]),
            )
            assert [isinstance(each, Exception) for each in results] == [False, True, False]
            assert isinstance(results[1], NotAllowedError)
            assert entries_of(topic, "us-east") == [message(b"1"), message(b"2")]
            assert (topic.origins.high_water("x"), topic.tail.high_water["x"]) == (before, before)
            assert engine.writer.failed is None

    asyncio.run(main())


@pytest.mark.parametrize("note", [LeftOutNote("x", 2**63, Position(9, 2)), LeftOutNote("x", 7, Position(9, 2**32))])
def test_a_note_with_a_number_that_no_life_can_have_is_damaged(note: LeftOutNote) -> None:
    with pytest.raises(BlockCorrupt, match="where no message can be"):
        decode_note(encode_note(note))
