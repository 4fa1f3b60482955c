"""Publishes that begin without a task keep their order with those that need one."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from engine_support import TOPIC, message, opened

from replicator.engine.errors import NotAllowedError
from replicator.engine.log.entry import decode_entry
from replicator.engine.policies import TopicPolicies
from replicator.engine.producing.producers import EngineProducer
from replicator.engine.producing.publish_order import OrderTicket, PublishOrder
from replicator.engine.topic import Topic
from replicator.engine.types import ProducerOptions
from snapshots.position import BEFORE_ALL, Position


def stored(topic: Topic) -> list[int]:
    """Return the sequence ids in the log, in its order."""
    entries = topic.reading.entries(BEFORE_ALL, None, 10_000, 1 << 30)
    return [decode_entry(bytes(each.entry))[0].sequence_id for each in entries]


def begun(producer: EngineProducer, entries: Sequence[bytes], turn: OrderTicket) -> asyncio.Future[list[Position]]:
    """Begin a publish, and return a future as its receiver."""
    answer: asyncio.Future[list[Position]] = asyncio.get_running_loop().create_future()
    producer.begin_publish(entries, turn, answer)
    return answer


@pytest.mark.parametrize("deduplication", [False, True])
def test_behind_a_refused_call_of_the_same_turn_nothing_is_stored(tmp_path: Path, deduplication: bool) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.policies.set(TopicPolicies(deduplication=deduplication))
            producer = await topic.producers.create(ProducerOptions())
            order = PublishOrder()
            for_some, for_all = message(sequence_id=1, clusters=["us-east"]), message(sequence_id=2)
            first = begun(producer, [for_some, for_all], order.turn())  # they cannot be published at once
            second = begun(producer, [message(sequence_id=3)], order.turn())
            for call in (first, second):
                with pytest.raises(NotAllowedError):
                    await call
            assert stored(topic) == []

    asyncio.run(main())


def test_a_small_call_does_not_overtake_a_large_one_of_the_same_turn(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            producer = await topic.producers.create(ProducerOptions())
            order = PublishOrder()
            large = [message(bytes(3 << 20), sequence_id=number) for number in (1, 2)]
            calls = [begun(producer, large, order.turn())]
            calls += [begun(producer, [message(sequence_id=number)], order.turn()) for number in (3, 4)]
            await asyncio.gather(*calls)
            assert stored(topic) == [1, 2, 3, 4]

    asyncio.run(main())


def test_a_receiver_that_fails_does_not_keep_the_outcome_from_others(tmp_path: Path) -> None:
    class Failing:
        def done(self) -> bool:
            return False

        def set_result(self, result: object) -> None:
            raise RuntimeError("a bug")

        set_exception = set_result

        def cancel(self) -> bool:
            return True

    async def main() -> None:
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            producer = await topic.producers.create(ProducerOptions())
            order = PublishOrder()
            assert producer.begin_publish([message(sequence_id=1)], order.turn(), Failing()) is None
            await begun(producer, [message(sequence_id=2)], order.turn())
            assert stored(topic) == [1, 2]
        assert [str(each) for each in failures] == ["a bug"]

    asyncio.run(main())


def test_a_call_that_was_given_up_before_its_task_ran_holds_up_no_later_one(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            producer = await topic.producers.create(ProducerOptions())
            order = PublishOrder()
            large = [message(bytes(3 << 20), sequence_id=number) for number in (1, 2)]
            answer: asyncio.Future[list[Position]] = asyncio.get_running_loop().create_future()
            task = producer.begin_publish(large, order.turn(), answer)
            assert task is not None
            task.cancel()
            await begun(producer, [message(sequence_id=3)], order.turn())
            assert answer.cancelled()
            assert stored(topic) == [3]

    asyncio.run(main())
