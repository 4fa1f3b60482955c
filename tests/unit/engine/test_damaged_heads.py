"""Heads of blocks that are damaged in the store's table are put back from the segment, or named."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from engine_support import logged, message, opened
from segment_support import SMALL, check_places

from replicator.api.metrics.scraping import topic_figures
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.log.damaged_heads import damaged_heads, row_by_segment
from replicator.engine.log.segments.places import Place, place_in
from replicator.engine.log.store_check import BY_A_BACKUP, BY_ITS_SEGMENT, BY_OTHERS, check_store, damaged_blocks
from replicator.engine.log.store_tables import BLOCK_KEY, LOCAL_PREFIX
from replicator.engine.topic import Topic
from replicator.engine.types import Ack
from snapshots.position import BEFORE_ALL, Position

SETTINGS = EngineSettings(segments=replace(SMALL, body_bytes_min=1_000))
IN_SEGMENT, IN_TABLE = 9_000, 100
FIRST_OF_HEAD = LOCAL_PREFIX.size + 20
"""Behind the local prefix and the place in a segment."""


async def filled(topic: Topic) -> list[tuple[Position, bytes]]:
    entries = []
    for number in range(12):
        entry = message(bytes([number]) * (IN_SEGMENT if number % 3 else IN_TABLE))
        entries.append(((await topic.publish([entry]))[0], entry))
    return entries


def row_of(engine: Engine, topic: Topic, position: Position) -> tuple[bytes, bytes]:
    key = BLOCK_KEY.pack(topic.topic_id, *position)
    with engine.store.env.begin() as txn:
        return key, bytes(txn.get(key, db=engine.store.tables["blocks"]))


async def damage(engine: Engine, topic: Topic, position: Position, at: int) -> Place | None:
    """Flip a bit of the block's row; returns where the block lies."""
    key, value = row_of(engine, topic, position)
    await engine.writer.put("blocks", key, value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :])
    return place_in(value)


@pytest.mark.parametrize("at", [LOCAL_PREFIX.size + 1, FIRST_OF_HEAD + 1, FIRST_OF_HEAD + 30])
def test_a_damaged_head_is_put_back_from_the_blocks_segment(tmp_path: Path, at: int) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=SETTINGS) as engine:
            topic = await engine.topic("a")
            entries = await filled(topic)
            hit = [entries[4][0], entries[5][0], entries[11][0]]
            before = [row_of(engine, topic, position) for position in hit]
            for position in hit:
                assert await damage(engine, topic, position, at) is not None
            checked = check_store(engine.store)
            named = [each for each in checked.problems if BY_ITS_SEGMENT in each]
            assert [str(position) in text for position, text in zip(hit, named, strict=True)] == [True] * 3
            assert checked.blocks == len(entries) - 3, "all others are read, also those behind them"
            assert list(damaged_blocks(engine.store, topic.topic_id)) == []
            heads = damaged_heads(engine.store, topic.topic_id)
            assert [head.first for head in heads] == hit
            assert [head.row for head in heads] == before
            for head in heads:
                assert head.row is not None
                await engine.writer.put("blocks", *head.row)
            assert check_store(engine.store).problems == []
            assert damaged_heads(engine.store, topic.topic_id) == []
            check_places(engine.store)
            assert [entry for _, _, entry in logged(topic)] == [entry for _, entry in entries]

    asyncio.run(main())


@pytest.mark.parametrize("at", [LOCAL_PREFIX.size + 6, -3], ids=["its place", "the sizes of its entries"])
def test_what_else_is_damaged_of_a_row_is_put_back_too(tmp_path: Path, at: int) -> None:
    """The head can be read; the block is not where it says, or is not the one that it says."""

    async def main() -> None:
        async with opened(tmp_path, settings=SETTINGS) as engine:
            topic = await engine.topic("a")
            entries = await filled(topic)
            hit = entries[4][0]
            before = row_of(engine, topic, hit)
            await damage(engine, topic, hit, at % len(before[1]))
            assert damaged_heads(engine.store, topic.topic_id) == []
            ((found, _),) = damaged_blocks(engine.store, topic.topic_id)
            assert found.first == hit
            assert row_by_segment(engine.store, topic.topic_id, hit) == before
            await engine.writer.put("blocks", *before)
            assert check_store(engine.store).problems == []

    asyncio.run(main())


def test_a_damaged_head_that_nothing_has_is_named_with_what_to_do_and_others_are_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=SETTINGS) as engine:
            topic = await engine.topic("a")
            entries = await filled(topic)
            in_table, in_segment, body_alone = entries[3][0], entries[4][0], entries[7][0]
            assert await damage(engine, topic, in_table, LOCAL_PREFIX.size + 10) is None
            place = await damage(engine, topic, in_segment, FIRST_OF_HEAD + 1)
            other = place_in(row_of(engine, topic, body_alone)[1])
            assert place is not None
            assert other is not None
        for lies in (place, other):
            path = tmp_path / "log" / "segments" / f"{lies.segment:010}.segment"
            content = bytearray(path.read_bytes())
            content[lies.offset + lies.size - 5] ^= 1
            path.write_bytes(content)
        async with opened(tmp_path, settings=SETTINGS) as engine:
            topic_id = engine.store.topics()[0].topic_id
            assert [(head.first, head.row) for head in damaged_heads(engine.store, topic_id)] == [
                (in_table, None),
                (in_segment, None),
            ]
            checked = check_store(engine.store)
            assert [BY_A_BACKUP in text for text in checked.others if "head" in text] == [False, True]
            assert BY_OTHERS in checked.others[0]
            assert f"block at {in_table} is damaged" in checked.others[0]
            assert "so is what its segment has of it" in checked.others[1]
            assert [each.first for each in checked.damaged] == [body_alone]
            assert checked.blocks == len(entries) - 3
            ((head, _),) = damaged_blocks(engine.store, topic_id)
            assert head.first == body_alone

    asyncio.run(main())


@pytest.mark.parametrize("hit", [[3], [4], [3, 4, 7]], ids=["at-mark-delete", "beyond", "several"])
def test_a_damaged_head_is_counted_and_figures_of_its_topic_are_shown_all_the_same(
    tmp_path: Path, hit: list[int]
) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=SETTINGS) as engine:
            topic = await engine.topic("a")
            positions = [position for position, _ in await filled(topic)]
            subscription = await topic.subscriptions.create("sub", BEFORE_ALL)
            await subscription.acknowledge_cumulative(positions[2], None)
            await subscription.acknowledge([Ack(positions[at]) for at in (4, 5, 7)])
            reported = set[tuple[int, Position]]()
            engine.store.on_damaged = lambda *block: reported.add(block)
            for at in hit:
                await damage(engine, topic, positions[at], FIRST_OF_HEAD + 1)
            subscription.backlog.moved()
            (figures,) = topic_figures(topic).subscriptions
            assert (figures.backlog_entries, figures.backlog_messages) == (6, 6)
            assert subscription.status()["backlog_messages"] == 6
            assert bool(reported) == (4 in hit), "the block after mark-delete need not be read"
            assert reported <= {(topic.topic_id, positions[at]) for at in hit}

    asyncio.run(main())
