"""Cases that users of the ecosystem know, on a real engine, where no other test has them: see docs/compatibility.md."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from itertools import count, permutations
from pathlib import Path

import mmh3
import pytest
from compaction_support import keyed
from engine_support import TOPIC, Inbox, eventually, message, opened, subscribed

from replicator.engine.engine import EngineSettings
from replicator.engine.errors import InvalidSeek, NotAllowedError
from replicator.engine.log.entry import decode_entry
from replicator.engine.policies import KeyAssignment, TopicPolicies
from replicator.engine.types import Ack, SubscribeOptions, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL, Position

FAILOVER, SHARED, KEY_SHARED = SubscriptionType.FAILOVER, SubscriptionType.SHARED, SubscriptionType.KEY_SHARED
FAR_FUTURE_MS = 2**52


def metadata_of(entry: bytes) -> MessageMetadata:
    return decode_entry(entry)[0]


async def hold(inboxes: list[Inbox], count: int) -> None:
    await eventually(lambda: sum(len(inbox.deliveries) for inbox in inboxes) >= count, f"{count} deliveries")


# Key_Shared.


@pytest.mark.parametrize("consumers", [1, 3, 100])
def test_a_key_is_with_one_consumer_and_in_order_however_many_there_are(tmp_path: Path, consumers: int) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            inboxes = [
                (await subscribed(topic, "sub", KEY_SHARED, consumer_name=f"c{n}", permits=2000))[1]
                for n in range(consumers)
            ]
            positions = await topic.publish([keyed(f"k{n % 50}", b"%d" % n) for n in range(1000)])
            await hold(inboxes, 1000)
            owners: dict[str, set[int]] = {}
            places: dict[str, list[Position]] = {}
            for owner, inbox in enumerate(inboxes):
                for delivery in inbox.deliveries:
                    key = metadata_of(delivery.entry).partition_key
                    owners.setdefault(key, set()).add(owner)
                    places.setdefault(key, []).append(delivery.position)
            assert all(len(each) == 1 for each in owners.values())
            assert all(each == sorted(each) for each in places.values())
            assert sorted(position for each in places.values() for position in each) == positions
            assert len(set().union(*owners.values())) > min(consumers, 10) // 2, "the keys are spread"

    asyncio.run(main())


def test_messages_without_a_key_are_all_with_one_consumer(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            inboxes = [(await subscribed(topic, "sub", KEY_SHARED, consumer_name=f"c{n}"))[1] for n in range(5)]
            positions = await topic.publish([keyed(None, b"x") for _ in range(100)])
            await hold(inboxes, 100)
            assert [inbox.positions for inbox in inboxes if inbox.positions] == [positions]

    asyncio.run(main())


def test_messages_of_one_ordering_key_are_with_one_consumer_whatever_their_keys(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            inboxes = [(await subscribed(topic, "sub", KEY_SHARED, consumer_name=f"c{n}"))[1] for n in range(5)]
            positions = await topic.publish([keyed(f"k{n}", b"x", ordering_key=b"order") for n in range(100)])
            await hold(inboxes, 100)
            assert [inbox.positions for inbox in inboxes if inbox.positions] == [positions]

    asyncio.run(main())


def colliding_keys() -> tuple[str, str]:
    """Return two keys of one 32-bit hash, in the lower half of the slots, where a second consumer takes over."""
    seen: dict[int, str] = {}
    for number in count():
        key = f"key-{number}"
        hash_ = mmh3.hash(key, signed=False)
        if hash_ in seen and hash_ % 65_536 < 32_768:
            return seen[hash_], key
        seen[hash_] = key
    raise AssertionError


def test_two_keys_of_one_hash_are_treated_as_one_key(tmp_path: Path) -> None:
    first_key, second_key = colliding_keys()

    async def main() -> None:
        policies = TopicPolicies(key_assignment=KeyAssignment.HASH_RANGE)
        async with opened(tmp_path, settings=EngineSettings(policies=policies)) as engine:
            topic = await engine.topic(TOPIC)
            old, old_inbox = await subscribed(topic, "sub", KEY_SHARED, consumer_name="old")
            (held,) = await topic.publish([keyed(first_key, b"")])
            await old_inbox.holds(1)
            _, new_inbox = await subscribed(topic, "sub", KEY_SHARED, consumer_name="new")
            (other,) = await topic.publish([keyed(second_key, b"")])
            dispatcher = topic.subscriptions["sub"].dispatching.dispatcher
            assert dispatcher is not None
            await eventually(lambda: dispatcher.status()["waiting_entries"] == 1)
            assert new_inbox.positions == []
            await old.acknowledge([Ack(held)])
            await new_inbox.holds(1)
            assert (old_inbox.positions, new_inbox.positions) == ([held], [other])

    asyncio.run(main())


def test_a_seek_gives_key_shared_consumers_everything_again_by_their_keys(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            pairs = [await subscribed(topic, "sub", KEY_SHARED, consumer_name=f"c{n}") for n in range(3)]
            inboxes = [inbox for _, inbox in pairs]
            restarts: list[int] = []
            for consumer, _ in pairs:
                consumer.on_restarted = lambda: restarts.append(1)
            positions = await topic.publish([keyed(f"k{n % 10}", b"") for n in range(100)])
            await hold(inboxes, 100)
            before = [list(inbox.positions) for inbox in inboxes]
            await pairs[0][0].acknowledge([Ack(before[0][0])])
            await topic.subscriptions["sub"].moves.seek(positions[0])
            await hold(inboxes, 200)
            assert [inbox.positions for inbox in inboxes] == [each * 2 for each in before]
            assert len(restarts) == 3
            assert all(delivery.redelivery_count == 0 for inbox in inboxes for delivery in inbox.deliveries)

    asyncio.run(main())


@pytest.mark.parametrize("fields", [{"txnid_most_bits": 0}, {"txnid_least_bits": 0}, {"txnid_most_bits": 7}])
def test_an_entry_of_a_transaction_is_refused_by_name(tmp_path: Path, fields: dict[str, int]) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            with pytest.raises(NotAllowedError, match="transaction"):
                await topic.publish([message(), keyed("k", b"", **fields)])
            assert topic.log.messages == 0

    asyncio.run(main())


# Failover.


def test_consumers_of_a_failover_subscription_take_over_without_a_gap_and_without_counting(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            first, inbox = await subscribed(topic, "sub", FAILOVER, consumer_name="a")
            _, standby = await subscribed(topic, "sub", FAILOVER, consumer_name="b")
            positions = await topic.publish([message(b"%d" % n) for n in range(10)])
            await inbox.holds(10)
            await first.acknowledge_cumulative(positions[3])
            await first.acknowledge([Ack(positions[6])])
            first.close()
            await standby.holds(5)
            await topic.publish([message(b"end")])
            await standby.holds(6)
            assert standby.positions[:5] == [p for p in positions[4:] if p != positions[6]]
            assert [delivery.redelivery_count for delivery in standby.deliveries] == [0] * 6

    asyncio.run(main())


@pytest.mark.parametrize("kind", [SubscriptionType.EXCLUSIVE, FAILOVER])
def test_a_delayed_message_comes_at_once_where_one_consumer_gets_everything_in_order(
    tmp_path: Path, kind: SubscriptionType
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            _, inbox = await subscribed(topic, "sub", kind)
            positions = await topic.publish([keyed("k", b"", deliver_at_time=FAR_FUTURE_MS), message()])
            await inbox.holds(2)
            assert inbox.positions == positions

    asyncio.run(main())


# Shared.


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_a_policy_turns_delayed_delivery_off_at_run_time(tmp_path: Path, kind: SubscriptionType) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            _, inbox = await subscribed(topic, "sub", kind)
            later, now = await topic.publish([keyed("k", b"", deliver_at_time=FAR_FUTURE_MS), message()])
            await inbox.holds(1)
            assert inbox.positions == [now]
            await topic.policies.set(replace(topic.policies.effective, delayed_delivery=False))
            (at_once,) = await topic.publish([keyed("k", b"", deliver_at_time=FAR_FUTURE_MS)])
            await inbox.holds(2)
            assert inbox.positions == [now, at_once]
            # What waits by then goes on waiting for its time, or for the next consumers.
            subscription = topic.subscriptions["sub"]
            assert not subscription.cursor.is_consumed(later)

    asyncio.run(main())


@pytest.mark.parametrize("kind", [SHARED, KEY_SHARED])
def test_a_rejection_is_counted_and_a_disconnect_is_not(tmp_path: Path, kind: SubscriptionType) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic, "sub", kind)
            await topic.publish([keyed("k", b"")])
            await inbox.holds(1)
            consumer.redeliver(inbox.positions)
            await inbox.holds(2)
            second, other = await subscribed(topic, "sub", kind)
            consumer.close()
            await other.holds(1)
            second.close()
            _, alone = await subscribed(topic, "sub", kind)
            await alone.holds(1)
            counts = [delivery.redelivery_count for each in (inbox, other, alone) for delivery in each.deliveries]
            assert counts == [0, 1, 1, 0], "counted while anybody is there"

    asyncio.run(main())


def test_a_consumer_that_gives_no_permits_gets_nothing_and_keeps_nothing_from_the_others(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            _, idle = await subscribed(topic, "sub", SHARED, permits=0)
            _, busy = await subscribed(topic, "sub", SHARED)
            positions = await topic.publish([message() for _ in range(50)])
            await busy.holds(50)
            assert (busy.positions, idle.positions) == (positions, [])

    asyncio.run(main())


# Acknowledgements.


def test_individual_acknowledgements_count_in_every_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish([message() for _ in range(4)])
            for number, order in enumerate(permutations(range(4))):
                consumer, _ = await subscribed(topic, f"sub-{number}")
                cursor = topic.subscriptions[f"sub-{number}"].cursor
                acked: set[int] = set()
                for index in order:
                    await consumer.acknowledge([Ack(positions[index])])
                    acked.add(index)
                    first_left = min(set(range(5)) - acked)
                    expected = positions[first_left - 1] if first_left else BEFORE_ALL
                    assert cursor.mark_delete == expected
                    assert cursor.backlog_entries() == 4 - len(acked)

    asyncio.run(main())


def test_an_acknowledgement_that_comes_twice_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish([message() for _ in range(3)])
            consumer, inbox = await subscribed(topic)
            await inbox.holds(3)
            for position in (positions[0], positions[2]):  # below the mark-delete position, and beyond it
                await consumer.acknowledge([Ack(position)])
                before = topic.subscriptions["sub"].status()
                await consumer.acknowledge([Ack(position), Ack(position)])
                assert topic.subscriptions["sub"].status() == before

    asyncio.run(main())


def test_an_acknowledgement_counts_though_the_message_is_with_another_consumer_by_now(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            (position,) = await topic.publish([message()])
            first, inbox = await subscribed(topic, permits=1, consumer_name="first")
            await inbox.holds(1)
            second, other = await subscribed(topic, consumer_name="second")
            first.redeliver([position])
            await other.holds(1)
            await first.acknowledge([Ack(position)])
            subscription = topic.subscriptions["sub"]
            assert subscription.cursor.is_consumed(position)
            assert [each["unacked_entries"] for each in subscription.status()["consumers"]] == [0, 0]
            second.redeliver()  # it is not held any more, so it does not come a third time
            (following,) = await topic.publish([message()])
            await other.holds(2)
            assert other.positions == [position, following]

    asyncio.run(main())


def test_an_acknowledgement_of_an_expired_message_is_late_not_wrong(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish([message() for _ in range(3)])
            consumer, inbox = await subscribed(topic)
            await inbox.holds(3)
            subscription = topic.subscriptions["sub"]
            await subscription.moves.expire(FAR_FUTURE_MS)
            before = subscription.status()
            assert before["mark_delete"] == str(positions[2])
            await consumer.acknowledge([Ack(positions[1])])
            assert subscription.status() == before

    asyncio.run(main())


# Cursors.


@pytest.mark.parametrize("kind", list(SubscriptionType))
def test_a_cleared_backlog_is_consumed_and_what_was_with_consumers_does_not_come_again(
    tmp_path: Path, kind: SubscriptionType
) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            consumer, inbox = await subscribed(topic, "sub", kind, permits=3)
            positions = await topic.publish([message() for _ in range(5)])
            await inbox.holds(3)
            subscription = topic.subscriptions["sub"]
            await subscription.moves.clear_backlog()
            assert subscription.cursor.mark_delete == positions[-1]
            assert subscription.backlog_messages() == 0
            consumer.redeliver()
            consumer.flow(10)
            (following,) = await topic.publish([message()])
            await inbox.holds(4)
            assert inbox.positions == [*positions[:3], following]

    asyncio.run(main())


def test_a_subscription_made_at_a_position_begins_behind_it_and_keeps_its_properties(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish([message() for _ in range(5)])
            consumer, inbox = await subscribed(
                topic, permits=1, start=positions[1], subscription_properties={"owner": "billing"}
            )
            await inbox.holds(1)
            assert inbox.positions == [positions[2]]
            consumer.close()
            beyond = Position(positions[4].ledger, positions[4].entry + 1)
            with pytest.raises(InvalidSeek):
                await subscribed(topic, "beyond", start=beyond)
            assert "beyond" not in topic.subscriptions
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            # Of a subscription that is there, neither start nor properties are changed by who connects.
            _, inbox = await subscribed(topic, start=positions[3], subscription_properties={"owner": "nobody"})
            await inbox.holds(3)
            assert inbox.positions == positions[2:]
            assert topic.subscriptions["sub"].cursor.state.properties == {"owner": "billing"}

    asyncio.run(main())


def test_a_reader_of_the_compacted_view_gets_the_newest_of_each_key_and_then_what_comes(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as engine:
            topic = await engine.topic(TOPIC)
            positions = await topic.publish(
                [keyed(key, payload) for key, payload in (("a", b"1"), ("b", b"1"), (None, b"x"), ("a", b"2"))]
            )
            await topic.compaction.run()
            following = await topic.publish([keyed("b", b"2"), keyed(None, b"y")])
            _, compacted = await subscribed(topic, "compacted", FAILOVER, read_compacted=True)
            _, whole = await subscribed(topic, "whole", FAILOVER)
            await whole.holds(6)
            await compacted.holds(4)
            assert whole.positions == [*positions, *following]
            assert compacted.positions == [positions[1], positions[3], *following], "keyless messages are compacted out"
            with pytest.raises(NotAllowedError, match="read_compacted"):
                await topic.subscribe("shared", SubscribeOptions(SHARED, "c", read_compacted=True), Inbox())

    asyncio.run(main())
