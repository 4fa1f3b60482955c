"""The store's extents as rows and runs, and as the headers of the blocks tell them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine_support import TOPIC, make_block, message, opened

from replicator.engine.log.extent_rows import extent_keys, read_extents, read_headers
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.topic import Topic
from snapshots.extents import Extent
from snapshots.position import BEFORE_ALL, Position


async def copy(
    topic: Topic, first: Position, entries: int, *, previous: Position, origin: str = "us-east", incarnation: int = 7
) -> None:
    block = make_block(first, [message()] * entries, origin=origin, incarnation=incarnation)
    await topic.writing.copy([CopiedBlock(previous, block)])


def test_extents_are_read_from_any_position_of_their_origin(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "eu-west") as engine:
            topic = await engine.topic(TOPIC)
            await copy(topic, Position(5, 0), 10, previous=BEFORE_ALL)
            await topic.publish([message()])
            await copy(topic, Position(5, 10), 10, previous=Position(5, 9))
            await copy(topic, Position(6, 0), 5, previous=Position(5, 19))
            await copy(topic, Position(3, 0), 5, previous=BEFORE_ALL, origin="ap-south", incarnation=2)
            ledger = topic.log.last.ledger
            extents = [
                Extent(Position(5, 0), Position(ledger, 0), 10),
                Extent(Position(5, 10), Position(ledger, 11), 10),
                Extent(Position(6, 0), Position(ledger, 21), 5),
            ]

            def read(at: Position, incarnation: int = 7, runs_max: int = 9) -> list[Extent]:
                return read_extents(engine.store, topic.topic_id, "us-east", incarnation, at=at, runs_max=runs_max)

            assert extent_keys(engine.store, topic.topic_id) == [("ap-south", 2), ("us-east", 7)]
            assert read(BEFORE_ALL) == read(Position(5, 0)) == read(Position(5, 9)) == extents
            assert read(Position(5, 10)) == read(Position(5, 19)) == extents[1:]
            assert read(Position(5, 20)) == read(Position(6, 0)) == read(Position(6, 4)) == extents[2:]
            assert read(Position(6, 5)) == read(BEFORE_ALL, 6) == read(BEFORE_ALL, 8) == []
            assert read(BEFORE_ALL, runs_max=1) == extents[:1]
            headers = read_headers(engine.store, topic.topic_id, BEFORE_ALL, topic.log.last, blocks_max=9)
            told = [Extent(each.header.origin_first, each.local_first, each.header.entries) for each in headers]
            assert [each for each in told if each in extents] == extents
            assert len(told) == 5
            after = read_headers(engine.store, topic.topic_id, Position(ledger, 9), Position(ledger, 20), blocks_max=9)
            assert [each.local_first.entry for each in after] == [10, 11]

    asyncio.run(main())
