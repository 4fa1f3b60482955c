"""Start of a subscription that is made here, for each origin that the topic has or that links bring."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from engine_support import TOPIC, make_log, message, opened, subscribed

from replicator.engine.log.store_tables import HighWater
from replicator.engine.subscriptions.starting import Starting, StoredExtent
from replicator.engine.types import InitialPosition, SubscriptionType
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import FROM_THE_FIRST, Start

END = Position(1, 9)
EXTENTS: list[StoredExtent] = [("b", 7, Position(3, 0), Position(1, 2), 3), ("b", 7, Position(3, 5), Position(1, 7), 2)]
"""Entries 0 to 2 of ``b`` lie at 2 to 4 here, and entries 5 and 6 at 7 and 8."""


class Origins:
    def high_waters(self) -> Mapping[str, HighWater]:
        return {"a": HighWater(5, END), "b": HighWater(7, Position(3, 6)), "gone": HighWater(2, Position(4, 4))}


class Topic:
    """A topic of ten entries."""

    name, cluster, topic_id, incarnation = "t", "a", 1, 5

    def __init__(self) -> None:
        self.log = make_log((1, 10, False))
        self.origins = Origins()

    def extents(self, topic_id: int) -> Iterator[StoredExtent]:
        return iter(EXTENTS)


def began(position: Position, topic: Topic, *, read_compacted: bool = False) -> dict[str, Start]:
    starting = Starting()
    starting.brought = lambda name: {"b", "new"}
    return starting.at(topic, topic, position, read_compacted=read_compacted)  # type: ignore[arg-type]


def test_from_the_earliest_message_on_nothing_lies_before_the_start() -> None:
    assert began(BEFORE_ALL, Topic()) == dict.fromkeys(("a", "b", "gone", "new"), FROM_THE_FIRST)


def test_at_the_latest_message_all_that_is_here_lies_before_it_and_nothing_of_who_has_sent_nothing_yet() -> None:
    assert began(END, Topic()) == {
        "a": Start(5, END),
        "b": Start(7, Position(3, 6)),
        "gone": Start(2, Position(4, 4)),
        "new": FROM_THE_FIRST,
    }


@pytest.mark.parametrize(
    ("entry", "of_b"), [(1, Position(3, -1)), (2, Position(3, 0)), (5, Position(3, 2)), (7, Position(3, 5))]
)
def test_at_a_message_other_origins_begin_with_what_follows_it_here(entry: int, of_b: Position) -> None:
    found = began(Position(1, entry), Topic())
    assert found["a"] == Start(5, Position(1, entry))
    assert found["b"] == Start(7, of_b)
    assert found["gone"] == Start(2, Position(4, 4)), "all of it is trimmed, so it lies below"


def test_what_is_trimmed_lies_before_the_start_unless_the_compacted_view_may_have_it() -> None:
    topic = Topic()
    topic.log.trim(Position(1, 3))
    assert began(BEFORE_ALL, topic)["a"] == Start(5, Position(1, 3))
    assert began(BEFORE_ALL, topic)["b"] == Start(7, Position(3, 1))
    assert began(BEFORE_ALL, topic, read_compacted=True)["a"] == FROM_THE_FIRST


@pytest.mark.parametrize("drops", [True, False])
def test_after_a_restart_messages_that_came_back_count_as_delivered_only_to_clients_that_do_not_drop_them(
    tmp_path: Path, drops: bool
) -> None:
    """An official client that the worker does not know any more may have acknowledged later messages before."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            before = [(await topic.publish([message(b"before")]))[0] for _ in range(3)]
            first, _ = await subscribed(topic, "sub", SubscriptionType.EXCLUSIVE, initial=InitialPosition.LATEST)
            first.drops_acknowledged = True
            after = [(await topic.publish([message(b"after")]))[0] for _ in range(3)]
            subscription = topic.subscriptions["sub"]
            back = PositionSet()
            for position in before:
                back.add(position)
            subscription.merging.start(dict.fromkeys(subscription.cursor.state.starts, FROM_THE_FIRST), back, None)
            await subscription.saved()
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic, "sub", SubscriptionType.EXCLUSIVE, permits=0)
            consumer.drops_acknowledged = drops
            consumer.flow(10)
            await inbox.holds(6)
            await consumer.acknowledge_cumulative(after[0])
            backlog = topic.subscriptions["sub"].cursor.backlog_entries
            assert backlog() == (5 if drops else 2)
            await consumer.acknowledge_cumulative(before[0])
            await consumer.acknowledge_cumulative(after[2])
            assert backlog() == 0

    asyncio.run(main())


@pytest.mark.parametrize("kind", [SubscriptionType.SHARED, SubscriptionType.EXCLUSIVE])
def test_invariant_5_acknowledgements_that_follow_an_earlier_start_count_if_dispatch_is_held_until_they_come(
    tmp_path: Path, kind: SubscriptionType
) -> None:
    """The start and the acknowledgements of another cluster are two markers. Sync holds dispatch between them."""

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            before = [(await topic.publish([message(b"%d" % number)]))[0] for number in range(3)]
            _, inbox = await subscribed(topic, "sub", kind, initial=InitialPosition.LATEST)
            subscription = topic.subscriptions["sub"]
            back, acknowledged = PositionSet(), PositionSet()
            for position in before:
                back.add(position)
            acknowledged.add(before[0])
            rewinds = subscription.dispatching.rewinds
            subscription.merging.start(dict.fromkeys(subscription.cursor.state.starts, FROM_THE_FIRST), back, None)
            assert subscription.dispatching.rewinds == rewinds + 1
            subscription.dispatching.pump.hold(1_000)
            for _ in range(10):
                await asyncio.sleep(0)
            assert not inbox.deliveries
            subscription.merging.acks(acknowledged, {}, announce=False)
            subscription.dispatching.pump.release()
            await inbox.holds(2)
            assert [each.position for each in inbox.deliveries] == before[1:]

    asyncio.run(main())
