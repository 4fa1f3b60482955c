"""Null values, by which applications delete keys of compacted topics: our client and the official one, both ways."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
from admin_support import administered
from asynchronous import asynchronous
from gateway_support import ServedEngine, linked_engines
from official_client import official_client

from replicator.client import (
    BatchingType,
    Client,
    CompressionType,
    ConsumerDeadLetterPolicy,
    ConsumerType,
    InitialPosition,
    InvalidMessage,
    JsonSchema,
    MessageId,
    SchemaError,
    StringSchema,
)
from replicator.client.message import OutgoingMessage
from replicator.client.sync_client import SyncClient

WAIT_MS = 10_000
OURS = [
    pytest.param({"batching_enabled": False}, id="single"),
    pytest.param({}, id="batched"),
    pytest.param({"batching_type": BatchingType.KeyBased}, id="batched by key"),
    pytest.param({"compression_type": CompressionType.LZ4}, id="compressed"),
    pytest.param({"batching_enabled": False, "chunking_enabled": True}, id="chunking"),
]
Seen = tuple[str, bytes, bool]


class Place:
    """A record of a compacted topic; no empty payload is one."""

    city: str

    def __init__(self, city: str) -> None:
        self.city = city


@pytest.fixture
def ours(gateway: ServedEngine) -> Iterator[SyncClient]:
    with SyncClient(gateway.url) as client:
        yield client


def send_places(send: Any) -> list[Seen]:
    """Send values and null values; return what readers have to see, key by key."""
    for key, content in (("a", b"1"), ("b", b"2"), ("a", None), ("c", b""), ("d", b"3"), ("", None)):
        send(content, partition_key=key or None)
    return [
        ("a", b"1", False),
        ("b", b"2", False),
        ("a", b"", True),
        ("c", b"", False),
        ("d", b"3", False),
        ("", b"", True),
    ]


def seen(reader: Any) -> list[Seen]:
    found = []
    while reader.has_message_available():
        message = reader.read_next(WAIT_MS)
        found.append((message.partition_key(), message.data(), message.has_null_value()))
    return found


def compact(gateway: ServedEngine, topic: str) -> None:
    async def run() -> None:
        await (await gateway.engine.topic(topic)).compaction.run()

    gateway.run(run())


@pytest.mark.parametrize("settings", OURS)
def test_null_values_of_our_client_are_read_by_both_clients_and_delete_their_keys(
    official: Any, ours: SyncClient, gateway: ServedEngine, topic: str, settings: dict[str, Any]
) -> None:
    with ours.create_producer(topic, **settings) as producer:
        expected = send_places(producer.send)
    assert seen(official.create_reader(topic, pulsar.MessageId.earliest)) == expected
    with ours.create_reader(topic, MessageId.earliest) as reader:
        assert seen(reader) == expected
    compact(gateway, topic)
    left = [("b", b"2", False), ("d", b"3", False)]
    assert seen(official.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)) == left
    with ours.create_reader(topic, MessageId.earliest, is_read_compacted=True) as reader:
        assert seen(reader) == left


@pytest.mark.parametrize("batched", [False, True])
def test_null_values_of_the_official_client_are_read_by_ours(
    official: Any, ours: SyncClient, topic: str, batched: bool
) -> None:
    producer = official.create_producer(topic, batching_enabled=batched, batching_max_publish_delay_ms=1_000)
    expected = send_places(lambda content, **rest: producer.send_async(content, lambda *_: None, **rest))
    producer.flush()
    with ours.create_reader(topic, MessageId.earliest) as reader:
        assert seen(reader) == expected


def test_a_table_of_the_official_client_loses_the_keys_that_our_client_deletes(
    official: Any, ours: SyncClient, topic: str
) -> None:
    with ours.create_producer(topic) as producer:
        for key in ("a", "b"):
            producer.send(b"there", partition_key=key)
        producer.send(None, partition_key="a")
        view = official.create_table_view(topic)
        assert (view.get("a"), view.get("b"), len(view)) == (None, b"there", 1)
        view.close()


def test_a_null_value_goes_to_the_consumer_of_its_key(ours: SyncClient, official: Any, topic: str) -> None:
    consumers = [
        official.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.KeyShared, consumer_name=name)
        for name in ("one", "two")
    ]
    with ours.create_producer(topic, batching_type=BatchingType.KeyBased) as producer:
        for key in map(str, range(20)):
            producer.send(b"x", partition_key=key)
            producer.send(None, partition_key=key)
    owners: dict[str, set[int]] = {}
    left = 40
    while left:
        for number, consumer in enumerate(consumers):
            try:
                message = consumer.receive(50)
            except pulsar.Timeout:
                continue
            owners.setdefault(message.partition_key(), set()).add(number)
            left -= 1
    assert len(owners) == 20
    assert all(len(each) == 1 for each in owners.values())


def test_a_null_value_is_not_given_to_the_schema_of_its_producer(ours: SyncClient, topic: str) -> None:
    with (
        ours.create_producer(topic, schema=JsonSchema(Place)) as places,
        ours.create_producer(topic, schema=StringSchema()) as texts,
    ):
        places.send(Place("Lyon"), partition_key="a")
        places.send(None, partition_key="a")
        texts.send(None, partition_key="a")
    with ours.create_reader(topic, MessageId.earliest, schema=JsonSchema(Place)) as reader:
        assert reader.read_next(WAIT_MS).value().city == "Lyon"
        null = reader.read_next(WAIT_MS)
        assert (null.data(), null.value(), null.has_null_value()) == (b"", None, True)
    with ours.create_reader(topic, MessageId.earliest, schema=StringSchema()) as reader:
        assert [reader.read_next(WAIT_MS).value() for _ in range(3)][1:] == ["", ""]  # as the official client has it
    with ours.create_producer(topic) as producer:
        empty = producer.send(b"")
        with pytest.raises(InvalidMessage, match="bytes, or None"):
            producer.send("text")
    with ours.create_reader(topic, empty, start_message_id_inclusive=True, schema=JsonSchema(Place)) as reader:
        message = reader.read_next(WAIT_MS)
    with pytest.raises(SchemaError):
        message.value()  # empty, and not null


@asynchronous
async def test_lists_futures_letters_and_partitions_carry_null_values(gateway: ServedEngine, topic: str) -> None:
    async with Client(gateway.url) as client:
        producer = await client.create_producer(topic)
        await producer.send_many([b"1", None, OutgoingMessage(None, {"p": "1"}, "k")])
        await producer.enqueue(None)
        policy = ConsumerDeadLetterPolicy(1, dead_letter_topic=f"{topic}-dead", initial_subscription_name="check")
        consumer = await client.subscribe(
            topic,
            "s",
            consumer_type=ConsumerType.Shared,
            initial_position=InitialPosition.Earliest,
            dead_letter_policy=policy,
            negative_ack_redelivery_delay_ms=10,
        )
        received = [await consumer.receive(WAIT_MS) for _ in range(4)]
        assert [message.has_null_value() for message in received] == [False, True, True, True]
        assert received[2].properties() == {"p": "1"}
        for message in received:
            await consumer.negative_acknowledge(message)

        async def reject_all() -> None:
            while True:
                await consumer.negative_acknowledge(await consumer.receive())

        rejecting = asyncio.create_task(reject_all())
        # The subscription that the policy asks for may be there or not yet: this consumer is exclusive in both cases.
        letters = await client.subscribe(f"{topic}-dead", "check", initial_position=InitialPosition.Earliest)
        dead = [(await letters.receive(WAIT_MS)).has_null_value() for _ in range(4)]
        rejecting.cancel()
        assert sorted(dead) == [False, True, True, True]


def test_null_values_stay_null_in_other_clusters_and_delete_keys_there(tmp_path: Path) -> None:
    topic = "persistent://public/default/places"
    with linked_engines(tmp_path, "us-east", "eu-west") as clusters, SyncClient(clusters["us-east"].url) as client:
        for batched in (False, True):
            with client.create_producer(topic, batching_enabled=batched) as producer:
                expected = send_places(producer.send)
        west = clusters["eu-west"]
        west.until(lambda: (there := west.engine.find(topic)) is not None and there.log.messages == 12, "all is copied")
        with official_client(west.url) as official:
            assert seen(official.create_reader(topic, pulsar.MessageId.earliest)) == 2 * expected
            compact(west, topic)
            compacted = official.create_reader(topic, pulsar.MessageId.earliest, is_read_compacted=True)
            assert seen(compacted) == [("b", b"2", False), ("d", b"3", False)]


@asynchronous
async def test_web_sockets_and_rest_produce_carry_null_values(tmp_path: Path) -> None:
    topic = "persistent/public/default/places"
    async with administered(tmp_path / "data") as admin, admin.session as session:
        body: dict[str, Any] = {"messages": [{"nullValue": True, "key": "k"}, {"nullValue": True, "payload": "x"}, {}]}
        async with session.post(f"{admin.url}/topics/{topic}", json=body) as response:
            codes = [each["errorCode"] for each in (await response.json())["messagePublishResults"]]
        assert codes == [0, 2, 2]  # both, or neither, is an error of that message
        sockets = admin.url.replace("http", "ws") + "/ws/v2"
        async with session.ws_connect(f"{sockets}/producer/{topic}") as producer:
            for text in ({"nullValue": True}, {"nullValue": "yes"}, {"payload": base64.b64encode(b"x").decode()}):
                await producer.send_json(text)
            answers = [(await producer.receive_json())["result"] for _ in range(3)]
            assert answers == ["ok", "send-error:3", "ok"]
        async with session.ws_connect(f"{sockets}/reader/{topic}?messageId=earliest") as reader:
            found = [json.loads((await reader.receive(timeout=WAIT_MS / 1000)).data) for _ in range(3)]
        assert [(each["payload"], each.get("nullValue")) for each in found] == [("", True), ("", True), ("eA==", None)]
