"""Terminated topics: where the end is, who is refused, who is told, and what still comes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from engine_support import (
    TOPIC,
    HeldClock,
    entries_of,
    eventually,
    make_block,
    marker,
    message,
    one_group,
    opened,
    subscribed,
)

from replicator.engine.errors import TopicTerminated
from replicator.engine.log.requests import StagedPart
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.policies import BacklogQuota, QuotaPolicy, TopicPolicies
from replicator.engine.producing.producers import TopicProducers
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.topic import Topic
from replicator.engine.types import Ack, ProducerOptions, SubscriptionType
from snapshots.position import BEFORE_ALL, Position


class Ends:
    """Counts how often a consumer is told that it has reached the end."""

    def __init__(self, consumer: EngineConsumer) -> None:
        self.told = 0
        consumer.on_reached_end = self

    def __call__(self) -> None:
        self.told += 1


def test_what_came_before_is_stored_and_what_comes_after_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        clock = HeldClock()
        async with opened(tmp_path, settings=clock.settings()) as engine:
            topic = await engine.topic(TOPIC)
            before, end, after = await one_group(
                engine, clock, topic.publish([message(b"a")]), topic.terminate(), topic.publish([message(b"b")])
            )
            assert before == [end]
            assert isinstance(after, TopicTerminated)
            assert entries_of(topic, "us-east") == [message(b"a")]
            assert await topic.terminate() == end

    asyncio.run(main())


def test_it_is_terminated_after_a_restart_too_and_anew_when_it_is_made_anew(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            assert await (await engine.topic(TOPIC)).terminate() == BEFORE_ALL
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            with pytest.raises(TopicTerminated):
                await topic.publish([message()])
            with pytest.raises(TopicTerminated):
                await topic.producers.create(ProducerOptions())
            with pytest.raises(TopicTerminated):
                topic.writing.check_takes()
            await engine.deleting.delete(TOPIC, force=False)
            await (await engine.topic(TOPIC)).publish([message()])

    asyncio.run(main())


def test_producers_are_let_go_of_and_hear_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            producer = await topic.producers.create(ProducerOptions(name="p"))
            told: list[str] = []
            producer.on_closed = lambda code, reason: told.append(code)
            await topic.terminate()
            await eventually(lambda: told == ["TopicTerminated"])
            with pytest.raises(TopicTerminated):
                await producer.publish([message()])
            assert _connected(topic.producers) == 0

    asyncio.run(main())


def _connected(producers: TopicProducers) -> int:
    return producers.connected


def test_a_publish_that_waits_for_its_quota_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.policies.set(
                TopicPolicies(backlog_quota=BacklogQuota(bytes_max=1, policy=QuotaPolicy.PRODUCER_REQUEST_HOLD))
            )
            topic.writing.quota_exceeded = QuotaPolicy.PRODUCER_REQUEST_HOLD
            waiting = asyncio.ensure_future(topic.publish([message()]))
            await eventually(lambda: topic.writing.gate.held == 1)
            await topic.terminate()
            with pytest.raises(TopicTerminated):
                await waiting

    asyncio.run(main())


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.EXCLUSIVE])
def test_a_consumer_is_told_once_it_has_consumed_all(tmp_path: Path, kind: SubscriptionType) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            first, last = await topic.publish([message(b"a"), message(b"b")])
            consumer, inbox = await subscribed(topic, subscription_type=kind)
            ends = Ends(consumer)
            await eventually(lambda: len(inbox.deliveries) == 2)
            await topic.terminate()
            await consumer.acknowledge([Ack(last)])
            await asyncio.sleep(0)
            assert ends.told == 0
            await consumer.acknowledge([Ack(first)])
            await eventually(lambda: ends.told == 1)
            await consumer.acknowledge([Ack(first)])
            await topic.writing.marker(marker())
            await asyncio.sleep(0)
            assert ends.told == 1
            other, _ = await subscribed(topic, "another", permits=0)
            others = Ends(other)
            other.flow(1)
            await eventually(lambda: inbox.positions == [first, last])
            assert others.told == 0  # it has not consumed anything

    asyncio.run(main())


def test_who_has_consumed_all_before_is_told_when_it_is_terminated_and_newcomers_with_their_permits(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, _ = await subscribed(topic)
            ends = Ends(consumer)
            await topic.terminate()
            await eventually(lambda: ends.told == 1)
            newcomer, _ = await subscribed(topic, permits=0)
            later = Ends(newcomer)
            newcomer.flow(1)
            await eventually(lambda: later.told == 1)

    asyncio.run(main())


async def _copy(topic: Topic, first: Position) -> None:
    block = make_block(first, [message(b"of eu-west")], origin="eu-west")
    await topic.writing.copy([CopiedBlock(BEFORE_ALL, block)])


def test_links_still_bring_what_others_confirmed(tmp_path: Path) -> None:
    """Invariant 2: a message that another cluster confirmed is copied, whenever it comes."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.terminate()
            await _copy(topic, Position(5, 0))
            assert entries_of(topic, "eu-west") == [message(b"of eu-west")]

    asyncio.run(main())


def test_what_tasks_staged_for_it_is_left_out_and_the_rest_of_the_commit_published(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            ended, other = await engine.topic(TOPIC), await engine.topic(f"{TOPIC}-2")
            await ended.terminate()
            parts = [StagedPart(topic.tail, [message()], [1]) for topic in (ended, other)]
            places = await engine.writer.publish_staged(parts, [])
            assert places == [None, (other.log.last, other.log.last)]
            assert entries_of(ended, "us-east") == []

    asyncio.run(main())
