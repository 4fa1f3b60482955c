"""The contract of channels, against both of them: in process, and over connections to a real gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from channel_support import Cluster, Received, Sent, pause_longer_than_connecting_may_take, reached
from engine_support import TOPIC, eventually, marker, message

from replicator.client.errors import (
    AlreadyClosed,
    ConnectError,
    ConsumerBusy,
    InvalidAck,
    InvalidConfiguration,
    InvalidMessage,
    InvalidSeek,
    InvalidTopicName,
    NotAllowedError,
    ProducerBlockedQuotaExceededException,
    ProducerBusy,
    ProducerFenced,
    SubscriptionNotFound,
)
from replicator.client.settings import ConsumerSettings, ProducerSettings
from replicator.client.wire import embedded_channel
from replicator.client.wire.channel import ConsumerChannel, ProducerChannel
from replicator.client.wire.consumer_channel import POSITIONS_PER_COMMAND_MAX
from replicator.engine.policies import QuotaPolicy, TopicPolicies
from replicator.engine.types import (
    DUPLICATE,
    AccessMode,
    Ack,
    HashRange,
    InitialPosition,
    KeySharedPolicy,
    SubscriptionType,
)
from replicator.gateway import producing
from snapshots.position import BEFORE_ALL, Position

DEADLINE_SECONDS = 20

Scenario = Callable[[Cluster], Awaitable[None]]


@pytest.fixture(params=["embedded", "broker"])
def with_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    """Runs a scenario over channels of either kind."""

    async def run(scenario: Scenario) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), reached(request.param, tmp_path / "engine") as cluster:
            await scenario(cluster)

    return lambda scenario: asyncio.run(run(scenario))


WithCluster = Callable[[Scenario], None]


async def published(cluster: Cluster, count: int) -> list[Position]:
    """Publish that many more messages; return their positions."""
    topic = await cluster.topic()
    return await topic.publish([message(b"%d" % index) for index in range(count)])


async def round_trip(channel: ConsumerChannel) -> None:
    """Return when everything that the cluster had to say to this consumer has come."""
    for _ in range(3):
        await channel.last_message()


async def answers_to(received: Received, *request_ids: int) -> None:
    await eventually(lambda: {*received.confirmed, *received.refused} >= {*request_ids}, f"answers to {request_ids}")


# Producers.


def test_a_producer_is_told_its_name_and_one_without_a_name_gets_one_that_nobody_has(
    with_cluster: WithCluster,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        named, _ = await cluster.producer("p")
        assert (named.ready.producer_name, named.ready.last_sequence_id, named.ready.topic_epoch) == ("p", -1, None)
        names = {(await cluster.producer(None))[0].ready.producer_name for _ in range(3)}
        assert len(names - {"", "p"}) == 3

    with_cluster(scenario)


def test_a_name_belongs_to_one_producer_at_a_time(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        first, _ = await cluster.producer("p")
        with pytest.raises(ProducerBusy, match="'p'"):
            await cluster.producer("p")
        await first.close()
        await eventually_connected(cluster, "p")

    with_cluster(scenario)


async def eventually_connected(
    cluster: Cluster, name: str, access_mode: AccessMode = AccessMode.SHARED
) -> ProducerChannel:
    """Return a producer, when the cluster has noticed that the one before it has gone."""
    while True:
        try:
            return (await cluster.producer(name, access_mode))[0]
        except (ProducerBusy, ProducerFenced):
            await asyncio.sleep(0.01)


def test_an_entry_that_is_stored_already_gets_the_receipt_of_a_duplicate(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.topic()
        await topic.policies.set(TopicPolicies(deduplication=True))
        channel, sent = await cluster.producer("p")
        for entry_id, sequence_id in ((1, 0), (2, 1), (3, 1), (4, 2)):
            channel.publish(entry_id, message(b"%d" % sequence_id, sequence_id=sequence_id))
        await sent.answered(1, 2, 3, 4)
        assert sent.receipts[3] == DUPLICATE
        assert DUPLICATE not in (sent.receipts[1], sent.receipts[2], sent.receipts[4])
        assert topic.log.messages == 3
        await channel.close()
        again = await eventually_connected(cluster, "p")
        assert again.ready.last_sequence_id == 2

    with_cluster(scenario)


def test_a_refused_entry_is_named_and_costs_nothing_else(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        channel, sent = await cluster.producer("p")
        channel.publish(1, b"not an entry")
        await sent.answered(1)
        channel.publish(2, message())
        await sent.answered(2)
        assert type(sent.refusals[1]) is InvalidMessage
        assert sent.receipts[2] == (await cluster.topic()).log.last
        assert sent.lost == []

    with_cluster(scenario)


def test_a_backlog_over_its_quota_refuses_entries_by_name(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        channel, sent = await cluster.producer("p")
        topic = await cluster.topic()
        topic.writing.quota_exceeded = QuotaPolicy.PRODUCER_EXCEPTION
        channel.publish(1, message())
        await sent.answered(1)
        assert type(sent.refusals[1]) is ProducerBlockedQuotaExceededException

    with_cluster(scenario)


def test_what_a_quota_holds_of_a_producer_that_leaves_is_given_up(
    with_cluster: WithCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise producers that come and go would fill what may be held for all (invariant 11)."""
    monkeypatch.setattr(embedded_channel, "CLOSE_SECONDS_MAX", 0.2)
    monkeypatch.setattr(producing, "CLOSE_SECONDS_MAX", 0.2)

    async def scenario(cluster: Cluster) -> None:
        leaving, sent = await cluster.producer("leaving")
        staying, held = await cluster.producer("staying")
        topic = await cluster.topic()
        topic.writing.quota_exceeded = QuotaPolicy.PRODUCER_REQUEST_HOLD
        for channel in (leaving, staying):
            channel.publish(1, message())
        await eventually(lambda: topic.writing.gate.held == 2, "two publishes that are held")
        await leaving.close()
        await eventually(lambda: topic.writing.gate.held == 1, "one publish that is held")
        assert (sent.receipts, sent.refusals) == ({}, {})
        topic.writing.quota_exceeded = None
        await held.answered(1)
        await eventually_connected(cluster, "leaving")
        assert topic.log.messages == 1

    with_cluster(scenario)


