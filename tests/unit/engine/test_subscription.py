from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOPIC, Inbox, batch, eventually, make_block, marker, message, opened, subscribed
from pyroaring import BitMap

from replicator.engine.engine import EngineSettings
from replicator.engine.errors import (
    ConsumerBusy,
    InvalidAck,
    InvalidSubscriptionName,
    NotAllowedError,
    StoreFailed,
    StoreFull,
    SubscriptionNotFound,
)
from replicator.engine.log import topic_reading
from replicator.engine.log.writer import CopiedBlock
from replicator.engine.policies import TopicPolicies
from replicator.engine.subscriptions.consumer import PERMITS_MAX, EngineConsumer
from replicator.engine.topic import Topic
from replicator.engine.topic_listener import TopicListener
from replicator.engine.types import Ack, Delivery, InitialPosition, SubscribeOptions, SubscriptionType
from snapshots.position import BEFORE_ALL, Position

EXCLUSIVE, SHARED = SubscriptionType.EXCLUSIVE, SubscriptionType.SHARED


def numbered(count: int) -> list[bytes]:
    return [message(b"%d" % number) for number in range(count)]


def test_a_delivery_says_where_the_entry_comes_from(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            own, copied = batch([b"a", b"b"]), message(b"copied")
            (position,) = await topic.publish([own])
            await topic.writing.copy([CopiedBlock(BEFORE_ALL, make_block(Position(3, 5), [copied], origin="eu-west"))])
            _, inbox = await subscribed(topic)
            await inbox.holds(2)
            assert inbox.deliveries == [
                Delivery(position, 0, 2, None, own, "us-east", position),
                Delivery(topic.log.last, 0, 1, None, copied, "eu-west", Position(3, 5)),
            ]

    asyncio.run(main())


def test_invariant_7_markers_are_not_delivered_not_counted_and_not_in_the_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic)
            await topic.writing.marker(marker())
            await topic.publish(numbered(1))
            await topic.writing.marker(marker(), local=True)
            await topic.publish(numbered(1))
            await topic.writing.marker(marker())
            await inbox.holds(2)
            subscription = topic.subscriptions["sub"]
            assert (subscription.cursor.backlog_entries(), subscription.backlog_messages()) == (2, 2)
            await consumer.acknowledge([Ack(position) for position in inbox.positions])
            assert subscription.cursor.mark_delete == topic.log.last
            await topic.writing.marker(marker())
            assert subscription.cursor.mark_delete == topic.log.last
            assert subscription.status()["individually_deleted_entries"] == 0
            assert topic.log.messages == 2

    asyncio.run(main())


def test_a_subscription_starts_where_it_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish(numbered(3))
            _, early = await subscribed(topic, "early")
            _, late = await subscribed(topic, "late", initial=InitialPosition.LATEST)
            (position,) = await topic.publish([message(b"new")])
            await early.holds(4)
            await late.holds(1)
            assert late.positions == [position]

    asyncio.run(main())


