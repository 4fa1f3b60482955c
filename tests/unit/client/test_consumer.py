"""The consumer at the moments that a real connection passes through too fast to be caught: a channel driven by hand."""

from __future__ import annotations

import asyncio
import logging
import time

import pytest
from client_support import HandChannel, delivery, run_consumer, until

from replicator.client.consuming.consumer import Consumer
from replicator.client.consuming.consumer_stats import ConsumerStatsRecorder, stats_line
from replicator.client.consuming.receiving import Receiver
from replicator.client.errors import ChunkMissing, ConnectError, InvalidAck, InvalidSeek
from replicator.client.message import Message, MessageId
from replicator.engine.log.entry import encode_entry
from replicator.engine.types import Ack, Delivery, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata
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


def test_a_restart_drops_what_was_delivered_voids_its_acknowledgements_and_pays_for_it() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channel = channels[0]
        channel.events.on_deliveries([delivery(0, b"a"), delivery(1, b"b"), delivery(2, b"c")])
        first = await consumer.receive()
        await consumer.acknowledge(first)
        await consumer.negative_acknowledge(await consumer.receive())
        channel.events.on_restarted()
        await consumer.flush_acknowledgements()
        channel.events.on_deliveries([delivery(0, b"a")])
        assert (await consumer.receive()).data() == b"a"
        assert channel.asked_for("acknowledge") == []
        assert channel.permits == 4 + 4, "three that were dropped or taken, and the one after them"
        await asyncio.sleep(0.03)  # the rejected one would have been due
        assert channel.asked_for("redeliver") == []

    run_consumer(
        scenario,
        receiver_queue_size=4,
        negative_ack_redelivery_delay_ms=10,
        acknowledgement_group_time_ms=60_000,
        consumer_type=SubscriptionType.SHARED,
    )


def test_a_receipt_that_a_restart_makes_void_is_an_error_for_who_waits_for_it() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channels[0].events.on_deliveries([delivery(0, b"a")])
        waiting = asyncio.create_task(consumer.acknowledge(await consumer.receive()))
        await asyncio.sleep(0)
        channels[0].events.on_restarted()
        with pytest.raises(InvalidAck, match="put elsewhere"):
            await waiting

    run_consumer(scenario, ack_receipt_enabled=True)


def test_of_the_first_entry_after_a_seek_into_a_batch_the_unwanted_part_is_acknowledged_unseen() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channel = channels[0]
        await consumer.seek(MessageId(-1, 1, 7, 1, 4))
        assert channel.asked_for("seek") == [(Position(1, 7),)]
        channel.events.on_deliveries([delivery(7, b"a", b"b", b"c", b"d"), delivery(8, b"e")])
        assert [message.data() for message in await consumer.receive_many()] == [b"c", b"d", b"e"]
        consumer.redeliver_unacknowledged_messages()
        assert channel.asked_for("acknowledge") == [(1, (Ack(Position(1, 7), (0, 1)),))]

    run_consumer(scenario)


def test_a_seek_that_fails_leaves_what_was_delivered_as_it_is() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        async def refuse(_: Position | int) -> None:
            raise InvalidSeek("beyond the end")

        channel = channels[0]
        channel.seek = refuse  # type: ignore[method-assign]
        with pytest.raises(InvalidSeek):
            await consumer.seek(MessageId(-1, 1, 7, 1, 4))
        channel.events.on_deliveries([delivery(7, b"a", b"b", b"c", b"d")])
        assert len(await consumer.receive_many()) == 4
        channel.events.on_restarted()  # somebody else's seek
        channel.events.on_deliveries([delivery(7, b"a", b"b", b"c", b"d")])
        assert len(await consumer.receive_many()) == 4

    run_consumer(scenario)


def test_what_is_here_of_a_redelivered_entry_is_not_shown_twice() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channel = channels[0]
        channel.events.on_deliveries([delivery(0, b"a", b"b", b"c"), delivery(1, b"d")])
        await consumer.negative_acknowledge(await consumer.receive())
        await until(lambda: channel.asked_for("redeliver"))
        channel.events.on_deliveries([delivery(0, b"a", b"b", b"c", count=1)])
        assert [message.data() for message in await consumer.receive_many()] == [b"d", b"a", b"b", b"c"]

    run_consumer(scenario, consumer_type=SubscriptionType.SHARED, negative_ack_redelivery_delay_ms=1)


