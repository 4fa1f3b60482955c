"""Announcing and taking over a replicated subscription's state: acknowledgements, merging, generations and
tombstones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOPIC, batch, eventually, marker, message, opened, subscribed
from pyroaring import BitMap

from replicator.engine.engine import Engine
from replicator.engine.errors import BlockCorrupt, NotAllowedError, StoreFull, SubscriptionNotFound
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.topic_reading import TopicReading
from replicator.engine.policies import PolicyOverrides, TopicPolicies
from replicator.engine.subscriptions import tombstones
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.cursor_state import CursorState
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.subscriptions.unannounced import UNANNOUNCED_BATCHES_MAX
from replicator.engine.topic import Topic
from replicator.engine.topic_listener import TopicListener
from replicator.engine.types import Ack, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

EXCLUSIVE, SHARED, KEY_SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED, SubscriptionType.KEY_SHARED


def numbered(count: int) -> list[bytes]:
    return [message(b"%d" % number) for number in range(count)]


def keyed(key: str) -> bytes:
    return encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, partition_key=key), b"x")


class Told(TopicListener[Topic]):
    """Keeps what it hears of replicated subscriptions."""

    def __init__(self) -> None:
        self.acknowledged: list[str] = []
        self.made: list[str] = []
        self.deleted: list[tuple[str, int | None]] = []
        self.moves: list[bool] = []

    def on_acknowledged(self, topic: Topic, subscription: Subscription) -> None:
        assert subscription.cursor.state.unannounced
        self.acknowledged.append(subscription.name)

    def on_subscription(self, topic: Topic, subscription: Subscription) -> None:
        self.made.append(subscription.name)

    def on_subscription_deleted(self, topic: Topic, name: str, generation: int | None) -> None:
        self.deleted.append((name, generation))

    def on_mark_delete(self, topic: Topic, subscription: Subscription, *, local: bool) -> None:
        self.moves.append(local)


async def with_subscription(
    engine: Engine, entries: Sequence[bytes], *, replicated: bool = True
) -> tuple[Topic, Subscription, list[Position]]:
    """A subscription from the earliest whose making was told."""
    topic = await engine.topic(TOPIC)
    positions = await topic.publish(entries)
    subscription = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=replicated)
    subscription.take_unannounced()
    return topic, subscription, positions


def merged(
    subscription: Subscription,
    positions: Sequence[Position],
    batches: Mapping[Position, Sequence[int]] | None = None,
    *,
    announce: bool = False,
) -> bool:
    bitmaps = {position: BitMap(indexes) for position, indexes in (batches or {}).items()}
    return subscription.merging.acks(PositionSet(positions), bitmaps, announce=announce)


# Telling.


def test_a_burst_of_acknowledgements_is_announced_once_until_it_is_taken(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, subscription, positions = await with_subscription(engine, [*numbered(8), batch([b"a", b"b"])])
            told = Told()
            engine.add_listener(told)
            consumer, _ = await subscribed(topic, subscription_type=EXCLUSIVE)
            for position in positions[5:3:-1]:
                await consumer.acknowledge([Ack(position)])
            await consumer.acknowledge([Ack(positions[8], (1,))])
            await consumer.acknowledge_cumulative(positions[1])
            assert told.acknowledged == ["sub"]
            unannounced = subscription.take_unannounced()
            assert set(unannounced.positions) == {*positions[:2], *positions[4:6]}
            assert (list(unannounced.batches), unannounced.whole) == ([positions[8]], False)
            assert not subscription.take_unannounced()
            await subscription.moves.skip(1)
            assert told.acknowledged == ["sub", "sub"]
            assert set(subscription.take_unannounced().positions) == {positions[2]}
            await subscription.moves.clear_backlog()
            assert set(positions[3:]) <= set(subscription.take_unannounced().positions), (
                "what was told may be told again"
            )
            assert len(told.acknowledged) == 3

    asyncio.run(main())


def test_acknowledgements_are_announced_after_an_entry_was_uncovered_before_its_own_was(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, subscription, positions = await with_subscription(engine, numbered(3))
            told = Told()
            engine.add_listener(told)
            consumer, _ = await subscribed(topic, subscription_type=EXCLUSIVE)
            await consumer.acknowledge([Ack(positions[0])])
            starts = subscription.cursor.state.starts
            subscription.merging.start(starts, PositionSet(positions[:1]), None)
            assert not subscription.take_unannounced(), "the entry counts as unconsumed again"
            await consumer.acknowledge([Ack(positions[1])])
            assert told.acknowledged == ["sub", "sub"]
            assert set(subscription.take_unannounced().positions) == {positions[1]}

    asyncio.run(main())


def test_nobody_is_told_of_a_subscription_that_is_not_replicated_nor_of_markers(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            told = Told()
            topic, alone, positions = await with_subscription(engine, numbered(3), replicated=False)
            shared = await topic.subscriptions.create("shared", topic.log.last, replicated=True)
            shared.take_unannounced()
            engine.add_listener(told)
            for _ in range(3):
                await topic.writing.marker(marker())
            await alone.acknowledge([Ack(positions[1])])
            assert alone.cursor.state.unannounced is None
            assert shared.cursor.mark_delete == topic.log.last
            assert told.acknowledged == []

    asyncio.run(main())


def test_what_others_say_is_told_on_only_where_the_caller_wants_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            _, subscription, positions = await with_subscription(engine, numbered(6))
            told = Told()
            engine.add_listener(told)
            assert merged(subscription, positions[:2])
            assert (told.acknowledged, told.moves) == ([], [False])
            assert merged(subscription, positions[:4], announce=True)
            assert (told.acknowledged, told.moves) == (["sub"], [False, True])
            assert set(subscription.take_unannounced().positions) == set(positions[2:4])

    asyncio.run(main())


def test_after_a_crash_the_whole_state_is_told_unless_what_was_told_was_saved(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, subscription, positions = await with_subscription(engine, numbered(4))
            await subscription.acknowledge([Ack(positions[2])])
            subscription.take_unannounced()  # and it is not known to have arrived anywhere
        async with opened(tmp_path) as engine:
            told = Told()
            engine.add_listener(told)
            subscription = (await engine.topic(TOPIC)).subscriptions["sub"]
            assert (told.made, told.acknowledged) == (["sub"], ["sub"])
            assert subscription.take_unannounced().whole
            subscription.note_announced()
        async with opened(tmp_path) as engine:
            told = Told()
            engine.add_listener(told)
            topic = await engine.topic(TOPIC)
            assert (told.made, told.acknowledged) == (["sub"], []), "a stop saves what was told"
            subscription = topic.subscriptions["sub"]
            await subscription.acknowledge([Ack(positions[1])])
            subscription.note_announced()  # of what was taken before
        async with opened(tmp_path) as engine:
            assert (await engine.topic(TOPIC)).subscriptions["sub"].take_unannounced().whole

    asyncio.run(main())


def test_a_batch_that_others_made_whole_meanwhile_is_told_as_a_whole() -> None:
    log = LogIndex()
    log.append(Position(1, 0), 5, marker=False)
    cursor = Cursor(log, CursorState(replicated=True))
    for entry in (1, 3):
        cursor.acknowledge(Position(1, entry), [0], 2)
    cursor.merge_acks(PositionSet([Position(1, 0)]), {Position(1, 1): BitMap([1])}, lambda _: 2, announce=False)
    assert cursor.mark_delete == Position(1, 1)
    unannounced = cursor.state.take_unannounced()
    assert (set(unannounced.positions), list(unannounced.batches)) == ({Position(1, 1)}, [Position(1, 3)])


def test_open_batches_without_end_are_told_as_a_whole_state() -> None:
    log = LogIndex()
    log.append(Position(1, 0), UNANNOUNCED_BATCHES_MAX + 10, marker=False)
    cursor = Cursor(log, CursorState(replicated=True))
    for entry in range(UNANNOUNCED_BATCHES_MAX):
        cursor.acknowledge(Position(1, entry), [0], 2)
    unannounced = cursor.state.unannounced
    assert unannounced is not None
    assert (len(unannounced.batches), unannounced.whole) == (UNANNOUNCED_BATCHES_MAX, False)
    cursor.acknowledge(Position(1, UNANNOUNCED_BATCHES_MAX), [0], 2)
    cursor.acknowledge(Position(1, 0), None, 2)
    assert (unannounced.batches, bool(unannounced.positions), unannounced.whole) == ({}, False, True)


def test_replication_is_switched_on_with_the_whole_state_and_off_at_any_time(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, subscription, positions = await with_subscription(engine, numbered(3), replicated=False)
            told = Told()
            engine.add_listener(told)
            await subscription.set_replicated(True)
            assert (told.made[1:], told.acknowledged) == (["sub"], ["sub"])
            assert subscription.take_unannounced().whole
            await subscription.set_replicated(True)
            assert not subscription.take_unannounced(), "it was already"
            await subscription.acknowledge([Ack(positions[0])])
            await subscription.set_replicated(False)
            assert not subscription.take_unannounced()
            assert told.made[1:] == ["sub", "sub"]
            await subscribed(topic, "passing", durable=False)
            with pytest.raises(NotAllowedError, match="durable"):
                await topic.subscriptions["passing"].set_replicated(True)
        async with opened(tmp_path) as engine:
            assert not (await engine.topic(TOPIC)).subscriptions["sub"].replicated

    asyncio.run(main())


def test_policies_say_what_is_replicated_where_the_maker_does_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await subscribed(topic, "before")
            await topic.policies.set(PolicyOverrides({"replicate_subscription_state": True}))
            await subscribed(topic, "default")
            await subscribed(topic, "not", replicated=False)
            await subscribed(topic, "passing", durable=False)
            await subscribed(topic, "before", consumer_name="c2")
            await topic.subscriptions.create("made", BEFORE_ALL)
            await topic.policies.set(None)
            await subscribed(topic, "default", consumer_name="c2", replicated=False)
            await subscribed(topic, "later")
            assert {name: each.replicated for name, each in topic.subscriptions.items()} == {
                "before": False, "default": True, "not": False, "passing": False, "made": True, "later": False,
            }  # fmt: skip
            assert TopicPolicies().replicate_subscription_state is False

    asyncio.run(main())


# Merging.


def test_what_is_merged_is_not_delivered_and_wakes_who_waits_for_room(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, subscription, positions = await with_subscription(engine, numbered(6))
            await topic.policies.set(TopicPolicies(max_unacked_messages_per_consumer=2))
            consumer, inbox = await subscribed(topic)
            await inbox.holds(2)
            dispatcher = subscription.dispatching.dispatcher
            assert dispatcher is not None
            state = dispatcher.consumers[consumer.id]
            assert (state.blocked, state.unacked_messages) == (True, 2)
            merged(subscription, [positions[1], positions[3], positions[4]])
            await inbox.holds(3)
            assert inbox.positions == [positions[0], positions[1], positions[2]]
            assert dispatcher.held() == {positions[0]: consumer.id, positions[2]: consumer.id}
            merged(subscription, positions[:3])
            await inbox.holds(4)
            assert inbox.positions[3] == positions[5]
            assert (state.unacked_messages, subscription.backlog_messages()) == (1, 1)
            assert subscription.cursor.mark_delete == positions[4]

    asyncio.run(main())


def test_messages_of_a_batch_that_are_merged_are_not_redelivered_and_not_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            entries = [batch([b"a", b"b", b"c"]), batch([b"d", b"e"])]
            topic, subscription, (first, second) = await with_subscription(engine, entries)
            consumer, inbox = await subscribed(topic)
            await inbox.holds(2)
            await consumer.acknowledge([Ack(first, (0,))])
            merged(subscription, [], {first: [0, 1], second: [0, 1]})
            dispatcher = subscription.dispatching.dispatcher
            assert dispatcher is not None
            assert dispatcher.held() == {first: consumer.id}
            assert dispatcher.consumers[consumer.id].unacked_messages == 1
            consumer.redeliver()
            await inbox.holds(3)
            assert inbox.deliveries[2].acked == BitMap([0, 1]).serialize()
            merged(subscription, [], {first: [2]})
            assert subscription.cursor.mark_delete == second
            assert (dispatcher.held(), subscription.backlog_messages()) == ({}, 0)

    asyncio.run(main())


def test_a_key_that_drains_goes_on_when_what_holds_it_is_merged(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            keys = [f"key-{number}" for number in range(30)]
            topic, subscription, positions = await with_subscription(engine, [keyed(key) for key in keys])
            first, inbox = await subscribed(topic, subscription_type=KEY_SHARED, consumer_name="first")
            await inbox.holds(30)
            _, newcomer = await subscribed(topic, subscription_type=KEY_SHARED, consumer_name="second")
            again = await topic.publish([keyed(key) for key in keys])
            dispatcher = subscription.dispatching.dispatcher
            assert dispatcher is not None
            await eventually(lambda: dispatcher.status()["draining_hashes"], "keys that drain")
            assert not newcomer.deliveries
            merged(subscription, positions)
            await eventually(lambda: len(inbox.deliveries) + len(newcomer.deliveries) == 60, "all keys go on")
            assert newcomer.deliveries
            assert not {*newcomer.positions} & {*positions}
            merged(subscription, again)
            assert subscription.cursor.mark_delete == again[-1]
            assert first.name == "first"

    asyncio.run(main())


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED, KEY_SHARED])
def test_what_waits_to_be_sent_again_is_not_when_it_is_merged(tmp_path: Path, kind: SubscriptionType) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, subscription, positions = await with_subscription(engine, [keyed(f"{n}") for n in range(5)])
            consumer, inbox = await subscribed(topic, subscription_type=kind, permits=5)
            await inbox.holds(5)
            consumer.redeliver()  # there are no permits
            merged(subscription, [positions[1], positions[3]])
            consumer.flow(10)
            await inbox.holds(8)
            assert inbox.positions[5:] == [positions[0], positions[2], positions[4]]

    asyncio.run(main())


def test_delayed_messages_that_are_merged_are_never_delivered(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            due_ms = engine.writer.wall_clock_ms() + 2_000  # time enough to see that they wait, also on a busy disk
            delayed = [
                encode_entry(
                    MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, deliver_at_time=due_ms), b"%d" % n
                )
                for n in range(4)
            ]
            topic, subscription, positions = await with_subscription(engine, delayed)
            _, inbox = await subscribed(topic)
            dispatcher = subscription.dispatching.dispatcher
            assert dispatcher is not None
            await eventually(lambda: dispatcher.status()["delayed_entries"] == 4, "all wait")
            merged(subscription, positions[1:3])
            assert dispatcher.status()["delayed_entries"] == 2
            await inbox.holds(2)
            assert inbox.positions == [positions[0], positions[3]]

    asyncio.run(main())


def test_a_batch_that_cannot_be_read_is_passed_over_and_the_rest_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            _, subscription, positions = await with_subscription(engine, [batch([b"a", b"b"]), *numbered(2)])

            def corrupt(reading: TopicReading, position: Position) -> int:
                raise BlockCorrupt("a bit has flipped")

            monkeypatch.setattr(TopicReading, "batch_size", corrupt)
            assert merged(subscription, [positions[2]], {positions[0]: [0]})
            assert subscription.cursor.acked_indexes(positions[0]) is None
            assert subscription.cursor.is_consumed(positions[2])

    asyncio.run(main())


def test_what_is_trimmed_or_a_marker_or_not_here_yet_is_passed_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, subscription, old = await with_subscription(engine, numbered(1))
            old += [(await topic.publish([each]))[0] for each in numbered(2)]
            await subscription.moves.clear_backlog()
            at_marker = await topic.writing.marker(marker())
            (new,) = await topic.publish(numbered(1))
            await topic.trimming.trim(old[-1])
            assert topic.log.trimmed == old[-1]
            beyond = Position(new.ledger, new.entry + 1)
            assert not merged(subscription, [*old, at_marker, beyond], {old[0]: [0], at_marker: [0], beyond: [0]})
            assert merged(subscription, [*old, new])
            assert subscription.cursor.mark_delete == new

    asyncio.run(main())


def test_a_million_positions_are_merged_in_milliseconds() -> None:
    log = LogIndex()
    log.append(Position(1, 0), 3_000_000, marker=False)
    runs, holes = PositionSet(), PositionSet()
    for first in range(10, 1_000_000, 1_000):
        runs.add_range(1, first, first + 900)
    holes.add_serialized(1, BitMap(range(1_000_001, 3_000_000, 2)).serialize())
    cursor = Cursor(log, CursorState(replicated=True))
    started = time.perf_counter()
    for positions in (runs, holes):
        assert cursor.merge_acks(positions, {}, lambda _: 1, announce=True)
        assert cursor.merge_acks(positions, {}, lambda _: 1, announce=True) is None
    assert time.perf_counter() - started < 0.25, "measured: 2 ms"
    assert len(cursor.state.individually_deleted) == len(runs) + len(holes)


# Generations.


def test_a_seek_tells_the_whole_state_of_its_generation(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            _, subscription, positions = await with_subscription(engine, numbered(4))
            await subscription.acknowledge([Ack(positions[3])])
            await subscription.moves.seek(positions[1])
            unannounced = subscription.take_unannounced()
            assert (unannounced.whole, bool(unannounced.positions)) == (True, False), (
                "what was of the former one is not told"
            )

    asyncio.run(main())


def test_a_generation_is_adopted_with_what_is_consumed_in_it_before_anything_is_sent(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, subscription, positions = await with_subscription(engine, numbered(4))
            consumer, inbox = await subscribed(topic)
            await inbox.holds(4)
            await consumer.acknowledge([Ack(position) for position in positions])
            subscription.take_unannounced()
            restarts: list[int] = []
            consumer.on_restarted = lambda: restarts.append(subscription.cursor.generation)
            subscription.merging.adopt_generation(1)
            assert restarts == [], "old news"
            subscription.merging.adopt_generation(5)
            merged(subscription, [positions[0], positions[2]])
            await inbox.holds(6)
            assert (restarts, inbox.positions[4:]) == ([5], [positions[1], positions[3]])
            assert not subscription.take_unannounced(), "it is the others who say so"
            assert subscription.backlog_messages() == 2

    asyncio.run(main())


# Deletion.


def test_a_deletion_leaves_a_tombstone_and_the_next_one_of_that_name_is_of_a_higher_generation(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            told = Told()
            engine.add_listener(told)
            topic, subscription, positions = await with_subscription(engine, numbered(2))
            await subscription.moves.seek(positions[1])
            await topic.subscriptions.create("alone", BEFORE_ALL, replicated=False)
            await topic.subscriptions.delete("sub")
            await topic.subscriptions.delete("alone")
            assert told.deleted == [("sub", 3), ("alone", None)]
            assert dict(topic.subscriptions.tombstones) == {"sub": 3}
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            assert dict(topic.subscriptions.tombstones) == {"sub": 3}
            for generation in (1, 3):
                with pytest.raises(SubscriptionNotFound, match="deleted in 3"):
                    await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True, generation=generation)
            await subscribed(topic, "sub", replicated=True)
            assert topic.subscriptions["sub"].cursor.generation == 4
            assert topic.subscriptions["sub"].take_unannounced().whole
            assert not topic.subscriptions.tombstones
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            assert (dict(topic.subscriptions.tombstones), topic.subscriptions["sub"].cursor.generation) == ({}, 4)

    asyncio.run(main())


def test_one_that_another_cluster_made_has_its_generation_and_is_not_told_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            told = Told()
            engine.add_listener(told)
            topic = await engine.topic(TOPIC)
            made = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True, generation=7)
            assert (made.cursor.generation, told.made, told.acknowledged) == (7, ["sub"], [])

    asyncio.run(main())


def test_a_tombstone_stays_until_what_follows_is_stored_and_also_beside_one_that_is_not_replicated(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.subscriptions.bury("sub", 6)
            put_many = engine.writer.put_many

            async def full(*_: Any, **__: Any) -> None:
                raise StoreFull("full")

            engine.writer.put_many = full  # type: ignore[method-assign]
            with pytest.raises(StoreFull):
                await topic.subscriptions.create("sub", BEFORE_ALL, replicated=True)
            engine.writer.put_many = put_many  # type: ignore[method-assign]
            assert dict(topic.subscriptions.tombstones) == {"sub": 6}
            alone = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=False)
            assert (dict(topic.subscriptions.tombstones), alone.cursor.generation) == ({"sub": 6}, 7)

    asyncio.run(main())


@pytest.mark.parametrize(("generation", "left"), [(1, True), (2, False), (5, False)])
def test_a_deletion_elsewhere_wins_over_a_generation_that_is_not_higher(
    tmp_path: Path, generation: int, left: bool
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, subscription, positions = await with_subscription(engine, numbered(2))
            await subscription.moves.seek(positions[0])
            consumer, _ = await subscribed(topic)
            reasons: list[str] = []
            consumer.on_closed = lambda code, reason: reasons.append(reason)
            told = Told()
            engine.add_listener(told)
            await topic.subscriptions.bury("sub", generation)
            assert ("sub" in topic.subscriptions, consumer.closed) == (left, not left)
            assert dict(topic.subscriptions.tombstones) == ({} if left else {"sub": generation})
            assert told.deleted == ([] if left else [("sub", generation)])
            assert bool(reasons) is not left
            if not left:
                await topic.subscriptions.bury("sub", generation - 1)  # of long ago
                assert dict(topic.subscriptions.tombstones) == {"sub": generation}

    asyncio.run(main())


def test_a_deletion_elsewhere_concerns_nobody_who_is_not_replicated_and_meets_our_own_deletion(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, _, _ = await with_subscription(engine, numbered(1), replicated=False)
            await topic.subscriptions.bury("sub", 9)
            assert ("sub" in topic.subscriptions, dict(topic.subscriptions.tombstones)) == (True, {})
            ours = await topic.subscriptions.create("both", BEFORE_ALL, replicated=True)
            making = asyncio.create_task(topic.subscriptions.create("new", BEFORE_ALL, replicated=True))
            await asyncio.gather(
                ours.deleting.delete(), topic.subscriptions.bury("both", 9), making, topic.subscriptions.bury("new", 9)
            )
            assert (set(topic.subscriptions), dict(topic.subscriptions.tombstones)) == ({"sub"}, {"both": 9, "new": 9})

    asyncio.run(main())


def test_the_oldest_tombstones_are_dropped_past_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tombstones, "TOMBSTONES_MAX", 3)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            for number in range(5):
                await topic.subscriptions.bury(f"s{number}", number + 2)
            await topic.subscriptions.bury("s3", 9)
            assert dict(topic.subscriptions.tombstones) == {"s2": 4, "s4": 6, "s3": 9}
        async with opened(tmp_path) as engine:
            assert dict((await engine.topic(TOPIC)).subscriptions.tombstones) == {"s2": 4, "s4": 6, "s3": 9}

    asyncio.run(main())


def test_a_deleted_topic_takes_its_tombstones_along(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.subscriptions.bury("sub", 6)
            await engine.deleting.delete(TOPIC)
            assert not (await engine.topic(TOPIC)).subscriptions.tombstones

    asyncio.run(main())


def test_a_compacted_view_is_merged_below_where_the_log_is_trimmed(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = [(await topic.publish([keyed(key)]))[0] for key in ("a", "b", "a", "c", "d")]
            consumer, inbox = await subscribed(
                topic, subscription_type=EXCLUSIVE, read_compacted=True, replicated=True, permits=0
            )
            await topic.compaction.run()
            await topic.trimming.trim(positions[3])
            assert topic.log.trimmed >= positions[2]
            subscription = topic.subscriptions["sub"]
            subscription.take_unannounced()
            assert merged(subscription, [positions[0], positions[2], Position(1, 0)], announce=True)
            assert set(subscription.take_unannounced().positions) == {positions[2]}, "the first a is compacted away"
            consumer.flow(10)
            await inbox.holds(3)
            assert inbox.positions == [positions[1], positions[3], positions[4]]
            await consumer.acknowledge_cumulative(positions[3])
            assert {positions[1], positions[3]} <= set(subscription.take_unannounced().positions)

    asyncio.run(main())


def test_a_tombstone_says_whether_the_deletion_was_forced_and_those_of_the_release_before_were() -> None:
    now = [5_000]
    made = tombstones.Tombstones(7, (), lambda: now[0])
    rows: dict[bytes, bytes] = {b"old": (3).to_bytes(8, "big") + (1_000).to_bytes(8, "big")}
    for name, unless_in_use in (("spared", True), ("forced", False)):
        for _, key, value in made.writes(name, 2, unless_in_use=unless_in_use):
            assert value is not None
            rows[key[4:]] = value
        made.note(name, 2, unless_in_use=unless_in_use)
        now[0] += 1_000
    loaded = tombstones.Tombstones(7, ((name.decode(), value) for name, value in rows.items()), lambda: now[0])
    assert list(loaded) == ["old", "spared", "forced"], "the oldest first"
    for each in (made, loaded):
        assert [each.unless_in_use(name) for name in ("old", "spared", "forced")] == [False, True, False]
    made.note("spared", 4, unless_in_use=False)
    loaded.forget("spared")
    assert not made.unless_in_use("spared")
    assert not loaded.unless_in_use("spared")


@pytest.mark.parametrize("used", [True, False])
@pytest.mark.parametrize("forced", [True, False])
def test_a_deletion_elsewhere_that_was_not_forced_leaves_a_subscription_to_those_who_use_it(
    tmp_path: Path, used: bool, forced: bool
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, subscription, _ = await with_subscription(engine, numbered(2))
            if used:
                await subscribed(topic, "sub", replicated=True)
            kept = await topic.subscriptions.bury("sub", 2, unless_in_use=not forced)
            if used and not forced:
                assert kept is subscription
                assert not topic.subscriptions.tombstones
            else:
                assert kept is None
                assert dict(topic.subscriptions.tombstones) == {"sub": 2}
                assert topic.subscriptions.tombstones.unless_in_use("sub") != forced
                assert "sub" not in topic.subscriptions

    asyncio.run(main())


def test_a_subscription_that_outlives_a_deletion_keeps_all_that_is_acknowledged_over_a_restart_and_tells_it(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic, subscription, positions = await with_subscription(engine, [*numbered(6), batch([b"x", b"y"])])
            await subscription.acknowledge([Ack(positions[0]), Ack(positions[3]), Ack(positions[6], (1,))])
            subscription.take_unannounced()
            consumer, inbox = await subscribed(topic, "sub", SHARED, replicated=True)
            await inbox.holds(5)
            subscription.merging.outlive(4)
            assert subscription.take_unannounced().whole
            await consumer.acknowledge([Ack(positions[1])])
            await subscription.saved()
            assert not consumer.closed
            assert len(inbox.positions) == 5, "nothing is delivered again"
        async with opened(tmp_path) as engine:
            kept = (await engine.topic(TOPIC)).subscriptions["sub"]
            assert kept.cursor.generation == 5
            assert kept.cursor.mark_delete == positions[1]
            assert kept.cursor.is_consumed(positions[3])
            assert kept.cursor.acked_indexes(positions[6]) == BitMap([1])

    asyncio.run(main())