def test_an_ack_that_was_confirmed_is_there_after_reopening(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish(numbered(5))
            consumer, _ = await subscribed(topic, "shared")
            await consumer.acknowledge([Ack(positions[1]), Ack(positions[3])])
            ordered, _ = await subscribed(topic, "ordered", EXCLUSIVE)
            await ordered.acknowledge_cumulative(positions[2])
            stored = engine.store.cursors(topic.topic_id)
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            assert engine.store.cursors(topic.topic_id) == stored
            _, inbox = await subscribed(topic, "shared")
            _, rest = await subscribed(topic, "ordered", EXCLUSIVE)
            await inbox.holds(3)
            await rest.holds(2)
            assert inbox.positions == [positions[0], positions[2], positions[4]]
            assert rest.positions == positions[3:]

    asyncio.run(main())


def test_a_partly_acknowledged_batch_is_sent_again_with_what_is_acknowledged(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            (position,) = await topic.publish([batch([b"a", b"b", b"c"])])
            consumer, inbox = await subscribed(topic)
            await inbox.holds(1)
            await consumer.acknowledge([Ack(position, (0, 2))])
            consumer.redeliver()
            await inbox.holds(2)
            again = inbox.deliveries[1]
            assert (again.redelivery_count, again.batch_size) == (1, 3)
            assert again.acked is not None
            assert set(BitMap.deserialize(again.acked)) == {0, 2}
            await consumer.acknowledge([Ack(position, (1,))])
            assert topic.subscriptions["sub"].backlog_messages() == 0

    asyncio.run(main())


@pytest.mark.parametrize("kind", [EXCLUSIVE, SHARED])
def test_of_refused_acks_none_counts(tmp_path: Path, kind: SubscriptionType) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            past_marker = await topic.writing.marker(marker())
            positions = await topic.publish([*numbered(3), batch([b"a", b"b"])])
            ahead_marker = await topic.writing.marker(marker())
            consumer, _ = await subscribed(topic, "sub", kind, permits=0)
            await consumer.acknowledge([Ack(positions[0])])
            subscription = topic.subscriptions["sub"]
            before = (engine.store.cursors(topic.topic_id), subscription.status())
            wrong: list[Ack] = [
                Ack(past_marker),
                Ack(ahead_marker),
                Ack(Position(positions[0].ledger, 99)),
                Ack(Position(positions[0].ledger, -1)),
                Ack(BEFORE_ALL),
                Ack(Position(2**64 - 1, 2**64 - 1)),
                Ack(positions[3], (0, 2)),
                Ack(positions[3], (-1,)),
            ]
            for ack in wrong:
                with pytest.raises(InvalidAck):
                    await consumer.acknowledge([Ack(positions[2]), ack])
                assert subscription.status() == before[1], ack
            for position, index in [(ahead_marker, None), (BEFORE_ALL, None), (positions[3], 2), (positions[3], -1)]:
                if kind is EXCLUSIVE:
                    with pytest.raises(InvalidAck):
                        await consumer.acknowledge_cumulative(position, index)
            assert (engine.store.cursors(topic.topic_id), subscription.status()) == before

    asyncio.run(main())


def test_shared_has_no_cumulative_ack(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish(numbered(2))
            consumer, _ = await subscribed(topic)
            with pytest.raises(NotAllowedError, match="Shared"):
                await consumer.acknowledge_cumulative(positions[1])
            assert topic.subscriptions["sub"].cursor.mark_delete == BEFORE_ALL

    asyncio.run(main())


def test_a_busy_subscription_refuses_and_goes_on(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic, "sub", EXCLUSIVE)
            for kind in (EXCLUSIVE, SHARED):
                with pytest.raises(ConsumerBusy):
                    await subscribed(topic, "sub", kind)
            await topic.publish(numbered(2))
            await inbox.holds(2)
            subscription = topic.subscriptions["sub"]
            assert list(subscription.consumers) == [consumer.id]
            assert subscription.dispatching.type is EXCLUSIVE
            consumer.close()
            assert subscription.dispatching.type is None
            await subscribed(topic, "sub", SHARED)

    asyncio.run(main())


def test_what_a_closed_consumer_held_goes_to_the_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            first, first_inbox = await subscribed(topic, permits=2)
            second, second_inbox = await subscribed(topic, permits=2)
            positions = await topic.publish(numbered(4))
            await first_inbox.holds(2)
            await second_inbox.holds(2)
            assert sorted(first_inbox.positions + second_inbox.positions) == positions
            await first.acknowledge([Ack(first_inbox.positions[0])])
            left = first_inbox.positions[1]
            first.close()
            second.flow(5)
            await second_inbox.holds(3)
            assert second_inbox.positions[2] == left
            for use in (lambda: first.flow(1), lambda: first.redeliver()):
                with pytest.raises(NotAllowedError, match="closed"):
                    use()
            with pytest.raises(NotAllowedError, match="closed"):
                await first.acknowledge([Ack(left)])

    asyncio.run(main())


def test_an_exclusive_consumer_sees_positions_in_order_again_after_redelivery(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic, "sub", EXCLUSIVE)
            positions = await topic.publish(numbered(6))
            await inbox.holds(6)
            await consumer.acknowledge_cumulative(positions[1])
            await consumer.acknowledge([Ack(positions[3])])
            consumer.redeliver([positions[5]])
            await topic.publish(numbered(1))
            await inbox.holds(10)
            assert inbox.positions[6:] == [positions[2], positions[4], positions[5], topic.log.last]

    asyncio.run(main())


def test_permits_bound_what_is_sent(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([batch([b"x"] * 5) for _ in range(10)])
            consumer, inbox = await subscribed(topic, permits=7)
            _, witness = await subscribed(topic, "witness")
            await witness.holds(10)
            assert len(inbox.deliveries) == 2
            consumer.flow(4)
            await inbox.holds(3)
            for wrong in (0, -1, PERMITS_MAX + 1):
                with pytest.raises(NotAllowedError):
                    consumer.flow(wrong)

    asyncio.run(main())


def test_a_consumer_that_closes_another_while_it_is_served_loses_no_entry(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            others: list[EngineConsumer] = []
            inboxes = [Inbox(), Inbox()]

            def served(nth: int, deliveries: Sequence[Delivery]) -> None:
                inboxes[nth](deliveries)
                if others:
                    others.pop(1 - nth).close()
                    others.clear()

            for nth in range(2):
                consumer = await topic.subscribe(
                    "sub",
                    SubscribeOptions(SHARED, f"c{nth}"),
                    lambda deliveries, nth=nth: served(nth, deliveries),
                )
                consumer.flow(1000)
                others.append(consumer)
            positions = await topic.publish(numbered(300))
            await eventually(lambda: len({p for inbox in inboxes for p in inbox.positions}) == len(positions))

    asyncio.run(main())


# Deleting.


def test_an_ack_in_flight_does_not_bring_a_deleted_subscription_back(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish(numbered(30))
            consumer, _ = await subscribed(topic)
            acks: list[asyncio.Future[Any]] = []
            for position in positions[:20]:
                acks.append(asyncio.ensure_future(consumer.acknowledge([Ack(position)])))
                await asyncio.sleep(0)
            acks.append(asyncio.ensure_future(consumer.acknowledge([Ack(positions[25])])))
            await consumer.unsubscribe()
            outcomes = await asyncio.gather(*acks, return_exceptions=True)
            assert all(outcome is None or isinstance(outcome, SubscriptionNotFound) for outcome in outcomes)
            assert topic.subscriptions == {}
            assert engine.store.cursors(topic.topic_id) == {}
        async with opened(tmp_path) as engine:
            assert (await engine.topic(TOPIC)).subscriptions == {}

    asyncio.run(main())


def test_a_consumer_does_not_join_a_subscription_that_is_being_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish(numbered(2))
            consumer, _ = await subscribed(topic)
            deleting = asyncio.ensure_future(consumer.unsubscribe())
            await asyncio.sleep(0)
            with pytest.raises(SubscriptionNotFound, match="deleted"):
                await subscribed(topic)
            await deleting
            _, inbox = await subscribed(topic)
            await inbox.holds(2)
            with pytest.raises(SubscriptionNotFound):
                await topic.subscriptions.delete("none")

    asyncio.run(main())


def test_a_subscription_with_other_consumers_is_not_deleted(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            first, _ = await subscribed(topic)
            second, inbox = await subscribed(topic)
            with pytest.raises(NotAllowedError, match="other consumers"):
                await first.unsubscribe()
            with pytest.raises(NotAllowedError):
                await topic.subscriptions.delete("sub")
            first.close()
            await topic.publish(numbered(1))
            await inbox.holds(1)
            await second.unsubscribe()
            assert topic.subscriptions == {}

    asyncio.run(main())


def test_a_bad_name_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            for name in ("", "  ", "a\nb", "x" * 401):
                with pytest.raises(InvalidSubscriptionName):
                    await subscribed(topic, name)
            assert topic.subscriptions == {}

    asyncio.run(main())


def test_an_ack_that_cannot_be_saved_is_not_confirmed(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish(numbered(1))
            consumer, _ = await subscribed(topic)
            engine.writer.failed = "as the test says"
            with pytest.raises(StoreFailed):
                await consumer.acknowledge([Ack(positions[0])])

    asyncio.run(main())


def test_several_who_make_a_subscription_at_once_get_it_when_it_is_durable(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)

            async def join() -> bool:
                await subscribed(topic)
                return bool(engine.store.cursors(topic.topic_id))

            assert await asyncio.gather(*(join() for _ in range(3))) == [True] * 3

    asyncio.run(main())


def test_who_gives_up_making_a_subscription_does_not_take_it_from_those_who_wait_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            first, second = [asyncio.create_task(subscribed(topic, consumer_name=name)) for name in "ab"]
            await asyncio.sleep(0)  # both wait for the store
            first.cancel()
            _, inbox = await second
            await topic.publish(numbered(1))
            await inbox.holds(1)

    asyncio.run(main())


# What other clusters say.


def test_invariant_6_a_merged_position_takes_entries_away_and_a_newer_generation_gives_them_back(
    tmp_path: Path,
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish(numbered(6))
            consumer, inbox = await subscribed(topic, permits=2)
            await inbox.holds(2)
            subscription = topic.subscriptions["sub"]
            assert subscription.merging.mark_delete(positions[3], 1)
            assert not subscription.merging.mark_delete(positions[3], 1)
            assert subscription.backlog_messages() == 2
            consumer.redeliver()
            consumer.flow(10)
            await inbox.holds(4)
            assert inbox.positions[2:] == positions[4:]
            assert subscription.merging.mark_delete(positions[0], 2)
            await inbox.holds(9)
            assert inbox.positions[4:] == positions[1:]
            assert not subscription.merging.mark_delete(positions[5], 1)

    asyncio.run(main())


def test_listeners_hear_of_moves_and_who_made_them(tmp_path: Path) -> None:
    heard: list[tuple[str, Any]] = []

    class Recording(TopicListener[Topic]):
        def on_appended(self, topic: Any, blocks: Any) -> None:
            heard.append(("appended", topic.log.last))

        def on_subscription(self, topic: Any, subscription: Any) -> None:
            heard.append(("subscription", subscription.name))

        def on_subscription_deleted(self, topic: Any, name: str, generation: int | None) -> None:
            heard.append(("deleted", name))

        def on_mark_delete(self, topic: Any, subscription: Any, *, local: bool) -> None:
            heard.append(("local" if local else "merged", subscription.cursor.mark_delete))

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            engine.add_listener(Recording())
            positions = await topic.publish(numbered(5))
            consumer, _ = await subscribed(topic)
            await consumer.acknowledge([Ack(positions[1])])
            await consumer.acknowledge([Ack(positions[0])])
            topic.subscriptions["sub"].merging.mark_delete(positions[3], 1)
            await consumer.unsubscribe()
            assert heard == [
                ("appended", positions[4]),
                ("subscription", "sub"),
                ("local", positions[1]),
                ("merged", positions[3]),
                ("deleted", "sub"),
            ]

    asyncio.run(main())


class MoveListener(TopicListener[Topic]):
    """Keeps what it hears of mark-delete positions: (position, generation)."""

    def __init__(self) -> None:
        self.moves: list[tuple[Position, int]] = []

    def on_mark_delete(self, topic: Any, subscription: Any, *, local: bool) -> None:
        self.moves.append((subscription.cursor.mark_delete, subscription.cursor.generation))


def test_an_unsubscribe_that_is_cancelled_is_carried_out_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, _ = await subscribed(topic)
            leaving = asyncio.create_task(consumer.unsubscribe())
            await asyncio.sleep(0)  # it runs up to where it waits for the store
            leaving.cancel()
            await asyncio.wait([leaving])
            await eventually(lambda: consumer.closed, "the consumer closed")
            assert not topic.subscriptions, "what the store has deleted is not kept here, where acks would be confirmed"
            assert not engine.store.cursors(topic.topic_id)

    asyncio.run(main())


def test_invariant_6_a_seek_to_where_mark_delete_stands_is_told_too(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            listener = MoveListener()
            engine.add_listener(listener)
            topic = await engine.topic(TOPIC)
            positions = await topic.publish(numbered(5))
            consumer, _ = await subscribed(topic)
            await consumer.acknowledge([Ack(positions[0]), Ack(positions[3])])
            await consumer.seek(positions[1])
            assert listener.moves == [(positions[0], 1), (positions[0], 2)]

    asyncio.run(main())


def test_a_late_cumulative_ack_inside_a_batch_that_is_trimmed_is_harmless(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, _ = await subscribed(topic, "sub", EXCLUSIVE)
            positions = [(await topic.publish([batch([b"a", b"b"])]))[0] for _ in range(3)]
            await consumer.acknowledge_cumulative(positions[1])
            await topic.trimming.trim(positions[1])
            await consumer.acknowledge_cumulative(positions[0], 0)
            assert topic.subscriptions["sub"].cursor.mark_delete == positions[1]

    asyncio.run(main())


def test_a_replicated_consumer_that_is_refused_does_not_make_a_passing_subscription_replicated(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await subscribed(topic, durable=False)
            with pytest.raises(NotAllowedError, match="not durable"):
                await subscribed(topic, replicated=True)
            assert not topic.subscriptions["sub"].replicated

    asyncio.run(main())


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_redelivery_of_what_is_no_position_changes_nothing(tmp_path: Path, kind: SubscriptionType) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic, "sub", kind)
            (position,) = await topic.publish(numbered(1))
            await inbox.holds(1)
            consumer.redeliver([Position(position.ledger, entry) for entry in (-1, 2**32, 2**63)])
            await consumer.acknowledge([Ack(position)])
            assert topic.subscriptions["sub"].backlog_messages() == 0

    asyncio.run(main())


def test_others_have_their_turn_while_many_messages_are_skipped(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.publish([message()] * 5_000)
            subscription = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=False)
            skipping = asyncio.create_task(subscription.moves.skip(4_500))
            seen = set[Position]()
            while not skipping.done():
                seen.add(subscription.cursor.mark_delete)
                await asyncio.sleep(0)
            assert (await skipping, subscription.backlog_messages()) == (4_500, 500)
            assert len(seen) >= 5

    asyncio.run(main())


def test_a_seek_ends_a_skip_that_is_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish([message()] * 5_000)
            subscription = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=False)
            put_many, skips = engine.writer.put_many, list[asyncio.Task[int]]()

            async def skip_meanwhile(*writes: Any, **cleared: Any) -> None:
                await put_many(*writes, **cleared)
                skips.append(asyncio.create_task(subscription.moves.skip(4_500)))
                while subscription.mark_delete == BEFORE_ALL:  # noqa: ASYNC110 - each turn counts
                    await asyncio.sleep(0)

            with monkeypatch.context() as patch:
                patch.setattr(engine.writer, "put_many", skip_meanwhile)
                await subscription.moves.seek(positions[10])
            (skipping,) = skips
            assert await skipping < 4_500
            assert subscription.backlog_messages() == 4_990

    asyncio.run(main())


def test_others_have_their_turn_while_a_time_is_sought_in_many_blocks(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(topic_reading, "SEARCH_BLOCKS", 10)

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            for _ in range(50):
                await topic.publish(numbered(1))
            subscription = await topic.subscriptions.create("sub", BEFORE_ALL, replicated=False)
            expiring = asyncio.create_task(subscription.moves.expire(2**50))
            turns = 0
            while subscription.backlog_messages():
                turns += 1
                await asyncio.sleep(0)
            await expiring
            assert turns >= 5

    asyncio.run(main())


def test_a_subscription_that_could_not_be_made_is_not_stored_by_those_who_waited_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            put_many, calls, full = topic.writer.put_many, 0, asyncio.Event()

            async def full_once(*writes: Any, **options: Any) -> None:
                nonlocal calls
                calls += 1
                if calls == 1:
                    await full.wait()
                    raise StoreFull("full")
                await put_many(*writes, **options)

            topic.writer.put_many = full_once  # type: ignore[method-assign]
            first = asyncio.create_task(topic.subscribe("sub", SubscribeOptions(), Inbox()))
            await eventually(lambda: calls == 1, "the first one's write")
            second = asyncio.create_task(topic.subscribe("sub", SubscribeOptions(), Inbox()))
            await asyncio.sleep(0)
            full.set()
            with pytest.raises(StoreFull):
                await first
            with pytest.raises(StoreFull):
                await second
            assert not topic.subscriptions
            assert not engine.store.cursors(topic.topic_id)
            await topic.subscribe("sub", SubscribeOptions(), Inbox())
            assert list(engine.store.cursors(topic.topic_id)) == ["sub"]

    asyncio.run(main())


def test_peers_hear_of_a_replicated_subscription_though_its_consumer_gives_up(tmp_path: Path) -> None:
    class Subscriptions(TopicListener[Topic]):
        def on_subscription(self, topic: Any, subscription: Any) -> None:
            heard.append(subscription.replicated)

    heard: list[bool] = []

    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            await topic.subscriptions.create("sub", BEFORE_ALL, replicated=False)
            engine.add_listener(Subscriptions())
            coming = asyncio.create_task(topic.subscribe("sub", SubscribeOptions(replicated=True), Inbox()))
            await asyncio.sleep(0)
            coming.cancel()
            await asyncio.wait([coming])
            assert topic.subscriptions["sub"].replicated
            assert heard == [False, True]

    asyncio.run(main())


def test_consumers_that_come_together_are_not_more_than_the_policy_allows(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path, settings=EngineSettings(policies=TopicPolicies(max_consumers=2))) as engine:
            topic = await engine.topic(TOPIC)
            coming = (topic.subscribe(f"sub-{number}", SubscribeOptions(), Inbox()) for number in range(5))
            results = await asyncio.gather(*coming, return_exceptions=True)
            assert sum(isinstance(result, EngineConsumer) for result in results) == 2
            assert sum(isinstance(result, NotAllowedError) for result in results) == 3

    asyncio.run(main())


def test_policies_whose_setting_is_cancelled_hold_now_as_they_will_after_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            setting = asyncio.create_task(topic.policies.set(TopicPolicies(max_consumers=7)))
            await asyncio.sleep(0)
            setting.cancel()
            await eventually(lambda: engine.store.policies(topic.topic_id), "the policies in the store")
            await eventually(lambda: topic.policies.effective.max_consumers == 7, "the policies in force")

    asyncio.run(main())
