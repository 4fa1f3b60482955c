"""Subscriptions share each turn of the event loop: those first whose clients used the least time lately."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from engine_support import TOPIC, all_sent, eventually, message, opened, subscribed

from replicator.engine.engine import Engine
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.types import Delivery
from replicator.running.turns import SAMPLED, TURN_SECONDS, FairScheduler, LoopShare

SUBSCRIPTIONS = 40


class TurnsOfLoop:
    """Counter of the turns of the event loop."""

    def __init__(self) -> None:
        self.turn = 0
        self._counting = asyncio.get_running_loop().call_soon(self._count)

    def _count(self) -> None:
        self.turn += 1
        self._counting = asyncio.get_running_loop().call_soon(self._count)

    def stop(self) -> None:
        self._counting.cancel()


def turns_of(engine: Engine) -> FairScheduler:
    return engine.loaded._dispatch_turns


def long_runs(turns: FairScheduler) -> None:
    """Have each dispatch take the time of a whole turn, whatever the machine does."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1.5 * TURN_SECONDS
        return now

    turns.clock = clock


async def consumers_of(
    engine: Engine, noted: Callable[[int], object], subscriptions: int = SUBSCRIPTIONS
) -> list[EngineConsumer]:
    """Return consumers of as many subscriptions, all without anything to do. ``noted`` gets the number of each that
    is delivered to."""
    topic = await engine.topic(TOPIC)
    found = []
    for number in range(subscriptions):
        consumer, _ = await subscribed(topic, f"s-{number}")

        def deliver(_: Sequence[Delivery], number: int = number) -> None:
            noted(number)

        consumer.deliver = deliver
        await all_sent(consumer)
        found.append(consumer)
    return found


@pytest.mark.parametrize("entries", [1, 3], ids=["one small entry", "several entries"])
def test_in_each_turn_of_the_event_loop_few_subscriptions_dispatch_and_all_do_in_the_end(
    tmp_path: Path, entries: int
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            turn_of: dict[int, int] = {}
            await consumers_of(engine, lambda number: turn_of.setdefault(number, loop.turn))
            topic = await engine.topic(TOPIC)
            long_runs(turns_of(engine))
            loop = TurnsOfLoop()
            await topic.publish([message()] * entries)
            await eventually(lambda: len(turn_of) == SUBSCRIPTIONS)
            loop.stop()
            turns = list(turn_of.values())
            at_once = SAMPLED if entries == 1 else 1
            assert max(turns.count(each) for each in turns) <= 2 * at_once, "some that begin at once, or that waited"

    asyncio.run(main())


def test_of_subscriptions_that_wait_those_come_first_whose_clients_used_the_least_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            order: list[int] = []
            consumers = await consumers_of(engine, order.append)
            turns = turns_of(engine)
            for number, consumer in enumerate(consumers[:-1]):
                turns.spend(consumer.share, 1.0 + number, turns.clock())
            long_runs(turns)
            topic = await engine.topic(TOPIC)
            await topic.publish([message()] * 3)
            await eventually(lambda: len(order) == len(consumers))
            assert len(consumers) - 1 in order[:2], "one may begin at once"

    asyncio.run(main())


def test_time_of_dispatch_counts_as_use_of_the_clients_that_get_the_messages(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic, permits=0)
            consumer.share = LoopShare("10.0.0.1:5")
            engine.turns.opened(consumer.share)
            await topic.publish([message()] * 10)
            consumer.flow(1000)
            await inbox.holds(10)
            await all_sent(consumer)
            ((named, seconds),) = engine.turns.busiest(3)
            assert named is consumer.share
            assert seconds > 0

    asyncio.run(main())


def test_dispatch_that_is_postponed_while_it_waits_for_its_turn_delivers_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic)
            await all_sent(consumer)
            turns, pump = turns_of(engine), topic.subscriptions["sub"].dispatching.pump
            await topic.publish([message()] * 3)
            consumer.redeliver()
            turns.spend(LoopShare(""), TURN_SECONDS, turns.clock())
            pump._run()
            assert pump._waits
            pump.postpone()
            assert pump.scheduled
            assert not pump._waits
            await inbox.holds(3)
            await all_sent(consumer)
            assert len(inbox.positions) == len(set(inbox.positions)) or len(inbox.positions) == 6
            consumer.close()
            turns.spend(LoopShare(""), TURN_SECONDS, turns.clock())
            pump._run()  # nobody is there any more
            assert not pump.scheduled

    asyncio.run(main())
