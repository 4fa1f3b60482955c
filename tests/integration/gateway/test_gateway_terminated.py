"""Terminated topics with the official Python client, and over the protocol itself."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from engine_support import eventually
from gateway_support import BareClient, ServedEngine

from replicator.client import Client, InitialPosition
from replicator.client.errors import ConnectError
from replicator.protocol.commands_pb2 import BaseCommand, CommandFlow, CommandProducer, CommandSubscribe, ServerError
from replicator.protocol.errors import Refused

pulsar = pytest.importorskip("pulsar")

T = BaseCommand.Type
WAIT_MS = 10_000
EARLIEST = pulsar.InitialPosition.Earliest


def terminate(gateway: ServedEngine, topic: str) -> None:
    async def end() -> None:
        await (await gateway.engine.topic(topic)).terminate()

    gateway.run(end())


def test_producers_hear_of_it_and_what_is_there_is_consumed(official: Any, gateway: ServedEngine, topic: str) -> None:
    producer = official.create_producer(topic)
    for number in range(3):
        producer.send(b"%d" % number)
    terminate(gateway, topic)
    with pytest.raises(pulsar.TopicTerminated):
        producer.send(b"late")
    with pytest.raises(pulsar.TopicTerminated):
        official.create_producer(topic)
    consumer = official.subscribe(topic, "s", initial_position=EARLIEST)
    for number in range(3):
        message = consumer.receive(WAIT_MS)
        assert message.data() == b"%d" % number
        consumer.acknowledge(message)
    gateway.until(lambda: _backlog(gateway, topic) == 0, "all is acknowledged")
    assert consumer.is_connected()  # and stays so
    reader = official.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(3)] == [b"0", b"1", b"2"]
    assert not reader.has_message_available()


def _backlog(gateway: ServedEngine, topic: str) -> int:
    found = gateway.engine.find(topic)
    assert found is not None
    return found.subscriptions["s"].backlog_messages()


def test_a_consumer_is_told_that_it_reached_the_end(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        wanted = CommandSubscribe(
            topic=topic, subscription="s", consumer_id=7, request_id=0, subType=CommandSubscribe.SubType.Shared
        )

        def subscribe(number: int) -> BaseCommand:
            wanted.request_id = number
            return BaseCommand(type=T.SUBSCRIBE, subscribe=wanted)

        client.request(subscribe)
        terminate(gateway, topic)
        assert client.next(T.REACHED_END_OF_TOPIC).command.reachedEndOfTopic.consumer_id == 7
    with BareClient(gateway.port) as client:
        client.request(subscribe)
        client.send(BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=7, messagePermits=1)))
        assert client.next(T.REACHED_END_OF_TOPIC).command.reachedEndOfTopic.consumer_id == 7


def test_a_producer_is_refused_by_the_official_error(gateway: ServedEngine, topic: str) -> None:
    terminate(gateway, topic)
    with BareClient(gateway.port) as client, pytest.raises(Refused) as refused:
        client.request(
            lambda number: BaseCommand(
                type=T.PRODUCER, producer=CommandProducer(topic=topic, producer_id=1, request_id=number)
            )
        )
    assert refused.value.code == ServerError.TopicTerminatedError


def test_our_own_client_knows_that_it_is_at_the_end_until_it_seeks_back(gateway: ServedEngine, topic: str) -> None:
    async def main() -> None:
        async with Client(gateway.url) as client:
            producer = await client.create_producer(topic)
            sent = [await producer.send(b"%d" % number) for number in range(2)]
            consumer = await client.subscribe(
                topic, "s", initial_position=InitialPosition.Earliest, acknowledgement_group_time_ms=0
            )
            await asyncio.to_thread(terminate, gateway, topic)
            assert not consumer.has_reached_end_of_topic()
            for _ in range(2):  # and a second time, after it was put back
                for _ in sent:
                    await consumer.acknowledge(await consumer.receive())
                await eventually(consumer.has_reached_end_of_topic)
                await consumer.seek(0)
                assert not consumer.has_reached_end_of_topic()
            for _ in sent:
                await consumer.acknowledge(await consumer.receive())
            await eventually(consumer.has_reached_end_of_topic)
            consumer._channel._connection.end(ConnectError("cut"))
            assert not consumer.has_reached_end_of_topic(), "nobody knows"
            await eventually(consumer.has_reached_end_of_topic)  # the cluster says so again

    asyncio.run(main())
