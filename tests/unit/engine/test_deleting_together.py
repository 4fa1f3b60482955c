"""Deleting the subscription of several topics: all of them, or none, whoever connects meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engine_support import HeldClock, eventually, message, opened, subscribed

from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError, SubscriptionBusy, SubscriptionNotFound
from replicator.engine.subscriptions.deleting import delete_together
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL


async def made(engine: Engine) -> tuple[list[Topic], list[Subscription]]:
    topics = [await engine.topic(f"persistent://public/default/t-{number}") for number in range(3)]
    for topic in topics:
        await topic.subscriptions.create("sub", BEFORE_ALL, replicated=False)
    return topics, [topic.subscriptions["sub"] for topic in topics]


def test_a_consumer_that_comes_while_others_are_deleted_does_not_leave_half_of_them(tmp_path: Path) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=clock.settings()) as engine:
            topics, subscriptions = await made(engine)
            clock.free.clear()
            deleting = asyncio.ensure_future(delete_together(subscriptions))
            await asyncio.sleep(0.02)
            for topic in topics:
                with pytest.raises(SubscriptionNotFound, match="is being deleted"):
                    await subscribed(topic)
            clock.free.set()
            await deleting
            assert [list(topic.subscriptions) for topic in topics] == [[], [], []]
            await subscribed(topics[0])  # a new one

    asyncio.run(main())


def test_all_are_deleted_though_the_caller_gives_up(tmp_path: Path) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=clock.settings()) as engine:
            topics, subscriptions = await made(engine)
            clock.free.clear()
            deleting = asyncio.ensure_future(delete_together(subscriptions))
            await asyncio.sleep(0.02)
            deleting.cancel()
            await asyncio.wait([deleting])
            clock.free.set()
            await eventually(lambda: not any("sub" in topic.subscriptions for topic in topics))

    asyncio.run(main())


def test_none_is_deleted_if_one_is_being_deleted_or_used(tmp_path: Path) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=clock.settings()) as engine:
            topics, subscriptions = await made(engine)
            clock.free.clear()
            another = asyncio.ensure_future(subscriptions[2].deleting.delete())
            await asyncio.sleep(0.02)
            with pytest.raises(SubscriptionNotFound, match="t-2 is being deleted"):
                await delete_together(subscriptions)
            clock.free.set()
            await another
            _, inbox = await subscribed(topics[1])
            with pytest.raises(SubscriptionBusy):
                await delete_together(subscriptions[:2])
            assert [list(topic.subscriptions) for topic in topics] == [["sub"], ["sub"], []]
            await topics[1].publish([message()])
            await inbox.holds(1)

    asyncio.run(main())


def test_subscriptions_that_the_store_does_not_delete_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topics, subscriptions = await made(engine)

            async def refuse(*_: object, **__: object) -> None:
                raise EngineError("not now")

            with monkeypatch.context() as patch:
                patch.setattr(engine.writer, "put_many", refuse)
                with pytest.raises(EngineError, match="not now"):
                    await delete_together(subscriptions)
            for topic in topics:
                consumer, _ = await subscribed(topic)
                consumer.close()
            await delete_together(subscriptions)
            assert [list(topic.subscriptions) for topic in topics] == [[], [], []]

    asyncio.run(main())
