"""The index of an entry and the time when it was stored, told to clients that can take them where it is set so."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from asynchronous import asynchronous
from engine_support import message, opened
from gateway_support import BareClient, ServedEngine, serving_clients

from replicator.engine.engine import Engine
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    BrokerEntryMetadata,
    CommandFlow,
    CommandSubscribe,
    FeatureFlags,
)
from replicator.protocol.frames import split_broker_metadata

pulsar = pytest.importorskip("pulsar")

NAME = "persistent://public/default/t"
ASKING = FeatureFlags(supports_broker_entry_metadata=True)
WAIT_MS = 10_000


def batch(count: int) -> bytes:
    payload = bytearray()
    for number in range(count):
        append_to_batch(payload, SingleMessageMetadata(), b"%d" % number)
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, num_messages_in_batch=count)
    return encode_entry(metadata, bytes(payload))


def told(served: ServedEngine, count: int, *, features: FeatureFlags, name: str) -> list[BrokerEntryMetadata | None]:
    """Return the broker metadata that a client gets with the first entries, which are read again from the beginning."""
    with BareClient(served.port, features=features) as client:

        def subscribing(request_id: int) -> BaseCommand:
            wanted = CommandSubscribe(
                topic=NAME,
                subscription=name,
                subType=CommandSubscribe.Shared,
                consumer_id=1,
                request_id=request_id,
                initialPosition=CommandSubscribe.Earliest,
            )
            return BaseCommand(type=BaseCommand.SUBSCRIBE, subscribe=wanted)

        client.request(subscribing)
        client.send(BaseCommand(type=BaseCommand.FLOW, flow=CommandFlow(consumer_id=1, messagePermits=1_000)))
        found = []
        for _ in range(count):
            metadata, entry = split_broker_metadata(client.next(BaseCommand.MESSAGE).rest)
            assert bytes(entry[:2]) == b"\x0e\x01"
            found.append(metadata)
        return found


async def filled(engine: Engine) -> None:
    """Single messages, batches, and a marker between them: of indexes 0, 3, 4, 14, 15."""
    topic = await engine.topic(NAME)
    await topic.publish([message(b"a"), batch(3)])
    await topic.writing.marker(message(b"marker"))
    await topic.publish([message(b"b")])
    await topic.publish([batch(10), message(b"c")])


@asynchronous
async def test_indexes_count_the_messages_of_the_topic_and_times_are_those_of_storing(tmp_path: Path) -> None:
    """A batch has the index of its last message, as upstream. Markers leave no gap, and later readers get the same."""
    before_ms = time.time_ns() // 1_000_000
    async with opened(tmp_path) as engine, serving_clients(engine, broker_metadata=True) as served:
        await filled(engine)
        for name in ("first", "second"):
            found = await asyncio.to_thread(told, served, 5, features=ASKING, name=name)
            assert [each and each.index for each in found] == [0, 3, 4, 14, 15]
            for each in found:
                assert each is not None
                assert before_ms <= each.broker_timestamp <= time.time_ns() // 1_000_000
        topic = await engine.topic(NAME)
        await topic.subscriptions["first"].moves.skip(4)
        found = await asyncio.to_thread(told, served, 3, features=ASKING, name="first")
        assert [each and each.index for each in found] == [4, 14, 15]


@pytest.mark.parametrize(("is_set", "features"), [(False, ASKING), (True, FeatureFlags())])
@asynchronous
async def test_nothing_is_told_where_it_is_not_set_and_to_who_does_not_ask(
    tmp_path: Path, is_set: bool, features: FeatureFlags
) -> None:
    async with opened(tmp_path) as engine, serving_clients(engine, broker_metadata=is_set) as served:
        await filled(engine)
        assert await asyncio.to_thread(told, served, 5, features=features, name="s") == [None] * 5


@asynchronous
async def test_official_clients_read_on_whether_they_show_it_or_not(tmp_path: Path) -> None:
    """The Python client asks for it, and passes over it."""

    def read(url: str) -> list[bytes]:
        client: Any = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
        try:
            producer = client.create_producer(NAME, batching_enabled=True, batching_max_publish_delay_ms=5_000)
            for number in range(5):
                producer.send_async(b"m%d" % number, None)
            producer.flush()
            client.create_producer(NAME).send(b"alone")
            reader = client.create_reader(NAME, pulsar.MessageId.earliest)
            return [reader.read_next(WAIT_MS).data() for _ in range(6)]
        finally:
            client.close()

    async with opened(tmp_path) as engine, serving_clients(engine, broker_metadata=True) as served:
        expected = [b"m%d" % number for number in range(5)] + [b"alone"]
        assert await asyncio.to_thread(read, served.url) == expected
