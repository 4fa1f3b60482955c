"""The consumer at the moments that a real connection passes through too fast to be caught: a channel driven by hand."""

from __future__ import annotations

import asyncio

import pytest
from client_support import HandChannel, delivery, run_consumer, until

from replicator.client.consumer import Consumer
from replicator.client.errors import ConnectError
from replicator.engine.types import Ack, Delivery, SubscriptionType
from snapshots.position import Position


def test_requests_that_are_not_confirmed_are_sent_again_before_the_first_permits() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channels[0].events.on_deliveries([delivery(0, b"a"), delivery(1, b"b", b"c")])
        messages = await consumer.receive_many()
        await consumer.acknowledge(messages[0])
        await consumer.acknowledge(messages[1])
        sent = [asked for asked in channels[0].asked if asked[0] == "acknowledge"]
        assert len(sent) == 2
        channels[0].events.on_ack_confirmed(sent[0][1])
        channels[0].events.on_lost(ConnectError("cut"))
        await until(lambda: len(channels) == 2 and len(channels[1].asked) == 2)
        assert channels[1].asked == [sent[1], ("flow", 1000)]

    run_consumer(scenario, acknowledgement_group_time_ms=0)


def test_acknowledgements_made_while_disconnected_are_sent_when_it_is_back() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channels[0].events.on_deliveries([delivery(0, b"a")])
        message = await consumer.receive()
        channels[0].events.on_lost(ConnectError("cut"))
        await consumer.acknowledge(message)
        await until(lambda: len(channels) == 2 and len(channels[1].asked) == 2)
        assert channels[1].asked == [("acknowledge", 1, (Ack(Position(1, 0)),)), ("flow", 1000)]

    run_consumer(scenario)


def test_what_was_prefetched_is_dropped_with_its_connection() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channels[0].events.on_deliveries([delivery(0, b"a"), delivery(1, b"b")])
        assert (await consumer.receive()).data() == b"a"
        channels[0].events.on_lost(ConnectError("cut"))
        assert await consumer.receive_many(timeout_millis=0) == []
        await until(lambda: len(channels) == 2 and len(channels[1].asked) == 1)
        channels[1].events.on_deliveries([delivery(0, b"a"), delivery(1, b"b")])
        assert [message.data() for message in await consumer.receive_many()] == [b"a", b"b"]

    run_consumer(scenario)


def test_what_is_acknowledged_but_not_confirmed_is_not_shown_again() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channels[0].events.on_deliveries([delivery(0, b"a"), delivery(1, b"b", b"c", b"d")])
        first, second, *_ = await consumer.receive_many()
        await consumer.acknowledge(first)
        await consumer.acknowledge(second)
        channels[0].events.on_deliveries([delivery(0, b"a"), delivery(1, b"b", b"c", b"d")])
        assert [message.data() for message in await consumer.receive_many()] == [b"c", b"d"]

    run_consumer(scenario)


def test_deliveries_that_were_on_their_way_when_redelivery_was_asked_for_are_dropped_and_paid_for() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channel = channels[0]
        channel.events.on_deliveries([delivery(0, b"a"), delivery(1, b"b")])
        assert (await consumer.receive()).data() == b"a"
        consumer.redeliver_unacknowledged_messages()
        channel.events.on_deliveries([delivery(2, b"c")])
        channel.events.on_redelivery_started()
        channel.events.on_deliveries([delivery(0, b"a"), delivery(1, b"b"), delivery(2, b"c")])
        assert [message.data() for message in await consumer.receive_many()] == [b"a", b"b", b"c"]
        granted = sum(asked[1] for asked in channel.asked if asked[0] == "flow")
        assert granted == 4 + 6, "four at the start, and one for each entry that was taken or dropped"

    run_consumer(scenario, receiver_queue_size=4)


def test_acknowledgements_go_out_before_the_redelivery_that_could_bring_them_to_another_consumer() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channel = channels[0]
        channel.events.on_deliveries([delivery(0, b"a", b"b")])
        first, second = await consumer.receive_many()
        await consumer.acknowledge(first)
        await consumer.negative_acknowledge(second)
        await until(lambda: ("redeliver", [Position(1, 0)]) in channel.asked)
        assert [asked[0] for asked in channel.asked] == ["flow", "acknowledge", "redeliver"]

    run_consumer(scenario, consumer_type=SubscriptionType.SHARED, negative_ack_redelivery_delay_ms=0)


def test_a_wake_up_that_meets_a_cancelled_receive_is_handed_to_the_next() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        cancelled, patient = (asyncio.create_task(consumer.receive()) for _ in range(2))
        await asyncio.sleep(0)
        channels[0].events.on_deliveries([delivery(0, b"a")])
        cancelled.cancel()  # in the same turn of the event loop as its wake-up
        async with asyncio.timeout(5):
            assert (await patient).data() == b"a"
        assert cancelled.cancelled()

    run_consumer(scenario)


def test_an_entry_that_cannot_be_read_is_reported_once_and_the_others_come() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        good = delivery(0, b"a")
        bad = Delivery(Position(1, 1), 0, 1, None, b"garbage", "us-east", Position(1, 1))
        channels[0].events.on_deliveries([good, bad, delivery(2, b"c")])
        assert (await consumer.receive()).data() == b"a"
        with pytest.raises(Exception, match="1:1"):
            await consumer.receive()
        assert (await consumer.receive()).data() == b"c"

    run_consumer(scenario)
