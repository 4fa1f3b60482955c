"""The asyncio API of the official Python client, and many things at once."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from asynchronous import asynchronous
from gateway_support import ServedEngine

pulsar = pytest.importorskip("pulsar")
pulsar_asyncio = pytest.importorskip("pulsar.asyncio")

EARLIEST = pulsar.InitialPosition.Earliest


def client(gateway: ServedEngine) -> Any:
    return pulsar_asyncio.Client(gateway.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))


@asynchronous
async def produced_and_consumed(gateway: ServedEngine, topic: str) -> None:
    official = client(gateway)
    producer = await official.create_producer(topic)
    sent = await asyncio.gather(*(producer.send(b"m%d" % number) for number in range(20)))
    assert sent == sorted(sent)
    consumer = await official.subscribe(topic, "s", initial_position=EARLIEST)
    messages = [await consumer.receive() for _ in range(20)]
    assert [message.data() for message in messages] == [b"m%d" % number for number in range(20)]
    await asyncio.gather(*(consumer.acknowledge(message) for message in messages[:10]))
    await consumer.acknowledge_cumulative(messages[14])
    assert str(await consumer.get_last_message_id()) == str(messages[-1].message_id())
    await consumer.seek(pulsar.MessageId.wrap(pulsar.MessageId.earliest))
    assert (await consumer.receive()).data() == b"m0"
    await consumer.unsubscribe()
    reader = await official.create_reader(topic, pulsar.MessageId.earliest)
    assert await reader.has_message_available()
    assert (await reader.read_next()).data() == b"m0"
    assert await official.get_topic_partitions(topic) == [topic]
    await official.close()


def test_the_asyncio_api_does_all_of_it(gateway: ServedEngine, topic: str) -> None:
    produced_and_consumed(gateway, topic)


@asynchronous
async def refused(gateway: ServedEngine, topic: str) -> None:
    official = client(gateway)
    first = await official.subscribe(topic, "s")
    with pytest.raises(pulsar_asyncio.PulsarException) as error:
        await official.subscribe(topic, "s")
    assert error.value.error() == pulsar.Result.ConsumerBusy
    await first.close()
    await official.close()


def test_the_asyncio_api_hears_the_official_errors(gateway: ServedEngine, topic: str) -> None:
    refused(gateway, topic)


@asynchronous
async def hundred(gateway: ServedEngine, topic: str) -> None:
    official = client(gateway)
    names = [f"{topic}-{number}" for number in range(100)]
    consumers = await asyncio.gather(*(official.subscribe(name, "s") for name in names))
    producers = await asyncio.gather(*(official.create_producer(name) for name in names))
    await asyncio.gather(*(producer.send(name.encode()) for producer, name in zip(producers, names, strict=True)))
    got = await asyncio.gather(*(consumer.receive() for consumer in consumers))
    assert [message.data().decode() for message in got] == names
    await official.close()


def test_a_hundred_producers_and_consumers_share_one_connection(gateway: ServedEngine, topic: str) -> None:
    hundred(gateway, topic)
