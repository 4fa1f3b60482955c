"""The client against a real engine: in process, and through a real gateway on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from channel_support import Received, Sent
from client_support import Worker, running_worker
from engine_support import eventually
from engine_support import message as entry_of

from replicator.client import (
    AlreadyClosed,
    Client,
    ConnectError,
    Consumer,
    ConsumerBusy,
    ConsumerType,
    CumulativeAcknowledgementNotAllowedError,
    InitialPosition,
    InvalidAck,
    InvalidMessage,
    Message,
    MessageId,
    MessageTooBig,
    NotAllowedError,
    OutgoingMessage,
    ProducerQueueIsFull,
    Timeout,
)
from replicator.client.settings import ConsumerSettings, ProducerSettings
from replicator.client.wire import reopening
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.types import SubscriptionType

TOPIC = "persistent://public/default/flights"
DEADLINE_SECONDS = 20


@pytest.fixture(params=["embedded", "broker"])
def with_client(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Callable[[Callable[[Client], Awaitable[None]]], None]:
    """Runs a scenario with a client of either transport."""

    async def run(scenario: Callable[[Client], Awaitable[None]]) -> None:
        async with asyncio.timeout(DEADLINE_SECONDS):
            if request.param == "embedded":
                async with Client(f"embedded:{tmp_path / 'engine'}", cluster="us-east") as client:
                    await scenario(client)
                return
            async with running_worker(tmp_path / "engine") as worker, Client(worker.url) as client:
                await scenario(client)

    return lambda scenario: asyncio.run(run(scenario))


WithClient = Callable[[Callable[[Client], Awaitable[None]]], None]


def run_with_worker(path: Path, scenario: Callable[[Worker], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(DEADLINE_SECONDS), running_worker(path) as worker:
            await scenario(worker)

    asyncio.run(run())


async def receive(consumer: Consumer, count: int) -> list[Message]:
    return [await consumer.receive(timeout_millis=5_000) for _ in range(count)]


def contents(messages: list[Message]) -> list[bytes]:
    return [message.data() for message in messages]


async def nothing_older_comes(client: Client, consumer: Consumer) -> None:
    """Check that a message sent now comes first: older, unacknowledged ones would come before it."""
    producer = await client.create_producer("flights")
    await producer.send(b"newest")
    assert contents(await receive(consumer, 1)) == [b"newest"]


# Produce and consume.


def test_what_is_sent_is_received_with_its_metadata_and_origin(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe("flights", "s")
        producer = await client.create_producer("flights", producer_name="p")
        sent = await producer.send(b"payload", {"a": "1"}, "N102", "order", event_timestamp=123)
        message = await consumer.receive(timeout_millis=5_000)
        assert message.message_id() == sent
        assert message.origin_message_id() == sent
        assert (message.data(), message.properties()) == (b"payload", {"a": "1"})
        assert (message.partition_key(), message.ordering_key()) == ("N102", "order")
        assert (message.event_timestamp(), message.producer_name(), message.sequence_id()) == (123, "p", 0)
        assert (message.topic_name(), message.origin(), message.redelivery_count()) == (TOPIC, "us-east", 0)
        assert message.publish_timestamp() > 1_700_000_000_000
        assert producer.last_sequence_id() == 0

    with_client(scenario)


@pytest.mark.parametrize("batching", [True, False])
def test_thousands_of_messages_arrive_in_order_with_back_pressure(with_client: WithClient, batching: bool) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe("flights", "s", receiver_queue_size=100)
        producer = await client.create_producer(
            "flights", max_pending_messages=50, batching_enabled=batching, batching_max_messages=7
        )
        messages = [b"%d" % index for index in range(3_000)]
        sending = asyncio.create_task(producer.send_many(messages))
        received: list[Message] = []
        while len(received) < len(messages):
            taken = await consumer.receive_many(timeout_millis=5_000)
            consumer.acknowledge_many(taken)
            received += taken
        assert contents(received) == messages
        assert [message.message_id() for message in received] == await sending
        await consumer.flush_acknowledgements()

    with_client(scenario)


def test_concurrent_sends_share_a_batch(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        producer = await client.create_producer("flights")
        ids = await asyncio.gather(*(producer.send(b"%d" % index) for index in range(10)))
        assert len({message_id.position() for message_id in ids}) == 1
        assert [message_id.batch_index() for message_id in ids] == list(range(10))

    with_client(scenario)


def test_flush_returns_when_all_that_was_enqueued_is_durable(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        producer = await client.create_producer("flights", batching_max_publish_delay_ms=60_000)
        confirmations = [producer.enqueue(b"%d" % index) for index in range(5)]
        assert len(producer.pending()) == 5
        await producer.flush()
        assert all(confirmation.done() for confirmation in confirmations)
        assert producer.pending() == []

    with_client(scenario)


def test_a_full_queue_is_refused_or_waited_for(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        producer = await client.create_producer("flights", max_pending_messages=2, batching_max_publish_delay_ms=60_000)
        producer.enqueue(b"1")
        producer.enqueue(b"2")
        with pytest.raises(ProducerQueueIsFull):
            producer.enqueue(b"3")
        with pytest.raises(ProducerQueueIsFull):
            await producer.send(b"3")
        await producer.wait_for_room()
        producer.enqueue(b"3")
        await producer.flush()
        patient = await client.create_producer("flights", max_pending_messages=1, block_if_queue_full=True)
        await asyncio.gather(*(patient.send(b"%d" % index) for index in range(20)))

    with_client(scenario)


def test_a_message_of_the_largest_size_passes_and_one_more_byte_does_not(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe("flights", "s")
        producer = await client.create_producer("flights")
        largest = bytes(5 * 1024 * 1024)
        with pytest.raises(MessageTooBig):
            await producer.send(largest + b"x")
        await producer.send(largest, partition_key="k")
        assert (await consumer.receive(timeout_millis=10_000)).data() == largest

    with_client(scenario)


def test_a_message_says_to_which_clusters_it_is_to_be_copied(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe("flights", "sub")
        producer = await client.create_producer("flights", batching_enabled=True)
        sent = [
            asyncio.ensure_future(producer.send(b"0")),
            asyncio.ensure_future(producer.send(b"1", replication_clusters=["eu-west", "ap"])),
            asyncio.ensure_future(producer.send(b"2", disable_replication=True)),
            asyncio.ensure_future(producer.send(b"3", replication_clusters=[], disable_replication=False)),
        ]
        await asyncio.gather(*sent)
        messages = [await consumer.receive(timeout_millis=10_000) for _ in sent]
        assert [each.data() for each in messages] == [b"0", b"1", b"2", b"3"]
        named = [list(each._entry.metadata.replicate_to) for each in messages]
        assert named == [[], ["eu-west", "ap"], ["__local__"], []]

    with_client(scenario)


def test_what_send_does_not_support_is_refused(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        producer = await client.create_producer("flights")
        with pytest.raises(InvalidMessage, match="replication_clusters"):
            await producer.send(b"x", replication_clusters="eu-west")  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage, match="content is str"):
            await producer.send("text")  # type: ignore[arg-type]
        with pytest.raises(InvalidMessage, match="UTF-8"):
            await producer.send(b"x", partition_key="\ud800")
        await producer.send(b"still works")

    with_client(scenario)


# Acknowledging.


def test_acknowledged_messages_of_a_batch_do_not_come_again(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe("flights", "s", ConsumerType.Shared)
        producer = await client.create_producer("flights")
        await producer.send_many([b"%d" % index for index in range(6)])
        messages = await receive(consumer, 6)
        for index in (0, 2, 5):
            await consumer.acknowledge(messages[index])
        await consumer.close()
        consumer = await client.subscribe("flights", "s", ConsumerType.Shared)
        again = await receive(consumer, 3)
        assert contents(again) == [b"1", b"3", b"4"]
        assert [message.redelivery_count() for message in again] == [0, 0, 0], "a consumer that left is no failed try"
        for message in again:
            await consumer.acknowledge(message.message_id())
        await consumer.close()
        consumer = await client.subscribe("flights", "s", ConsumerType.Shared)
        await nothing_older_comes(client, consumer)

    with_client(scenario)


def test_a_cumulative_acknowledgement_stops_in_the_middle_of_a_batch(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe("flights", "s")
        producer = await client.create_producer("flights")
        await producer.send(b"before")
        await producer.send_many([b"%d" % index for index in range(6)])
        messages = await receive(consumer, 7)
        await consumer.acknowledge_cumulative(messages[3])
        await consumer.close()
        consumer = await client.subscribe("flights", "s")
        assert contents(await receive(consumer, 3)) == [b"3", b"4", b"5"]

    with_client(scenario)


def test_a_cumulative_acknowledgement_on_shared_is_refused_by_name(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe("flights", "s", ConsumerType.Shared)
        producer = await client.create_producer("flights")
        await producer.send(b"x")
        message = await consumer.receive(timeout_millis=5_000)
        with pytest.raises(CumulativeAcknowledgementNotAllowedError):
            await consumer.acknowledge_cumulative(message)
        await consumer.acknowledge(message)

    with_client(scenario)


def test_a_bad_acknowledgement_is_reported_and_the_good_ones_beside_it_count(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe("flights", "s", ConsumerType.Shared, acknowledgement_group_time_ms=60_000)
        producer = await client.create_producer("flights", batching_enabled=False)
        await producer.send_many([b"%d" % index for index in range(5)])
        messages = await receive(consumer, 5)
        consumer.acknowledge_many([*messages[:2], MessageId(-1, 999, 7), *messages[2:]])
        with pytest.raises(InvalidAck, match="999:7"):
            await consumer.flush_acknowledgements()
        await consumer.flush_acknowledgements()
        await consumer.close()
        consumer = await client.subscribe("flights", "s", ConsumerType.Shared)
        await nothing_older_comes(client, consumer)

    with_client(scenario)


def test_with_receipts_an_acknowledgement_returns_when_it_is_durable_or_refused(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe("flights", "s", ConsumerType.Shared, ack_receipt_enabled=True)
        producer = await client.create_producer("flights")
        await producer.send(b"x")
        message = await consumer.receive(timeout_millis=5_000)
        good = asyncio.create_task(consumer.acknowledge(message))
        with pytest.raises(InvalidAck, match="999:7"):
            await consumer.acknowledge(MessageId(-1, 999, 7))
        await good

    with_client(scenario)


def test_a_message_of_another_topic_cannot_be_acknowledged(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe("flights", "s")
        other = await client.subscribe("others", "s")
        producer = await client.create_producer("others")
        await producer.send(b"x")
        message = await other.receive(timeout_millis=5_000)
        with pytest.raises(InvalidAck, match="others"):
            await consumer.acknowledge(message)

    with_client(scenario)


# Redelivery.


def test_a_negative_acknowledgement_brings_the_message_again_after_its_delay(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe("flights", "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=50)
        producer = await client.create_producer("flights", batching_enabled=False)
        await producer.send_many([b"good", b"bad"])
        good, bad = await receive(consumer, 2)
        await consumer.acknowledge(good)
        await consumer.negative_acknowledge(bad)
        (again,) = await receive(consumer, 1)
        assert (again.data(), again.redelivery_count()) == (b"bad", 1)

    with_client(scenario)


def test_a_negative_acknowledgement_in_a_batch_brings_what_is_not_acknowledged_of_it(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe("flights", "s", ConsumerType.Shared, negative_ack_redelivery_delay_ms=0)
        producer = await client.create_producer("flights")
        await producer.send_many([b"0", b"1", b"2"])
        messages = await receive(consumer, 3)
        await consumer.acknowledge(messages[1])
        await consumer.negative_acknowledge(messages[2])
        assert contents(await receive(consumer, 2)) == [b"0", b"2"]

    with_client(scenario)


def test_on_exclusive_everything_unacknowledged_comes_again_in_order(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe("flights", "s", receiver_queue_size=10)
        producer = await client.create_producer("flights", batching_enabled=False)
        everything = [b"%d" % index for index in range(50)]
        await producer.send_many(everything)
        messages = await receive(consumer, 20)
        await consumer.acknowledge_cumulative(messages[4])
        consumer.redeliver_unacknowledged_messages()
        # No message that was prefetched before may come in between.
        assert contents(await receive(consumer, 45)) == everything[5:]

    with_client(scenario)


def test_a_redelivery_overtakes_nothing_that_was_in_flight_of_large_messages(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        producer = await client.create_producer("flights", batching_enabled=False)
        await producer.send_many([bytes([index]) * 1024 * 1024 for index in range(30)])
        consumer = await client.subscribe("flights", "s", initial_position=InitialPosition.Earliest)
        first = await consumer.receive(timeout_millis=5_000)
        consumer.redeliver_unacknowledged_messages()  # megabytes of the first delivery are still on their way
        again = await receive(consumer, 30)
        assert [message.data()[0] for message in again] == list(range(30))
        assert first.data()[0] == 0

    with_client(scenario)


# Subscriptions.


def test_a_second_consumer_of_an_exclusive_subscription_is_busy(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe("flights", "s")
        with pytest.raises(ConsumerBusy):
            await client.subscribe("flights", "s")
        await consumer.close()
        await client.subscribe("flights", "s")

    with_client(scenario)


def test_two_shared_consumers_get_every_message_once(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumers = [
            await client.subscribe("flights", "s", ConsumerType.Shared, receiver_queue_size=20) for _ in range(2)
        ]
        producer = await client.create_producer("flights", batching_max_messages=3)
        sending = asyncio.create_task(producer.send_many([b"%d" % index for index in range(600)]))
        received: list[bytes] = []

        async def consume(consumer: Consumer) -> int:
            count = 0
            while len(received) < 600:
                messages = await consumer.receive_many(timeout_millis=100)
                consumer.acknowledge_many(messages)
                received.extend(contents(messages))
                count += len(messages)
            return count

        counts = await asyncio.gather(*map(consume, consumers))
        await sending
        assert sorted(received) == sorted(b"%d" % index for index in range(600))
        assert min(counts) > 100

    with_client(scenario)


def test_a_new_subscription_starts_where_it_was_asked_to(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        producer = await client.create_producer("flights")
        await producer.send(b"old")
        latest = await client.subscribe("flights", "latest")
        earliest = await client.subscribe("flights", "earliest", initial_position=InitialPosition.Earliest)
        await producer.send(b"new")
        assert contents(await receive(latest, 1)) == [b"new"]
        assert contents(await receive(earliest, 2)) == [b"old", b"new"]

    with_client(scenario)


def test_unsubscribing_deletes_the_subscription(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumers = [await client.subscribe("flights", "s", ConsumerType.Shared) for _ in range(2)]
        with pytest.raises(NotAllowedError, match="other consumers"):
            await consumers[0].unsubscribe()
        await consumers[1].close()
        producer = await client.create_producer("flights")
        await producer.send(b"x")
        await consumers[0].unsubscribe()
        with pytest.raises(AlreadyClosed):
            await consumers[0].receive()
        await nothing_older_comes(client, await client.subscribe("flights", "s"))

    with_client(scenario)


# Waiting and closing.


def test_receive_times_out_and_a_cancelled_receive_loses_nothing(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        consumer = await client.subscribe("flights", "s")
        with pytest.raises(Timeout):
            await consumer.receive(timeout_millis=10)
        assert await consumer.receive_many(timeout_millis=10) == []
        producer = await client.create_producer("flights")
        waiting = [asyncio.create_task(consumer.receive()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        await producer.send_many([b"0", b"1"])
        assert sorted(contents(list(await asyncio.gather(*waiting[1:])))) == [b"0", b"1"]

    with_client(scenario)


def test_closing_ends_iteration_and_refuses_the_rest(with_client: WithClient) -> None:
    async def scenario(client: Client) -> None:
        producer = await client.create_producer("flights")
        received: list[bytes] = []
        async with await client.subscribe("flights", "s") as consumer:
            await producer.send_many([b"0", b"1"])
            async for message in consumer:
                received.append(message.data())
                await consumer.acknowledge(message)
                if len(received) == 2:
                    await consumer.close()
        assert received == [b"0", b"1"]
        with pytest.raises(AlreadyClosed):
            await consumer.acknowledge(MessageId(-1, 1, 0))
        confirmation = producer.enqueue(b"last")
        await client.close()
        assert confirmation.done()
        assert confirmation.exception() is None, "close waits for what was sent"
        with pytest.raises(AlreadyClosed):
            await producer.send(b"x")
        with pytest.raises(AlreadyClosed):
            await client.subscribe("flights", "s")

    with_client(scenario)


def test_an_embedded_engine_keeps_everything_for_the_next_client(tmp_path: Path) -> None:
    async def scenario() -> None:
        url = f"embedded:{tmp_path / 'engine'}"
        async with Client(url) as client:
            await client.subscribe("flights", "s")
            producer = await client.create_producer("flights")
            await producer.send(b"kept")
        async with Client(url) as client:
            consumer = await client.subscribe("flights", "s")
            assert contents(await receive(consumer, 1)) == [b"kept"]

    asyncio.run(scenario())


# Loss of the connection.


def test_a_producer_sends_what_is_unconfirmed_again_in_order_after_a_loss(tmp_path: Path) -> None:
    async def scenario(worker: Worker) -> None:
        async with Client(worker.url) as client:
            producer = await client.create_producer("flights", batching_max_messages=5)
            await producer.send(b"first")
            await worker.cut_off()
            confirmations = [producer.enqueue(b"%d" % index) for index in range(50)]
            await worker.serve()
            await asyncio.gather(*confirmations)
            consumer = await client.subscribe("flights", "s", initial_position=InitialPosition.Earliest)
            assert contents(await receive(consumer, 51)) == [b"first", *(b"%d" % index for index in range(50))]

    run_with_worker(tmp_path / "engine", scenario)


def test_a_consumer_subscribes_again_and_its_unconfirmed_acknowledgements_are_sent_again(tmp_path: Path) -> None:
    async def scenario(worker: Worker) -> None:
        async with Client(worker.url) as client:
            consumer = await client.subscribe("flights", "s", acknowledgement_group_time_ms=60_000)
            producer = await client.create_producer("flights")
            await producer.send_many([b"%d" % index for index in range(10)])
            messages = await receive(consumer, 10)
            for message in messages[:7]:
                await consumer.acknowledge(message)
            await worker.cut_off()
            await worker.serve()
            assert contents(await receive(consumer, 3)) == [b"7", b"8", b"9"]
            await consumer.flush_acknowledgements()
            (subscription,) = worker.engine.topics()[0].subscriptions.values()
            acked = subscription.cursor.acked_indexes(messages[0].message_id().position())
            assert acked is not None
            assert list(acked) == list(range(7))

    run_with_worker(tmp_path / "engine", scenario)


def test_without_reconnecting_the_loss_surfaces_at_once_and_pending_has_the_rest_in_order(tmp_path: Path) -> None:
    async def scenario(worker: Worker) -> None:
        async with Client(worker.url, reconnect=False) as client:
            consumer = await client.subscribe("flights", "s")
            producer = await client.create_producer("flights", batching_max_publish_delay_ms=60_000)
            await producer.send_many([b"confirmed"])
            await receive(consumer, 1)
            waiting = asyncio.create_task(consumer.receive())
            confirmations = [producer.enqueue(b"%d" % index, partition_key="k") for index in range(3)]
            await worker.cut_off()
            with pytest.raises(ConnectError):
                await waiting
            for confirmation in confirmations:
                with pytest.raises(ConnectError):
                    await confirmation
            with pytest.raises(ConnectError):
                producer.enqueue(b"more")
            with pytest.raises(ConnectError):
                await consumer.acknowledge(MessageId(-1, 1, 0))
            assert producer.pending() == [OutgoingMessage(b"%d" % i, partition_key="k") for i in range(3)]
            pending = producer.pending()

        async with Client(f"embedded:{tmp_path / 'other'}", cluster="eu-west") as other:
            takes_over = await other.create_producer("flights")
            consumer = await other.subscribe("flights", "s")
            await takes_over.send_many(pending)
            assert contents(await receive(consumer, 3)) == [b"0", b"1", b"2"]

    run_with_worker(tmp_path / "engine", scenario)


def test_a_message_that_is_not_confirmed_in_time_fails_and_is_not_sent_again(tmp_path: Path) -> None:
    async def scenario(worker: Worker) -> None:
        async with Client(worker.url) as client:
            producer = await client.create_producer("flights", send_timeout_millis=100)
            await worker.cut_off()
            with pytest.raises(Timeout):
                await producer.send(b"too late")
            await worker.serve()
            patient = await client.create_producer("flights")
            await patient.send(b"in time")
            consumer = await client.subscribe("flights", "s", initial_position=InitialPosition.Earliest)
            assert contents(await receive(consumer, 1)) == [b"in time"]

    run_with_worker(tmp_path / "engine", scenario)


def test_a_loss_may_last_longer_than_an_operation(tmp_path: Path) -> None:
    async def scenario(worker: Worker) -> None:
        async with Client(worker.url, operation_timeout_seconds=0.3) as client:
            consumer = await client.subscribe("flights", "s")
            producer = await client.create_producer("flights")
            await worker.cut_off()
            with pytest.raises(ConnectError):
                await client.create_producer("others")  # an operation, which ends by its timeout
            await worker.serve()
            await producer.send(b"x")
            assert (await consumer.receive(timeout_millis=10_000)).data() == b"x"


def test_reopening_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reopening, "REOPEN_SECONDS_MAX", 0.3)

    async def scenario(worker: Worker) -> None:
        async with Client(worker.url) as client:
            consumer = await client.subscribe("flights", "s")
            producer = await client.create_producer("flights")
            await worker.cut_off()
            with pytest.raises(ConnectError):
                await consumer.receive(timeout_millis=10_000)
            with pytest.raises(ConnectError):
                await producer.send(b"x")

    run_with_worker(tmp_path / "engine", scenario)


def test_a_worker_that_is_not_there_is_a_connect_error_that_names_it() -> None:
    async def scenario() -> None:
        async with Client("pulsar://127.0.0.1:9", reconnect=False) as client:
            with pytest.raises(ConnectError, match=r"127\.0\.0\.1:9"):
                await client.create_producer("flights")

    asyncio.run(scenario())


# Others at the same worker.


def test_a_refused_publish_is_named_and_those_around_it_are_stored_in_order(tmp_path: Path) -> None:
    async def scenario(worker: Worker) -> None:
        connector = BrokerConnector(worker.url, connection_timeout_seconds=5, operation_timeout_seconds=5)
        channel = await connector.open_producer(ProducerSettings(TOPIC, "p"))
        channel.start(sent := Sent())
        entries = [entry_of(b"%d" % index, sequence_id=index) for index in range(2)]
        for entry_id, entry in ((1, entries[0]), (2, b"not an entry"), (3, entries[1])):
            channel.publish(entry_id, entry)
        await sent.answered(1, 2, 3)
        assert list(sent.receipts) == [1, 3]
        assert type(sent.refusals[2]) is InvalidMessage
        await connector.close()
        async with Client(worker.url) as client:
            consumer = await client.subscribe("flights", "s", initial_position=InitialPosition.Earliest)
            assert contents(await receive(consumer, 2)) == [b"0", b"1"]

    run_with_worker(tmp_path / "engine", scenario)


def test_a_consumer_that_does_not_read_does_not_fill_the_workers_memory(tmp_path: Path) -> None:
    async def scenario(worker: Worker) -> None:
        connector = BrokerConnector(worker.url, connection_timeout_seconds=5, operation_timeout_seconds=5)
        settings = ConsumerSettings(TOPIC, "s", "c", SubscriptionType.SHARED)
        async with Client(worker.url) as client:
            producer = await client.create_producer("flights", batching_enabled=False)
            channel = await connector.open_consumer(settings)
            channel.start(received := Received())
            channel._connection._transport.pause_reading()
            await producer.send_many([bytes(1024 * 1024)] * 120)
            channel.flow(1000)
            # A round trip on another connection for each entry: time enough for a worker that does not hold back.
            for _ in range(60):
                await producer.send(b"x")
            topic = worker.engine.find(TOPIC)
            assert topic is not None
            (status,) = topic.subscriptions["s"].status()["consumers"]
            assert 0 < status["unacked_entries"] < 120
            channel._connection._transport.resume_reading()
            await eventually(lambda: len(received.deliveries) == 180, "all messages")
        await connector.close()

    run_with_worker(tmp_path / "engine", scenario)


def test_stopping_the_worker_says_goodbye_to_its_clients(tmp_path: Path) -> None:
    async def scenario() -> None:
        worker = Worker(tmp_path / "engine")
        await worker.start()
        async with Client(worker.url, reconnect=False) as client:
            producer = await client.create_producer("flights")
            consumer = await client.subscribe("flights", "s")
            async with asyncio.timeout(DEADLINE_SECONDS):
                await worker.stop()
                with pytest.raises(ConnectError):
                    await consumer.receive()
                with pytest.raises(ConnectError):
                    await producer.send(b"x")

    asyncio.run(scenario())
