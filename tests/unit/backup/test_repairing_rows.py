"""Blocks whose rows are gone come back from segments, and from what other clusters give; what nobody has is named."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOPIC, eventually, logged, make_block, marker, message, opened, subscribed
from segment_support import SMALL

from replicator.backup.repairing_rows import RowRepairs, mend_rows
from replicator.engine.engine import EngineSettings
from replicator.engine.log.block import BlockKind, Buffer, verify_block
from replicator.engine.log.segments.settings import SegmentSettings
from replicator.engine.log.store import Store
from replicator.engine.log.store_check import BY_A_BACKUP, check_store
from replicator.engine.log.store_tables import BLOCK_KEY
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.types import Ack
from snapshots.position import BEFORE_ALL, Position

SIZE = 1 << 30
TABLE = SegmentSettings(segment_bytes=0)
LARGE = replace(SMALL, body_bytes_min=1_000)


async def filled(path: Path, segments: SegmentSettings) -> tuple[list[Any], list[tuple[Position, bytes]]]:
    """Fill two ledgers with own messages, copied ones and markers; return the log's entries, and every block."""
    settings = EngineSettings(segments=segments)
    for ledger in range(2):
        async with opened(path, settings=settings) as engine:
            topic = await engine.topic(TOPIC)
            for number in range(4):
                at = 4 * ledger + number
                await topic.publish([message(b"%d" % at * 3_000)] * 2)
                copied = make_block(Position(7, 3 * at), [message(b"copied %d" % at)] * 3, origin="eu-west")
                previous = BEFORE_ALL if not at else Position(7, 3 * at - 1)
                await topic.writing.copy([CopiedBlock(previous, copied)])
                await topic.writing.marker(marker(), local=number % 2 == 0)
            blocks, _ = topic.reading.blocks(BEFORE_ALL, bytes_max=1 << 30)
            found = [(each.position, bytes(each.block)) for each in blocks]
            written: list[Any] = list(logged(topic))
    return written, found


def others(blocks: list[tuple[Position, bytes]]) -> Callable[..., tuple[bytes | None, str]]:
    """Clusters that have those blocks, but for local markers."""

    def ask(
        topic: str, origin: str, incarnation: int, first: Position, fits: Callable[[Buffer], bool]
    ) -> tuple[bytes | None, str]:
        assert topic == TOPIC
        for _, block in blocks:
            header = verify_block(block)
            if (
                header.kind is not BlockKind.LOCAL_MARKERS
                and header.origin == origin
                and header.origin_first <= first <= header.origin_last
                and fits(block)
            ):
                return block, ""
        return None, "nobody has it"

    return ask


def take_out(path: Path, *positions: Position, table: str = "blocks") -> None:
    store = Store(path, cluster="us-east", size_max=SIZE)
    (record,) = store.topics()
    with store.env.begin(write=True) as txn:
        for position in positions:
            assert txn.delete(BLOCK_KEY.pack(record.topic_id, *position), db=store.tables[table])
    store.close()


def mended(path: Path, ask: Callable[..., tuple[bytes | None, str]]) -> RowRepairs:
    store = Store(path, cluster="us-east", size_max=SIZE)
    try:
        assert check_store(store).problems
        done = mend_rows(store, ask)
        assert bool(check_store(store).problems) == bool(done.left)
        return done
    finally:
        store.close()


async def log_of(path: Path) -> list[object]:
    async with opened(path) as engine:
        topic = await engine.topic(TOPIC)
        assert topic.log.messages == sum(1 for _ in logged(topic))
        return list(logged(topic))


@pytest.mark.parametrize(
    "which", [(0,), (4,), (5,), (9, 10), (10, 11, 12, 13), (0, 1, 2, 3), (21,), (22, 23), (1, 9, 15)]
)
def test_blocks_come_back_from_other_clusters_as_they_were(tmp_path: Path, which: tuple[int, ...]) -> None:
    written, blocks = asyncio.run(filled(tmp_path, TABLE))
    assert len(blocks) == 24
    take_out(tmp_path, *(blocks[at][0] for at in which))
    done = mended(tmp_path, others(blocks))
    assert (done.blocks, done.left) == (len(which), [])
    assert asyncio.run(log_of(tmp_path)) == written