def test_an_exclusive_producer_has_the_topic_for_itself(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        owner, _ = await cluster.producer("owner", AccessMode.EXCLUSIVE)
        assert owner.ready.topic_epoch is not None
        with pytest.raises(ProducerBusy):
            await cluster.producer("other")
        with pytest.raises(ProducerFenced):
            await cluster.producer("other", AccessMode.EXCLUSIVE)
        await owner.close()
        await eventually_connected(cluster, "other")

    with_cluster(scenario)


def test_a_producer_waits_for_its_turn_however_long_it_takes(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        owner, _ = await cluster.producer("owner", AccessMode.EXCLUSIVE)
        waiting = asyncio.create_task(cluster.producer("next", AccessMode.WAIT_FOR_EXCLUSIVE))
        topic = await cluster.topic()
        await eventually(lambda: topic.producers.registry.waiting == 1, "a producer that waits")
        await pause_longer_than_connecting_may_take()
        assert not waiting.done()
        await owner.close()
        channel, sent = await waiting
        assert channel.ready.topic_epoch is not None
        channel.publish(1, message())
        await sent.answered(1)
        assert 1 in sent.receipts

    with_cluster(scenario)


def test_a_producer_that_gives_up_waiting_leaves_its_place_in_the_queue(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.producer("owner", AccessMode.EXCLUSIVE)
        waiting = asyncio.create_task(cluster.producer("next", AccessMode.WAIT_FOR_EXCLUSIVE))
        registry = (await cluster.topic()).producers.registry
        await eventually(lambda: registry.waiting == 1, "a producer that waits")
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await eventually(lambda: registry.waiting == 0, "nobody waits any more")
        assert "next" not in registry.sessions

    with_cluster(scenario)


def test_a_fenced_producer_is_told_so_after_the_receipts_of_what_it_sent(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        first, sent = await cluster.producer("first")
        first.publish(1, message())
        await sent.answered(1)
        owner, _ = await cluster.producer("owner", AccessMode.EXCLUSIVE_WITH_FENCING)
        await eventually(lambda: sent.lost, "the loss")
        assert [type(error) for error in sent.lost] == [ProducerFenced]
        assert "owner" in str(sent.lost[0])
        first.publish(2, message())  # as a producer does that has not heard of it yet; it must not reach the topic
        _, others = await cluster.consumer(permits=10)
        await eventually(lambda: others.deliveries, "the delivery")
        assert owner.ready.topic_epoch is not None
        assert (await cluster.topic()).log.messages == 1
        await first.close()

    with_cluster(scenario)


def test_an_exclusive_producer_takes_its_place_again_with_its_epoch_and_an_older_one_is_fenced(
    with_cluster: WithCluster,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        owner, sent = await cluster.producer("owner", AccessMode.EXCLUSIVE)
        epoch = owner.ready.topic_epoch
        assert epoch is not None
        again, _ = await cluster.producer("owner", AccessMode.EXCLUSIVE, epoch)
        assert again.ready.topic_epoch == epoch
        await eventually(lambda: sent.lost, "the loss of the former connection")
        taker, _ = await cluster.producer("taker", AccessMode.EXCLUSIVE_WITH_FENCING)
        assert taker.ready.topic_epoch == epoch + 1
        with pytest.raises(ProducerFenced, match="epoch"):
            await cluster.producer("owner", AccessMode.EXCLUSIVE, epoch)

    with_cluster(scenario)


def test_a_producer_that_the_worker_lets_go_of_may_connect_again(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        _, sent = await cluster.producer("p")
        (await cluster.topic()).producers.close("the topic moves")
        await eventually(lambda: sent.lost, "the loss")
        assert type(sent.lost[0]) is ConnectError
        assert "the topic moves" in str(sent.lost[0])

    with_cluster(scenario)


# Subscribing.


def test_everything_that_a_consumer_asks_for_reaches_the_engine(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        (first, *_) = await published(cluster, 3)
        exclusive = ConsumerSettings(
            TOPIC,
            "s",
            "c",
            SubscriptionType.FAILOVER,
            InitialPosition.EARLIEST,
            replicated=True,
            properties={"zone": "eu-1a", "empty": ""},
            priority=7,
            start=first,
            read_compacted=True,
            subscription_properties={"owner": "flights ✈"},
        )
        key_shared = replace(
            exclusive,
            subscription="k",
            consumer_type=SubscriptionType.KEY_SHARED,
            read_compacted=False,
            replicated=False,
            durable=False,
            key_shared=KeySharedPolicy((HashRange(0, 100), HashRange(200, 65_535)), allow_out_of_order_delivery=True),
        )
        for settings in (exclusive, key_shared):
            await cluster.connector.open_consumer(settings)
            subscription = await cluster.subscription(settings.subscription)
            (consumer,) = subscription.consumers.values()
            assert replace(consumer.options, client=None) == settings.options()
        durable, passing = await cluster.subscription("s"), await cluster.subscription("k")
        assert durable.cursor.mark_delete == passing.cursor.mark_delete == first
        assert dict(durable.cursor.state.properties) == {"owner": "flights ✈"}
        assert (durable.durable, passing.durable) == (True, False)

    with_cluster(scenario)


def test_a_consumer_that_cannot_be_admitted_is_told_why_and_the_others_stay(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        def sticky(start: int, end: int) -> KeySharedPolicy:
            return KeySharedPolicy((HashRange(start, end),))

        await cluster.consumer("exclusive")
        with pytest.raises(ConsumerBusy):
            await cluster.consumer("exclusive", name="second")
        with pytest.raises(ConsumerBusy, match="Exclusive"):
            await cluster.consumer("exclusive", SubscriptionType.SHARED, name="second")
        await cluster.consumer("sticky", SubscriptionType.KEY_SHARED, key_shared=sticky(0, 100))
        with pytest.raises(InvalidConfiguration):
            await cluster.consumer("sticky", SubscriptionType.KEY_SHARED, name="second", key_shared=sticky(50, 200))
        with pytest.raises(InvalidConfiguration):
            await cluster.consumer("sticky", SubscriptionType.KEY_SHARED, name="second", key_shared=KeySharedPolicy(()))
        await cluster.consumer("sticky", SubscriptionType.KEY_SHARED, name="second", key_shared=sticky(101, 200))
        assert [len((await cluster.subscription(name)).consumers) for name in ("exclusive", "sticky")] == [1, 2]

    with_cluster(scenario)


def test_a_subscription_that_is_not_durable_goes_with_its_last_consumer(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        channel, _ = await cluster.consumer(durable=False)
        topic = await cluster.topic()
        assert "s" in topic.subscriptions
        await channel.close()
        await eventually(lambda: "s" not in topic.subscriptions, "the subscription's end")

    with_cluster(scenario)


def test_failover_consumers_hear_who_is_active_before_they_get_messages(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        first, active = await cluster.consumer(kind=SubscriptionType.FAILOVER, name="a", permits=10)
        await active.hears("active")
        _, standby = await cluster.consumer(kind=SubscriptionType.FAILOVER, name="b", permits=10)
        (position,) = await published(cluster, 1)
        await active.hears("active", position)
        before = list(standby.told)
        assert before in ([], ["inactive"])
        await first.close()
        await standby.hears(*before, "active", position)

    with_cluster(scenario)


def test_what_happens_before_a_channel_is_started_is_told_when_it_is(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        topic = await cluster.topic()
        settings = [
            ConsumerSettings(TOPIC, name, "c", SubscriptionType.FAILOVER, InitialPosition.EARLIEST) for name in "ab"
        ]
        active, deleted = [await cluster.connector.open_consumer(setting) for setting in settings]
        producer = await cluster.connector.open_producer(ProducerSettings(TOPIC, "p"))
        await topic.subscriptions["b"].deleting.delete(force=True)
        await cluster.producer("owner", AccessMode.EXCLUSIVE_WITH_FENCING)
        received, gone, sent = Received(), Received(), Sent()
        active.start(received)
        deleted.start(gone)
        producer.start(sent)
        await eventually(lambda: received.told and gone.lost and sent.lost, "the news")
        assert (received.told, received.lost) == (["active"], [])
        assert "deleted" in str(gone.lost[0])
        assert type(sent.lost[0]) is ProducerFenced

    with_cluster(scenario)


@pytest.mark.parametrize("permits", [0, -1])
def test_permits_that_make_no_sense_lose_the_channel(with_cluster: WithCluster, permits: int) -> None:
    async def scenario(cluster: Cluster) -> None:
        channel, received = await cluster.consumer()
        channel.flow(permits)
        await eventually(lambda: received.lost, "the loss")
        assert "permits" in str(received.lost[0])
        await published(cluster, 1)
        assert received.deliveries == []
        await eventually_free(cluster)

    with_cluster(scenario)


async def eventually_free(cluster: Cluster) -> None:
    """Return when the subscription has no consumer."""
    subscription = await cluster.subscription()
    await eventually(lambda: not subscription.consumers, "the end of the consumer")


# Seeking.


def test_a_seek_starts_all_consumers_anew_and_what_comes_after_it_is_from_the_new_place(
    with_cluster: WithCluster,
) -> None:
    async def scenario(cluster: Cluster) -> None:
        positions = await published(cluster, 6)
        first, one = await cluster.consumer(kind=SubscriptionType.SHARED, name="a", permits=6)
        second, other = await cluster.consumer(kind=SubscriptionType.SHARED, name="b")
        await one.hears(*positions)
        first.acknowledge(1, [Ack(position) for position in positions])
        await answers_to(one, 1)
        await first.seek(positions[3])
        assert one.told == [*positions, "restarted"]
        await other.hears("restarted")
        second.flow(10)
        await other.hears("restarted", *positions[3:])
        await second.seek(BEFORE_ALL)
        await other.hears("restarted", *positions[3:], "restarted", *positions)

    with_cluster(scenario)


def test_a_seek_by_time_goes_to_the_first_message_of_that_time_or_later(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        positions = await published(cluster, 3)
        channel, received = await cluster.consumer(permits=100)
        await received.hears(*positions)
        await channel.seek(0)
        await received.hears(*positions, "restarted", *positions)
        received.told.clear()
        await channel.seek(2**53)
        later = await published(cluster, 1)
        await received.hears("restarted", *later)

    with_cluster(scenario)


def test_a_seek_beyond_the_end_is_refused_and_changes_nothing(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        positions = await published(cluster, 2)
        channel, received = await cluster.consumer(permits=1)
        await received.hears(positions[0])
        with pytest.raises(InvalidSeek):
            await channel.seek(Position(positions[-1].ledger, positions[-1].entry + 10))
        channel.flow(1)
        await received.hears(*positions)

    with_cluster(scenario)


def test_a_restart_uses_up_no_permits_and_gives_none_away(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        positions = await published(cluster, 50)
        channel, received = await cluster.consumer(permits=20)
        await received.hears(*positions[:20])
        await channel.seek(BEFORE_ALL)
        await round_trip(channel)
        assert received.told == [*positions[:20], "restarted"]
        channel.flow(20)
        await received.hears(*positions[:20], "restarted", *positions[:20])
        await round_trip(channel)
        assert len(received.told) == 41

    with_cluster(scenario)


def test_an_acknowledgement_from_before_a_restart_is_void_and_answered(with_cluster: WithCluster) -> None:
    """Otherwise a seek back would skip messages whose acknowledgements were on their way (invariant 5)."""

    async def scenario(cluster: Cluster) -> None:
        positions = await published(cluster, 4)
        channel, received = await cluster.consumer(permits=4)
        await received.hears(*positions)
        subscription = await cluster.subscription()
        channel.acknowledge(1, [Ack(positions[1])])
        channel.acknowledge_cumulative(2, positions[3], None)
        # The consumer has not heard of this one when it acknowledges.
        await subscription.moves.seek(BEFORE_ALL)
        await answers_to(received, 1, 2)
        assert received.refused == {}
        assert subscription.cursor.mark_delete < positions[0]
        assert not subscription.cursor.is_consumed(positions[1])
        channel.flow(4)
        await received.hears(*positions, "restarted", *positions)
        channel.acknowledge(3, [Ack(positions[1])])
        await answers_to(received, 3)
        assert subscription.cursor.is_consumed(positions[1])

    with_cluster(scenario)


def test_a_redelivery_of_everything_that_meets_a_restart_has_begun_before_it(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        positions = await published(cluster, 2)
        channel, received = await cluster.consumer(permits=2)
        await received.hears(*positions)
        channel.redeliver(None)
        await (await cluster.subscription()).moves.seek(BEFORE_ALL)
        channel.flow(4)
        await eventually(lambda: "restarted" in received.told and received.told[-1] == positions[1], "the messages")
        assert received.told.count("redelivery started") == 1
        assert received.told.index("redelivery started") < received.told.index("restarted")
        assert received.told[received.told.index("restarted") + 1 :] == positions

    with_cluster(scenario)


# Asking, acknowledging, leaving.


def test_the_last_position_is_that_of_the_last_message_not_of_a_marker(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        channel, _ = await cluster.consumer()
        assert (await channel.last_message()).position == BEFORE_ALL
        positions = await published(cluster, 2)
        await (await cluster.topic()).writing.marker(marker())
        assert (await channel.last_message()).position == positions[-1]

    with_cluster(scenario)


def test_a_refused_acknowledgement_says_which_error(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        positions = await published(cluster, 2)
        channel, received = await cluster.consumer(kind=SubscriptionType.SHARED, permits=2)
        await received.hears(*positions)
        channel.acknowledge(1, [Ack(Position(999, 7)), Ack(positions[0])])
        channel.acknowledge_cumulative(2, positions[1], None)
        channel.acknowledge(3, [Ack(positions[1])])
        await answers_to(received, 1, 2, 3)
        assert {request_id: type(error) for request_id, error in received.refused.items()} == {
            1: InvalidAck,
            2: NotAllowedError,
        }
        assert received.confirmed == [3]

    with_cluster(scenario)


def test_any_number_of_entries_can_be_asked_for_again_at_once(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        (position,) = await published(cluster, 1)
        channel, received = await cluster.consumer(kind=SubscriptionType.SHARED, permits=10)
        await received.hears(position)
        channel.redeliver([*(Position(1, entry) for entry in range(POSITIONS_PER_COMMAND_MAX)), position])
        await received.hears(position, position)
        assert received.deliveries[-1].redelivery_count == 1

    with_cluster(scenario)


def test_unsubscribing_with_force_disconnects_the_other_consumers(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        first, _ = await cluster.consumer(kind=SubscriptionType.SHARED, name="a")
        _, other = await cluster.consumer(kind=SubscriptionType.SHARED, name="b")
        with pytest.raises(NotAllowedError, match="other consumers"):
            await first.unsubscribe()
        assert other.lost == []
        await first.unsubscribe(force=True)
        await eventually(lambda: other.lost, "the other's loss")
        assert type(other.lost[0]) is SubscriptionNotFound
        assert "deleted" in str(other.lost[0])
        assert (await cluster.topic()).subscriptions == {}

    with_cluster(scenario)


def test_a_closed_channel_answers_no_more_and_says_so(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        await published(cluster, 1)
        channel, received = await cluster.consumer(permits=10)
        await channel.close()
        told = list(received.told)
        for call in (channel.seek(BEFORE_ALL), channel.last_message(), channel.unsubscribe()):
            with pytest.raises(AlreadyClosed):
                await call
        await published(cluster, 1)
        assert (received.told, received.lost) == (told, [])

    with_cluster(scenario)


def test_partitions_are_counted_and_other_topics_have_none(with_cluster: WithCluster) -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.engine.partitioned.create("persistent://public/default/parted", 4)
        assert await cluster.connector.partitions("persistent://public/default/parted") == 4
        await cluster.topic()
        assert await cluster.connector.partitions(TOPIC) == 0
        assert await cluster.connector.partitions("persistent://public/default/nowhere") == 0
        with pytest.raises(InvalidTopicName):
            await cluster.connector.partitions("persistent://a/../b")

    with_cluster(scenario)
