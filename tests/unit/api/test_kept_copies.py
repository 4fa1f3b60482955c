"""A copy that keeps an earlier life of a third cluster's topic is not deleted for a copy anew.

Invariant (DESIGN §3): 12.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from engine_support import TOPIC, make_block, message, opened

from replicator.api.copies import would_lose
from replicator.engine.log.store_tables import HighWater
from replicator.engine.log.writer import CopiedBlock
from snapshots.position import BEFORE_ALL, Position


def test_a_copy_that_keeps_an_earlier_life_of_another_origin_is_not_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "eu-west") as engine:
            topic = await engine.topic(TOPIC)
            earlier = make_block(Position(11, 0), [message()] * 3, origin="ap-south", incarnation=10)
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, earlier)])
            there = {"ap-south": HighWater(10, Position(11, 2))}
            assert would_lose(topic, "us-east", there) is None
            await engine.writer.keep_both(topic.tail, {"ap-south": HighWater(20, Position(11, 2))})
            later = make_block(Position(21, 0), [message()] * 3, origin="ap-south", incarnation=20)
            await topic.writing.copy([CopiedBlock(Position(11, 2), later)])
            there = {"ap-south": HighWater(20, Position(21, 2))}
            assert "keeps an earlier life" in str(would_lose(topic, "us-east", there))

    asyncio.run(main())