def test_on_failover_a_timeout_asks_for_everything_again() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channel = channels[0]
        channel.events.on_deliveries([delivery(0, b"a"), delivery(1, b"b")])
        await consumer.receive()
        await until(lambda: channel.asked_for("redeliver"))
        assert channel.asked_for("redeliver") == [(None,)]
        assert len(await consumer.receive_many(timeout_millis=0)) == 0

    run_consumer(scenario, consumer_type=SubscriptionType.FAILOVER, unacked_messages_timeout_ms=5)


def test_after_a_loss_nothing_of_before_times_out() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channels[0].events.on_deliveries([delivery(0, b"a")])
        await consumer.receive()
        channels[0].events.on_lost(ConnectError("cut"))
        await until(lambda: len(channels) == 2 and consumer.is_connected())
        await asyncio.sleep(0.03)  # three timeouts
        assert channels[1].asked_for("redeliver") == []

    run_consumer(scenario, consumer_type=SubscriptionType.SHARED, unacked_messages_timeout_ms=10)


def test_stats_count_what_was_done_and_rates_count_from_the_last_interval() -> None:
    recorder = ConsumerStatsRecorder(100.0)
    recorder.messages_received, recorder.bytes_received, recorder.acks_sent = 50, 5_000, 20
    assert recorder.stats(110.0).receive_rate == 5.0
    recorder.next_interval(110.0)
    recorder.messages_received = 60
    stats = recorder.stats(112.0, prefetched=7)
    assert (stats.messages_received, stats.receive_rate, stats.ack_rate) == (60, 5.0, 0.0)
    assert stats.prefetched_messages == 7
    assert (stats + stats).messages_received == 120
    assert "7 in the receiver queue" in stats_line(stats)


