"""Requests of the writer that meet damaged blocks. A refused request leaves nothing in the store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from duplicates_support import ON, chunks_of, numbered
from engine_support import TOPIC, all_sent, make_block, message, opened, subscribed

from replicator.engine.engine import Engine
from replicator.engine.errors import BlockCorrupt, EngineError
from replicator.engine.log.requests import CopiedBlock
from replicator.engine.log.store_tables import BLOCK_KEY, TABLES
from replicator.engine.producing.duplicate_chains import load_duplicates
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position

HEAD, BODY = 30, -1


async def damaged(engine: Engine, topic: Topic, position: Position, at: int) -> bytes:
    """Change a byte of the block at ``position``. Return the row as it was."""
    key = BLOCK_KEY.pack(topic.topic_id, *position)
    with engine.store.env.begin(db=engine.store.tables["blocks"]) as txn:
        row = bytes(txn.get(key))
    changed = bytearray(row)
    changed[at] ^= 1
    await engine.writer.put("blocks", key, bytes(changed))
    return row


def rows(engine: Engine) -> dict[str, list[tuple[bytes, bytes]]]:
    """Return all rows of the store, by table."""
    with engine.store.env.begin() as txn:
        return {
            table: [(bytes(key), bytes(value)) for key, value in txn.cursor(db=engine.store.tables[table])]
            for table in TABLES
        }


async def delivered(topic: Topic, name: str) -> list[Position]:
    consumer, inbox = await subscribed(topic, name)
    await all_sent(consumer)
    found = [each.position for each in inbox.deliveries]
    consumer.close()
    return found


def test_invariant_5_a_copy_is_taken_though_its_duplicates_block_is_damaged_and_hides_nothing(tmp_path: Path) -> None:
    """An earlier duplicate of the same block was written before; the next message at that place was hidden."""

    async def main() -> None:
        async with opened(tmp_path, "b", ON) as engine:
            topic = await engine.topic(TOPIC)
            (one,) = await topic.publish([numbered(0)])
            (two,) = await topic.publish([numbered(1)])
        async with opened(tmp_path, "b", ON) as engine:
            topic = await engine.topic(TOPIC)
            row = await damaged(engine, topic, two, BODY)
            reported: list[tuple[int, Position]] = []
            engine.store.on_damaged = lambda *place: reported.append(place)
            copied = make_block(Position(1, 0), [numbered(0), numbered(1), numbered(1, content="other")], origin="a")
            (extent,) = await topic.writing.copy([CopiedBlock(BEFORE_ALL, copied)])
            first = extent.local_first
            assert load_duplicates(engine.store, topic.topic_id) == [(one, first)]
            assert reported == [(topic.topic_id, two)], "a transaction reads a damaged block once"
            (after,) = await topic.publish([numbered(0, producer="q")])
            await engine.writer.put("blocks", BLOCK_KEY.pack(topic.topic_id, *two), row)
        again, other = (Position(first.ledger, first.entry + index) for index in (1, 2))
        async with opened(tmp_path, "b", ON) as engine:
            assert await delivered(await engine.topic(TOPIC), "s") == [one, two, again, other, after]

    asyncio.run(main())


@pytest.mark.parametrize("damaged_chunk", [0, 1])
def test_chunks_that_cannot_be_compared_are_copied_and_delivered(tmp_path: Path, damaged_chunk: int) -> None:
    async def main() -> None:
        chunks = chunks_of(3, 2)
        async with opened(tmp_path, "b", ON) as engine:
            topic = await engine.topic(TOPIC)
            here = [(await topic.publish([chunk]))[0] for chunk in chunks]
        async with opened(tmp_path, "b", ON) as engine:
            topic = await engine.topic(TOPIC)
            await damaged(engine, topic, here[damaged_chunk], BODY)
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, make_block(Position(1, 0), chunks, origin="a"))])
            assert load_duplicates(engine.store, topic.topic_id) == []
            assert topic.log.messages == 4

    asyncio.run(main())


def test_a_trim_that_meets_a_damaged_head_records_what_it_deleted_before(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = [(await topic.publish([message()]))[0] for _ in range(5)]
            await damaged(engine, topic, positions[2], HEAD)
            with pytest.raises(BlockCorrupt):
                await engine.writer.trim(topic.topic_id, positions[3], topic.tail)
            trim = engine.store.trim(topic.topic_id)
            assert (trim.through, trim.counts) == (positions[1], (2, 2))
            before = rows(engine)
            with pytest.raises(BlockCorrupt):
                await engine.writer.trim(topic.topic_id, positions[3], topic.tail)
            assert rows(engine) == before
            assert engine.writer.failed is None

    asyncio.run(main())


def test_a_refused_relabelling_changes_no_block(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = [(await topic.publish([message()]))[0] for _ in range(2)]
            await damaged(engine, topic, positions[1], BODY)
            before = rows(engine)
            with pytest.raises(BlockCorrupt):
                await engine.writer.relabel(topic.topic_id, positions, topic.incarnation + 1)
            assert rows(engine) == before

    asyncio.run(main())


def test_a_topic_with_a_wrong_name_leaves_no_record(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            before = rows(engine)
            with pytest.raises(EngineError):
                await engine.writer.create_topic("nowhere://a")
            assert rows(engine) == before

    asyncio.run(main())
