"""A copy is deleted for a copy anew only if no message is lost by it: earlier lives, and what is on its way.

Invariants (DESIGN §3): 1, 12, 13.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engine_support import TOPIC, HeldClock, entries_of, eventually, make_block, message, opened, serving

from replicator.api.copies import delete_copy, would_lose
from replicator.engine.errors import LogMoved, NotAllowedError
from replicator.engine.log.store_tables import HighWater
from replicator.engine.log.writer import CopiedBlock
from replicator.links.link import Link
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


def test_a_message_that_is_confirmed_while_a_copy_is_to_be_deleted_keeps_the_copy(tmp_path: Path) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, "eu-west", clock.settings()) as engine:
            topic = await engine.topic(TOPIC, by_link=True)
            copied = make_block(Position(1, 0), [message()] * 3, origin="us-east", incarnation=7)
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, copied)])
            there = {"us-east": HighWater(7, Position(1, 2))}
            clock.free.clear()  # the writer stores nothing: the message is in its queue, and in no vector
            publishing = asyncio.ensure_future(topic.publish([message(b"confirmed")]))
            await asyncio.sleep(0)
            assert would_lose(topic, "us-east", there) is None
            deleting = asyncio.ensure_future(delete_copy(engine, "us-east", topic, there))
            await asyncio.sleep(0.05)
            clock.free.set()
            with pytest.raises(NotAllowedError, match="published here"):
                await deleting
            (position,) = await publishing
            assert engine.find(TOPIC) is topic
            assert topic.origins.message_vector()["eu-west"] == position
            await topic.publish([message(b"goes on")])

    asyncio.run(main())


def test_a_message_that_came_while_its_topic_was_to_be_deleted_is_copied_when_the_topic_stays(tmp_path: Path) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with (
            opened(tmp_path / "eu-west", "eu-west", clock.settings()) as engine,
            opened(tmp_path / "ap-south", "ap-south") as other,
            serving(other, {"eu-west"}) as server,
        ):
            topic = await engine.topic(TOPIC, by_link=True)
            copied = make_block(Position(1, 0), [message()] * 3, origin="us-east", incarnation=7)
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, copied)])
            there = {"us-east": HighWater(7, Position(1, 2))}
            link = Link(engine, "ap-south", server.address)
            link.start()
            await eventually(lambda: link.state == "idle")
            clock.free.clear()
            publishing = asyncio.ensure_future(topic.publish([message(b"confirmed")]))
            await asyncio.sleep(0)
            deleting = asyncio.ensure_future(delete_copy(engine, "us-east", topic, there))
            await eventually(lambda: topic.deleted is not None)
            clock.free.set()
            with pytest.raises(NotAllowedError, match="published here"):
                await deleting
            await publishing
            await eventually(
                lambda: (found := other.find(TOPIC)) and entries_of(found, "eu-west") == [message(b"confirmed")]
            )
            await link.stop()

    asyncio.run(main())


def test_a_deletion_that_was_decided_before_the_last_message_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "eu-west") as engine:
            topic = await engine.topic(TOPIC)
            decided_at = await engine.writer.messages_ever(topic.tail)
            await topic.publish([message()])
            with pytest.raises(LogMoved, match="try again"):
                await engine.writer.delete_topics([topic.tail], messages={topic.topic_id: decided_at})
            await topic.publish([message()])
            assert await engine.writer.messages_ever(topic.tail) == decided_at + 2

    asyncio.run(main())


def test_a_copy_of_which_the_source_has_everything_is_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, "eu-west") as engine:
            topic = await engine.topic(TOPIC, by_link=True)
            copied = make_block(Position(1, 0), [message()] * 3, origin="us-east", incarnation=7)
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, copied)])
            await delete_copy(engine, "us-east", topic, {"us-east": HighWater(7, Position(1, 2))})
            assert engine.find(TOPIC) is None

    asyncio.run(main())
