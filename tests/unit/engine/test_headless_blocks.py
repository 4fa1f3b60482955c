"""Choice of a copy for a small block whose head is damaged; other rows tell which one fits."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from asynchronous import asynchronous
from engine_support import logged, make_block, message, opened

from replicator.engine.engine import Engine
from replicator.engine.log.block import verify_block
from replicator.engine.log.damaged_heads import damaged_heads
from replicator.engine.log.headless_blocks import HeadlessBlock, headless_block
from replicator.engine.log.store_check import check_store
from replicator.engine.log.store_tables import BLOCK_KEY, LOCAL_PREFIX
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position

HEAD_AT, BODY_AT = LOCAL_PREFIX.size + 12, -3
OWN, COPIED, LAST = 3, 5, 8


async def filled(topic: Topic) -> list[tuple[Position, bytes]]:
    """One block of this cluster and two of another one, in turn: the local position and bytes of each. The two have
    one extent."""
    for number in range(6):
        if number % 2 == 0:
            await topic.publish([message(b"own %d" % number)] * 2)
        previous = BEFORE_ALL if not number else Position(7, 3 * number - 1)
        copied = make_block(Position(7, 3 * number), [message(b"copied %d" % number)] * 3, origin="eu-west")
        await topic.writing.copy([CopiedBlock(previous, copied)])
    blocks, _ = topic.reading.blocks(BEFORE_ALL, bytes_max=1 << 30)
    assert len(blocks) == 9
    return [(each.position, bytes(each.block)) for each in blocks]


async def lost(engine: Engine, topic: Topic, position: Position, *flipped: int) -> HeadlessBlock | None:
    """Flip those bytes in a block's row; return what is known of the block."""
    key = BLOCK_KEY.pack(topic.topic_id, *position)
    with engine.store.env.begin() as txn:
        value = bytearray(txn.get(key, db=engine.store.tables["blocks"]))
    for at in flipped:
        value[at] ^= 0x10
    await engine.writer.put("blocks", key, bytes(value))
    (head,) = damaged_heads(engine.store, topic.topic_id)
    assert (head.first, head.row, head.in_table) == (position, None, True)
    (record,) = engine.store.topics()
    return headless_block(engine.store, record, position)


@dataclass(frozen=True)
class Lost:
    """Topic with one block that has lost its head, and what is known of that block."""

    engine: Engine
    topic: Topic
    blocks: list[tuple[Position, bytes]]
    logged: object
    """The log's content before the loss."""
    position: Position
    block: bytes
    found: HeadlessBlock | None

    @property
    def known(self) -> HeadlessBlock:
        assert self.found is not None
        return self.found


@asynccontextmanager
async def with_lost(path: Path, which: int, *flipped: int) -> AsyncIterator[Lost]:
    """Yield a topic that lost the head of block number ``number`` of :func:`filled`."""
    async with opened(path) as engine:
        topic = await engine.topic("a")
        blocks = await filled(topic)
        before = logged(topic)
        position, block = blocks[which]
        yield Lost(engine, topic, blocks, before, position, block, await lost(engine, topic, position, *flipped))


@pytest.mark.parametrize(
    "flipped", [(HEAD_AT,), (HEAD_AT + 30,), (HEAD_AT, BODY_AT)], ids=["kind", "entry", "body too"]
)
@pytest.mark.parametrize("which", [0, OWN, COPIED - 1, COPIED])
@asynchronous
async def test_a_block_is_known_by_the_rows_around_it_and_no_other_is_taken(
    tmp_path: Path, which: int, flipped: tuple[int, ...]
) -> None:
    async with with_lost(tmp_path, which, *flipped) as made:
        found, engine, topic = made.known, made.engine, made.topic
        header = verify_block(made.block)
        assert (found.origin, found.incarnation) == (header.origin, header.incarnation)
        assert (found.origin_first, found.counts) == (header.origin_first, (header.entries, header.messages))
        assert [found.is_copy(each) for _, each in made.blocks] == [each == made.block for _, each in made.blocks]
        assert not found.is_copy(found.block), "it is not whole"
        await engine.writer.put("blocks", BLOCK_KEY.pack(topic.topic_id, *made.position), found.prefix + made.block)
        assert check_store(engine.store).problems == []
        assert logged(topic) == made.logged


@asynchronous
async def test_of_the_last_block_nobody_counts_the_entries_so_its_body_has_to_be_whole(tmp_path: Path) -> None:
    async with with_lost(tmp_path, LAST, HEAD_AT) as made:
        found, block = made.known, made.block
        assert found.counts is None
        assert found.is_copy(block)
        assert not replace(found, block=found.block[:-1] + b"!").is_copy(block)


@asynchronous
async def test_a_copy_with_other_contents_at_the_same_place_is_not_taken(tmp_path: Path) -> None:
    """The copy is whole and as long. But a block with messages left out differs from cluster to cluster."""
    async with with_lost(tmp_path, COPIED, HEAD_AT) as made:
        found, block = made.known, made.block
        header = verify_block(block)
        other = make_block(header.origin_first, [message(b"Copied 3")] * 3, origin="eu-west")
        assert len(other) == len(block)
        assert found.is_copy(block)
        assert not replace(found, in_part=True).is_copy(block)
        assert not replace(found, counts=(2, 2)).is_copy(block)
        assert not replace(found, counts=None).is_copy(other)


@asynchronous
async def test_a_row_that_contradicts_the_one_behind_it_names_no_block(tmp_path: Path) -> None:
    async with with_lost(tmp_path, COPIED, HEAD_AT, 0) as made:
        assert made.found is None
