"""Our own client beside a broker that nobody here wrote, and beside our gateway: it sees the same."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from channel_support import served
from engine_support import opened

from replicator.client import (
    Client,
    CompressionType,
    Consumer,
    ConsumerBusy,
    ConsumerType,
    InitialPosition,
    Message,
    MessageId,
    ProducerAccessMode,
    ProducerBusy,
    ProducerFenced,
    Timeout,
)
from replicator.drills.peers.pulsar.broker import PulsarBroker

DEADLINE_SECONDS = 60
EARLIEST = InitialPosition.Earliest
Scenario = Callable[[Client, str], Awaitable[None]]


@pytest.fixture(params=["apache pulsar", "ours"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Scenario], None]:
    """Run a scenario with a client of either, and the name of a topic that nobody has."""
    theirs: PulsarBroker | None = request.getfixturevalue("pulsar_broker") if request.param == "apache pulsar" else None

    @asynccontextmanager
    async def url() -> Any:
        if theirs is not None:
            yield theirs.url
            return
        async with opened(tmp_path / "engine") as engine, served(engine) as ours:
            yield ours

    def with_client(scenario: Scenario) -> None:
        async def main() -> None:
            async with asyncio.timeout(DEADLINE_SECONDS), url() as address, Client(address) as client:
                await scenario(client, f"persistent://public/default/t-{uuid.uuid4().hex[:8]}")

        asyncio.run(main())

    return with_client


async def taken(consumer: Consumer, count: int, *, acknowledge: bool = True) -> list[Message]:
    messages = []
    for _ in range(count):
        messages.append(await consumer.receive(timeout_millis=20_000))
        if acknowledge:
            await consumer.acknowledge(messages[-1])
    return messages


def contents(messages: list[Message]) -> list[bytes]:
    return [message.data() for message in messages]


NUMBERS = [b"%d" % number for number in range(20)]


@pytest.mark.parametrize("kind", list(ConsumerType))
@pytest.mark.parametrize("batched", [True, False])
def test_every_type_gets_each_message_and_nothing_again_that_it_acknowledged(
    run: Callable[[Scenario], None], kind: ConsumerType, batched: bool
) -> None:
    async def scenario(client: Client, topic: str) -> None:
        consumer = await client.subscribe(topic, "s", kind, initial_position=EARLIEST)
        producer = await client.create_producer(topic, batching_enabled=batched)
        ids = await producer.send_many(NUMBERS)
        assert ids == sorted(ids)
        messages = await taken(consumer, 20)
        assert contents(messages) == NUMBERS
        assert [message.message_id() for message in messages] == ids
        await consumer.flush_acknowledgements()
        await consumer.close()
        again = await client.subscribe(topic, "s", kind)
        with pytest.raises(Timeout):
            await again.receive(timeout_millis=300)

    run(scenario)


def test_what_a_message_carries_arrives(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client, topic: str) -> None:
        consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
        for codec in CompressionType:
            producer = await client.create_producer(topic, compression_type=codec)
            await producer.send(b"x" * 1000, {"a": "ä"}, partition_key="k", ordering_key="o", event_timestamp=7)
            (message,) = await taken(consumer, 1)
            assert message.data() == b"x" * 1000
            assert (message.properties(), message.partition_key(), message.ordering_key()) == ({"a": "ä"}, "k", "o")
            assert (message.event_timestamp(), message.producer_name()) == (7, producer.producer_name())

    run(scenario)


def test_a_batch_that_is_acknowledged_in_part_comes_again_without_that_part(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client, topic: str) -> None:
        consumer = await client.subscribe(topic, "s", ConsumerType.Shared, initial_position=EARLIEST)
        producer = await client.create_producer(topic, batching_max_publish_delay_ms=60_000)
        await producer.send_many(NUMBERS)
        for message in (await taken(consumer, 20, acknowledge=False))[:7]:
            await consumer.acknowledge(message)
        await consumer.flush_acknowledgements()
        consumer.redeliver_unacknowledged_messages()
        assert contents(await taken(consumer, 13)) == NUMBERS[7:]

    run(scenario)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Failover])
def test_a_cumulative_acknowledgement_covers_all_before_it(run: Callable[[Scenario], None], kind: ConsumerType) -> None:
    async def scenario(client: Client, topic: str) -> None:
        consumer = await client.subscribe(topic, "s", kind, initial_position=EARLIEST)
        producer = await client.create_producer(topic, batching_enabled=False)
        await producer.send_many(NUMBERS)
        messages = await taken(consumer, 20, acknowledge=False)
        await consumer.acknowledge_cumulative(messages[11])
        await consumer.flush_acknowledgements()
        consumer.redeliver_unacknowledged_messages()
        assert contents(await taken(consumer, 8)) == NUMBERS[12:]

    run(scenario)


def test_a_rejected_message_comes_again_and_counts(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client, topic: str) -> None:
        consumer = await client.subscribe(
            topic, "s", ConsumerType.Shared, initial_position=EARLIEST, negative_ack_redelivery_delay_ms=100
        )
        producer = await client.create_producer(topic)
        await producer.send(b"x")
        (message,) = await taken(consumer, 1, acknowledge=False)
        assert message.redelivery_count() == 0
        await consumer.negative_acknowledge(message)
        (again,) = await taken(consumer, 1)
        assert (again.data(), again.redelivery_count()) == (b"x", 1)

    run(scenario)


@pytest.mark.parametrize("kind", [ConsumerType.Exclusive, ConsumerType.Shared])
@pytest.mark.parametrize("batched", [True, False])
def test_a_seek_goes_back_by_id_and_by_time_and_what_was_acknowledged_comes_again(
    run: Callable[[Scenario], None], kind: ConsumerType, batched: bool
) -> None:
    async def scenario(client: Client, topic: str) -> None:
        consumer = await client.subscribe(topic, "s", kind, initial_position=EARLIEST)
        producer = await client.create_producer(topic, batching_enabled=batched)
        ids = await producer.send_many(NUMBERS)
        await taken(consumer, 20)
        await consumer.seek(ids[4])
        assert contents(await taken(consumer, 15)) == NUMBERS[5:]
        await consumer.seek(MessageId.earliest)
        assert contents(await taken(consumer, 20)) == NUMBERS
        await consumer.seek(0)
        assert contents(await taken(consumer, 20)) == NUMBERS
        await consumer.seek(MessageId.latest)
        await producer.send(b"after")
        assert contents(await taken(consumer, 1)) == [b"after"]

    run(scenario)


@pytest.mark.parametrize("batched", [True, False])
def test_a_reader_begins_where_it_is_told_seeks_and_knows_the_end(
    run: Callable[[Scenario], None], batched: bool
) -> None:
    async def scenario(client: Client, topic: str) -> None:
        producer = await client.create_producer(topic, batching_enabled=batched)
        ids = await producer.send_many(NUMBERS)

        async def rest(reader: Any) -> list[bytes]:
            found = []
            while await reader.has_message_available():
                found.append((await reader.read_next(timeout_millis=20_000)).data())
            return found

        reader = await client.create_reader(topic, MessageId.earliest)
        assert await rest(reader) == NUMBERS
        await reader.seek(ids[9])
        assert await rest(reader) == NUMBERS[10:]
        assert await rest(await client.create_reader(topic, ids[14])) == NUMBERS[15:]
        assert await rest(await client.create_reader(topic, ids[14], start_message_id_inclusive=True)) == NUMBERS[14:]
        latest = await client.create_reader(topic, MessageId.latest)
        assert not await latest.has_message_available()
        await producer.send(b"new")
        assert (await latest.read_next(timeout_millis=20_000)).data() == b"new"

    run(scenario)


def test_producers_and_consumers_that_shut_others_out(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client, topic: str) -> None:
        named = await client.create_producer(topic, "p")
        with pytest.raises(ProducerBusy):
            await client.create_producer(topic, "p")
        await client.subscribe(topic, "s")
        with pytest.raises(ConsumerBusy):
            await client.subscribe(topic, "s")
        await client.create_producer(topic, "owner", access_mode=ProducerAccessMode.ExclusiveWithFencing)
        with pytest.raises(ProducerFenced):
            await client.create_producer(topic, "other", access_mode=ProducerAccessMode.Exclusive)
        assert named.producer_name() == "p"

    run(scenario)


def test_a_message_larger_than_an_entry_comes_whole(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client, topic: str) -> None:
        consumer = await client.subscribe(topic, "s", initial_position=EARLIEST)
        producer = await client.create_producer(
            topic, batching_enabled=False, chunking_enabled=True, chunk_max_message_size=100_000
        )
        content = bytes(range(256)) * 1200
        await producer.send(content)
        (message,) = await taken(consumer, 1)
        assert message.data() == content

    run(scenario)


def test_a_list_of_topics_and_an_unsubscribed_subscription(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client, topic: str) -> None:
        topics = [f"{topic}-{number}" for number in range(3)]
        consumer = await client.subscribe(topics, "s", ConsumerType.Shared, initial_position=EARLIEST)
        for each in topics:
            await (await client.create_producer(each)).send(each.encode())
        assert {(await consumer.receive(timeout_millis=20_000)).data().decode() for _ in topics} == set(topics)
        await consumer.unsubscribe()
        again = await client.subscribe(topics, "s", ConsumerType.Shared, initial_position=EARLIEST)
        assert {(await again.receive(timeout_millis=20_000)).data().decode() for _ in topics} == set(topics)

    run(scenario)


def test_a_pattern_finds_what_is_there_and_what_comes(run: Callable[[Scenario], None]) -> None:
    async def scenario(client: Client, topic: str) -> None:
        await (await client.create_producer(f"{topic}-a")).send(b"before")
        consumer = await client.subscribe(
            f"{topic}-.*", "s", ConsumerType.Shared, initial_position=EARLIEST, is_pattern_topic=True
        )
        assert (await consumer.receive(timeout_millis=20_000)).data() == b"before"
        await (await client.create_producer(f"{topic}-b")).send(b"after")
        assert (await consumer.receive(timeout_millis=20_000)).data() == b"after"

    run(scenario)