def test_the_stats_are_logged_at_their_interval(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channels[0].events.on_deliveries([delivery(0, b"a")])
        await consumer.receive()
        await until(lambda: len(caplog.records) >= 2)
        await consumer.close()

    with caplog.at_level(logging.INFO, logger="replicator.client.consuming.consumer"):
        run_consumer(scenario, made_with={"stats_interval_seconds": 0.01})
    assert "1 received" in caplog.records[0].getMessage()


def test_a_chunk_without_those_before_it_is_reported_by_name_and_asked_for_again() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channel = channels[0]
        channel.events.on_deliveries([chunk(1, 2), delivery(6, b"whole")])
        with pytest.raises(ChunkMissing, match="chunk 1 of 3"):
            await consumer.receive()
        assert (await consumer.receive()).data() == b"whole"
        await until(lambda: channel.asked_for("redeliver"))
        assert channel.asked_for("redeliver") == [([Position(1, 2)],)]
        assert channel.asked_for("acknowledge") == []

    run_consumer(scenario, consumer_type=SubscriptionType.SHARED, negative_ack_redelivery_delay_ms=5)


def test_a_chunk_that_comes_again_without_those_before_it_is_acknowledged_after_the_expiry() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channel = channels[0]
        channel.events.on_deliveries([chunk(1, 2)])
        with pytest.raises(ChunkMissing):
            await consumer.receive()
        await until(lambda: channel.asked_for("redeliver"))
        assert not channel.asked_for("acknowledge")
        await asyncio.sleep(0.02)
        channel.events.on_deliveries([chunk(1, 2)])
        assert await consumer.receive_many(timeout_millis=0) == []
        assert channel.asked_for("acknowledge") == [(1, (Ack(Position(1, 2)),))]

    run_consumer(
        scenario,
        consumer_type=SubscriptionType.SHARED,
        negative_ack_redelivery_delay_ms=5,
        expire_time_of_incomplete_chunked_message_ms=10,
        acknowledgement_group_time_ms=0,
    )


def test_chunks_between_other_messages_come_together_and_their_permits_are_returned() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channel = channels[0]
        waiting = asyncio.create_task(consumer.receive())
        for delivered in (chunk(0, 0), chunk(1, 1), chunk(2, 3)):
            await asyncio.sleep(0)
            channel.events.on_deliveries([delivered])
        message = await waiting
        assert message.data() == b"chunk0chunk1chunk2"
        assert channel.permits == 2 + 3
        await consumer.acknowledge(message)
        consumer.redeliver_unacknowledged_messages()
        assert [ack.position for ack in channel.asked_for("acknowledge")[0][1]] == [
            Position(1, 0),
            Position(1, 1),
            Position(1, 3),
        ]

    run_consumer(scenario, receiver_queue_size=2)


def test_all_chunks_of_a_message_are_acknowledged_in_one_request_without_a_group_time_too() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channel = channels[0]
        channel.events.on_deliveries([chunk(0, 0), chunk(1, 1), chunk(2, 2)])
        await consumer.acknowledge(await consumer.receive())
        assert channel.asked_for("acknowledge") == [(1, tuple(Ack(Position(1, entry)) for entry in range(3)))]

    run_consumer(scenario, acknowledgement_group_time_ms=0)


def test_of_too_many_incomplete_messages_the_oldest_is_acknowledged_if_that_was_asked_for() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channel = channels[0]
        channel.events.on_deliveries([chunk(0, 0, uuid="old"), chunk(0, 1, uuid="new")])
        assert await consumer.receive_many(timeout_millis=0) == []
        assert channel.asked_for("acknowledge") == [(1, (Ack(Position(1, 0)),))]

    run_consumer(
        scenario,
        max_pending_chunked_message=1,
        auto_ack_oldest_chunked_message_on_queue_full=True,
        acknowledgement_group_time_ms=0,
    )


def test_chunks_that_stay_incomplete_expire_and_are_acknowledged() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channel = channels[0]
        channel.events.on_deliveries([chunk(0, 0)])
        assert await consumer.receive_many(timeout_millis=0) == []
        await until(lambda: channel.asked_for("acknowledge"))

    run_consumer(scenario, expire_time_of_incomplete_chunked_message_ms=10, acknowledgement_group_time_ms=0)


def test_a_listener_that_closes_its_consumer_ends() -> None:
    heard: list[bytes] = []

    async def listener(consumer: Consumer, message: Message) -> None:
        heard.append(message.data())
        await consumer.close()

    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channels[0].events.on_deliveries([delivery(0, b"a"), delivery(1, b"b")])
        await until(lambda: ("close",) in channels[0].asked)
        assert heard == [b"a"]

    run_consumer(scenario, made_with={"message_listener": listener})


def test_an_event_listener_that_fails_does_not_end_the_consumer() -> None:
    class Fails:
        def became_active(self, consumer: Receiver, partition: int) -> None:
            raise ValueError("listener")

        def became_inactive(self, consumer: Receiver, partition: int) -> None: ...

    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channels[0].events.on_active_change(True)
        channels[0].events.on_deliveries([delivery(0, b"a")])
        assert (await consumer.receive()).data() == b"a"

    run_consumer(scenario, made_with={"event_listener": Fails()}, consumer_type=SubscriptionType.FAILOVER)


def test_a_short_delay_does_not_wait_behind_a_long_one() -> None:
    async def scenario(consumer: Consumer, channels: list[HandChannel]) -> None:
        channel = channels[0]
        channel.events.on_deliveries([delivery(0, b"a"), delivery(1, b"b")])
        first, _ = await consumer.receive_many()  # the other one times out in a minute
        begun = time.monotonic()
        await consumer.negative_acknowledge(first)
        await until(lambda: channel.asked_for("redeliver"))
        assert channel.asked_for("redeliver") == [([Position(1, 0)],)]
        assert time.monotonic() - begun < 4

    run_consumer(
        scenario,
        consumer_type=SubscriptionType.SHARED,
        unacked_messages_timeout_ms=60_000,
        negative_ack_redelivery_delay_ms=10,
    )


def chunk(chunk_id: int, entry: int, *, uuid: str = "m", chunks: int = 3) -> Delivery:
    """Return a chunk of a message that was published now."""
    metadata = MessageMetadata(
        producer_name="p",
        sequence_id=0,
        publish_time=time.time_ns() // 1_000_000,
        uuid=uuid,
        chunk_id=chunk_id,
        num_chunks_from_msg=chunks,
        total_chunk_msg_size=6 * chunks,
    )
    position = Position(1, entry)
    return Delivery(position, 0, 1, None, encode_entry(metadata, b"chunk%d" % chunk_id), "us-east", position)
