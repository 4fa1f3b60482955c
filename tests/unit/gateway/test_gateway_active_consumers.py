"""News for Failover consumers whether they are the active one: when they are sent, and what they say."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from engine_support import TOPIC, opened
from wire_support import Connected

from replicator.engine.topic import Topic
from replicator.engine.types import SubscribeOptions, SubscriptionType
from replicator.gateway.consuming import FIRST_ACTIVE_CHANGE_SECONDS, ConsumerSession


async def joined(topic: Topic, wire: Connected, number: int, *, extended: bool = False) -> ConsumerSession:
    """Connect a Failover consumer with the id ``number``, and let the engine tell it whether it is active."""
    session = ConsumerSession(wire, number, topic, None, extended=extended)
    options = SubscribeOptions(SubscriptionType.FAILOVER, consumer_name=f"c{number}")
    session.connected(await topic.subscribe("s", options, session.deliver))
    await asyncio.sleep(0)
    return session


def news(wire: Connected) -> list[tuple[int, bool]]:
    """Return the consumers that were told something since the last call, and whether they are active."""
    found = [(each.active_consumer_change.consumer_id, each.active_consumer_change.is_active) for each in wire.commands]
    wire.commands.clear()
    return found


def let_a_second_pass(wire: Connected) -> None:
    assert {seconds for seconds, _ in wire.timers} == {FIRST_ACTIVE_CHANGE_SECONDS}
    for _, timer in wire.timers:
        if not timer.cancelled():
            timer._run()
    wire.timers.clear()


def run(path: Path, test: Callable[[Topic, Connected], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened(path) as engine:
            await test(await engine.topic(TOPIC), Connected(engine.admission))

    asyncio.run(main())


def test_the_first_news_comes_a_second_after_the_subscription_and_later_ones_at_once(tmp_path: Path) -> None:
    async def test(topic: Topic, wire: Connected) -> None:
        first, _ = await joined(topic, wire, 1), await joined(topic, wire, 2)
        assert news(wire) == []
        let_a_second_pass(wire)
        assert news(wire) == [(1, True), (2, False)]
        first.close()
        await asyncio.sleep(0)
        assert (news(wire), wire.timers) == ([(2, True)], [])

    run(tmp_path, test)


def test_the_first_news_says_what_holds_when_it_is_sent(tmp_path: Path) -> None:
    async def test(topic: Topic, wire: Connected) -> None:
        first, _ = await joined(topic, wire, 1), await joined(topic, wire, 2)
        first.close()
        await asyncio.sleep(0)
        assert news(wire) == []
        let_a_second_pass(wire)
        assert news(wire) == [(2, True)]

    run(tmp_path, test)


@pytest.mark.parametrize("end", ["the client closes it", "the engine closes it", "its subscription is deleted"])
def test_a_consumer_that_is_gone_gets_no_news(tmp_path: Path, end: str) -> None:
    async def test(topic: Topic, wire: Connected) -> None:
        session = await joined(topic, wire, 1)
        if end == "the client closes it":
            session.close()
        elif end == "the engine closes it":
            session.consumer.close("an operator closed it")
        else:
            await session.unsubscribe(force=False)
        wire.commands.clear()
        assert [timer.cancelled() for _, timer in wire.timers] == [True]
        assert news(wire) == []

    run(tmp_path, test)


def test_our_own_clients_are_told_at_once(tmp_path: Path) -> None:
    async def test(topic: Topic, wire: Connected) -> None:
        await joined(topic, wire, 1, extended=True)
        assert (news(wire), wire.timers) == ([(1, True)], [])

    run(tmp_path, test)