def test_blocks_in_segments_come_back_and_nobody_is_asked(tmp_path: Path) -> None:
    written, blocks = asyncio.run(filled(tmp_path, LARGE))
    take_out(tmp_path, blocks[3][0], blocks[6][0])

    def ask(*_: object) -> tuple[None, str]:
        raise AssertionError("nobody is asked")

    assert mended(tmp_path, ask) == RowRepairs(2)
    assert asyncio.run(log_of(tmp_path)) == written


def test_rows_that_blocks_tell_are_made_again(tmp_path: Path) -> None:
    written, blocks = asyncio.run(filled(tmp_path, TABLE))
    take_out(tmp_path, blocks[2][0], blocks[5][0], table="markers")
    store = Store(tmp_path, cluster="us-east", size_max=SIZE)
    with store.env.begin(write=True) as txn:
        txn.drop(store.tables["extents"], delete=False)
        txn.drop(store.tables["high_water"], delete=False)
    store.close()
    done = mended(tmp_path, others([]))
    assert (done.blocks, done.left) == (0, [])
    assert done.rows == 2 + 8 + 2
    assert asyncio.run(log_of(tmp_path)) == written


def test_what_nobody_has_is_named_with_topic_and_positions_and_the_rest_comes_back(tmp_path: Path) -> None:
    _, blocks = asyncio.run(filled(tmp_path, TABLE))
    lost, back = blocks[3][0], blocks[9][0]
    take_out(tmp_path, lost, back)
    done = mended(tmp_path, others([each for each in blocks if each[0] != lost]))
    assert done.blocks == 1
    (left,) = done.left
    assert left.startswith(f"topic {TOPIC}: the rows of blocks after {blocks[2][0]} up to {blocks[4][0]} are gone")
    assert "2 entries with 2 messages" in left
    assert "nobody has it" in left
    assert BY_A_BACKUP in left


def test_invariant_5_what_nobody_has_is_given_up_where_an_operator_accepts_it_and_becomes_a_hole(
    tmp_path: Path,
) -> None:
    written, blocks = asyncio.run(filled(tmp_path, TABLE))
    lost = blocks[3:5]
    take_out(tmp_path, *(at for at, _ in (*lost, blocks[9])))
    there = others([each for each in blocks if each not in lost])
    store = Store(tmp_path, cluster="us-east", size_max=SIZE)
    try:
        refused = mend_rows(store, there, accept_loss=True, all_answered=lambda: False)
        assert (len(refused.left), refused.lost) == (1, [])
        done = mend_rows(store, there, accept_loss=True)
        assert done.left == []
        own, copied = (verify_block(block) for _, block in lost)
        assert done.lost == [
            f"topic {TOPIC}: {each.origin}'s {each.origin_first} to {each.origin_last}: nobody has them"
            for each in (own, copied)
        ]
        assert check_store(store).problems == []
    finally:
        store.close()

    async def after() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            gone = {(each.origin, Position(each.origin_first.ledger, each.origin_first.entry + at))
                    for each in (own, copied) for at in range(each.entries)}  # fmt: skip
            assert [each for each in written if each[:2] not in gone] == logged(topic)
            for each in (own, copied):
                before = Position(each.origin_first.ledger, each.origin_first.entry - 1)
                assert topic.origins.left_out(each.origin) == [(before, each.origin_last)]
            _, inbox = await subscribed(topic)
            await inbox.holds(len(written) - len(gone))
            for delivery in inbox.deliveries:
                await topic.subscriptions["sub"].acknowledge([Ack(delivery.position)])
            await eventually(lambda: topic.log.next_message(topic.subscriptions["sub"].cursor.mark_delete) is None)

    asyncio.run(after())
