"""Producing by a single request, in Pulsar's JSON."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from admin_support import Admin, administered
from asynchronous import asynchronous

from replicator.api import rest_produce
from replicator.client import Client, InitialPosition, Message
from replicator.engine.types import AccessMode, ProducerOptions
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import BEFORE_ALL


class Rest:
    def __init__(self, admin: Admin, client: Client) -> None:
        self.admin = admin
        self.engine = admin.engine
        self.client = client

    async def post(self, topic: str, body: Any) -> tuple[int, Any]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        async with self.admin.session.post(f"{self.admin.url}/topics/{topic}", data=data) as response:
            return response.status, await response.json()

    async def produce(self, topic: str, *messages: Any, **fields: Any) -> list[dict[str, Any]]:
        """The answers to the messages of a request that is taken."""
        status, answer = await self.post(topic, {**fields, "messages": messages})
        assert status == 200, answer
        results: list[dict[str, Any]] = answer["messagePublishResults"]
        return results

    async def messages(self, topic: str, count: int) -> list[Message]:
        consumer = await self.client.subscribe(
            topic.replace("persistent/", "persistent://", 1), "check", initial_position=InitialPosition.Earliest
        )
        async with consumer:
            received = [await consumer.receive(10_000) for _ in range(count)]
            await consumer.unsubscribe()
            return received


@asynccontextmanager
async def served(path: Path) -> AsyncIterator[Rest]:
    async with administered(path / "data") as admin:
        client = Client(engine=admin.engine)
        yield Rest(admin, client)
        await client.close()


TOPIC = "persistent/public/default/rest"


def schema(kind: str, definition: str = "") -> str:
    encoded = base64.b64encode(definition.encode()).decode()
    return json.dumps({"name": "", "type": kind, "schema": encoded, "properties": {}})


@asynchronous
async def test_messages_are_published_with_all_that_they_carry(tmp_path: Path) -> None:
    async with served(tmp_path) as rest:
        answers = await rest.produce(
            TOPIC,
            {"payload": "one", "key": "k", "properties": {"a": "b"}, "eventTime": "1603045262772"},
            {"payload": "two", "eventTime": "2020-01-02T03:04:05Z"},
            {"payload": 3},
        )
        one, two, three = await rest.messages(TOPIC, 3)
        assert [(answer["errorCode"], answer["messageId"]) for answer in answers] == [
            (0, f"{each.message_id().ledger_id()}:{each.message_id().entry_id()}:-1") for each in (one, two, three)
        ]
        assert (one.data(), one.partition_key(), one.properties(), one.event_timestamp()) == (
            b"one",
            "k",
            {"a": "b"},
            1603045262772,
        )
        assert (two.event_timestamp(), three.data()) == (1577934245000, b"3")
        assert [each.sequence_id() for each in (one, two, three)] == [0, 1, 2]


@asynchronous
async def test_a_message_that_cannot_be_is_answered_by_its_own_error(tmp_path: Path) -> None:
    async with served(tmp_path) as rest:
        answers = await rest.produce(
            TOPIC,
            {"payload": "good"},
            {},
            "no object",
            {"payload": []},
            {"payload": "x", "eventTime": "yesterday"},
            {"payload": "x", "eventTime": -1},
            {"payload": "x", "replicationClusters": "eu"},
            {"payload": "x", "key": "\ud800"},
            {"payload": "y" * (5 * 1024 * 1024 + 100_000)},
            {"payload": "also good"},
        )
        assert [answer["errorCode"] for answer in answers] == [0, *[rest_produce.FAILED] * 8, 0]
        assert "no field payload" in answers[1]["errorMsg"]
        assert [each.data() for each in await rest.messages(TOPIC, 2)] == [b"good", b"also good"]


@asynchronous
async def test_messages_for_some_clusters_are_stored_for_those_in_the_order_of_the_request(tmp_path: Path) -> None:
    async with served(tmp_path) as rest:
        answers = await rest.produce(
            TOPIC,
            {"payload": "0"},
            {"payload": "1", "replicationClusters": ["eu", "ap"]},
            {"payload": "2", "replicationClusters": ["ap", "eu"]},
            {"payload": "3", "disableReplication": True},
            {"payload": "4", "disableReplication": False, "replicationClusters": None},
        )
        assert [answer["errorCode"] for answer in answers] == [0] * 5
        assert [each.data() for each in await rest.messages(TOPIC, 5)] == [b"%d" % number for number in range(5)]
        topic = rest.engine.find(TOPIC.replace("persistent/", "persistent://", 1))
        assert topic is not None
        blocks, _ = topic.reading.blocks(BEFORE_ALL, bytes_max=1 << 20)
        stored = [each.header.only for each in blocks for _ in range(each.header.messages)]
        assert stored == [None, frozenset({"eu", "ap"}), frozenset({"eu", "ap"}), frozenset(), None]


@asynchronous
async def test_partitions_are_chosen_by_key_in_turn_or_by_the_path(tmp_path: Path) -> None:
    async with served(tmp_path) as rest:
        await rest.admin.done("PUT", f"{TOPIC}/partitions", 3)

        def partitions(answers: list[dict[str, Any]]) -> list[int]:
            return [int(answer["messageId"].rpartition(":")[2]) for answer in answers]

        assert sorted(partitions(await rest.produce(TOPIC, *({"payload": "x"} for _ in range(3))))) == [0, 1, 2]
        keyed = partitions(await rest.produce(TOPIC, *({"payload": "x", "key": f"k{at % 2}"} for at in range(4))))
        assert keyed == [2, 0, 2, 0]  # as String.hashCode() says, for all clients
        assert partitions(await rest.produce(f"{TOPIC}/partitions/1", {"payload": "x"}, {"payload": "y"})) == [1, 1]
        assert (await rest.post(f"{TOPIC}/partitions/3", {"messages": []}))[0] == 400
        assert (await rest.post(f"{TOPIC}/partitions/x", {"messages": []}))[0] == 400
        assert (await rest.post("persistent/public/default/plain/partitions/0", {"messages": []}))[0] == 406


@pytest.mark.parametrize(
    ("kind", "text", "payload"),
    [
        ("STRING", "é", "é".encode()),
        ("BYTES", "ab", b"ab"),
        ("BOOLEAN", "TRUE", b"\x01"),
        ("INT8", "-1", b"\xff"),
        ("INT16", "258", b"\x01\x02"),
        ("INT32", "12", b"\0\0\0\x0c"),
        ("INT64", "-2", b"\xff" * 7 + b"\xfe"),
        ("FLOAT", "1.5", b"\x3f\xc0\0\0"),
        ("DOUBLE", "1.5", b"\x3f\xf8" + b"\0" * 6),
    ],
)
@asynchronous
async def test_a_schema_says_how_a_text_is_encoded(tmp_path: Path, kind: str, text: str, payload: bytes) -> None:
    async with served(tmp_path) as rest:
        good, bad = await rest.produce(TOPIC, {"payload": text}, {"payload": "\ud800"}, valueSchema=schema(kind))
        assert (good["errorCode"], bad["errorCode"]) == (0, rest_produce.FAILED)
        (message,) = await rest.messages(TOPIC, 1)
        assert message.data() == payload


@asynchronous
async def test_schemas_are_registered_and_named_by_their_versions(tmp_path: Path) -> None:
    record = json.dumps({"type": "record", "name": "R", "fields": [{"name": "i", "type": "int"}]})
    async with served(tmp_path) as rest:
        body = {"valueSchema": schema("JSON", record), "messages": [{"payload": '{"i": 1}'}, {"payload": "{"}]}
        status, answer = await rest.post(TOPIC, body)
        assert (status, [each["errorCode"] for each in answer["messagePublishResults"]]) == (200, [0, 2])
        registered = rest.engine.schemas.find("persistent://public/default/rest")
        assert registered.definition == record.encode()
        assert answer["schemaVersion"] == int.from_bytes(registered.version, "big")
        again = {"schemaVersion": answer["schemaVersion"], "messages": [{"payload": '{"i": 2}'}]}
        assert await rest.post(TOPIC, again) == (200, answer | {"messagePublishResults": [
            {"messageId": _after(answer["messagePublishResults"][0]["messageId"]), "errorCode": 0, "schemaVersion": 0}
        ]})  # fmt: skip
        for wrong, code, why in (
            ({"schemaVersion": 7}, 404, "no schema of version"),
            ({"valueSchema": schema("INT32")}, 409, "INT32"),
            ({"valueSchema": "junk"}, 422, "JSON"),
            ({"valueSchema": schema("NONSENSE")}, 422, "type"),
        ):
            status, refusal = await rest.post(TOPIC, {**wrong, "messages": [{"payload": "1"}]})
            assert (status, why in refusal["reason"]) == (code, True), refusal


def _after(message_id: str) -> str:
    ledger, entry, partition = message_id.split(":")
    return f"{ledger}:{int(entry) + 1}:{partition}"


@asynchronous
async def test_a_typed_key_goes_beside_its_value(tmp_path: Path) -> None:
    async with served(tmp_path) as rest:
        await rest.produce(TOPIC, {"payload": "7", "key": "k"}, keySchema=schema("STRING"), valueSchema=schema("INT32"))
        (message,) = await rest.messages(TOPIC, 1)
        assert (message.data(), base64.b64decode(message.partition_key())) == (b"\0\0\0\x07", b"k")
        registered = rest.engine.schemas.find("persistent://public/default/rest")
        assert registered.properties["kv.encoding.type"] == "SEPARATED"
        (refused,) = await rest.produce(
            f"{TOPIC}2", {"payload": "7"}, valueSchema=schema("AVRO", '{"type": "record", "name": "R", "fields": []}')
        )
        assert "publish it with a Pulsar client" in refused["errorMsg"]


@asynchronous
async def test_a_delayed_message_is_due_when_it_says(tmp_path: Path) -> None:
    async with served(tmp_path) as rest:
        await rest.produce(TOPIC, {"payload": "x", "deliverAt": 5}, {"payload": "y", "deliverAfterMs": 10**7})
        metadata = [message._entry.metadata for message in await rest.messages(TOPIC, 2)]
        assert metadata[0].deliver_at_time == 5
        assert metadata[1].deliver_at_time - metadata[1].publish_time == 10**7
        assert isinstance(metadata[0], MessageMetadata)


@asynchronous
async def test_a_producers_name_and_an_exclusive_producer_count_as_for_all(tmp_path: Path) -> None:
    async with served(tmp_path) as rest:
        await rest.produce(TOPIC, {"payload": "x"}, producerName="shell")
        (message,) = await rest.messages(TOPIC, 1)
        assert message.producer_name() == "shell"
        topic = await rest.engine.topic("persistent://public/default/rest")
        exclusive = await topic.producers.create(ProducerOptions("only", AccessMode.EXCLUSIVE))
        (answer,) = await rest.produce(TOPIC, {"payload": "x"})
        assert answer["errorCode"] == rest_produce.FAILED
        assert re.search("exclusive", answer["errorMsg"], re.IGNORECASE)
        exclusive.close()


@pytest.mark.parametrize(
    ("topic", "body", "status"),
    [
        (TOPIC, b"junk", 400),
        (TOPIC, [1], 422),
        (TOPIC, {"messages": 5}, 422),
        (TOPIC, b"", 422),
        (TOPIC, {"messages": [{}] * (rest_produce.MESSAGES_MAX + 1)}, 422),
        (TOPIC, b" " * (rest_produce.BODY_BYTES_MAX + 1), 413),
        ("non-persistent/public/default/t", {"messages": []}, 412),
        (TOPIC, {"messages": []}, 200),
    ],
)
@asynchronous
async def test_a_request_that_cannot_be_has_a_reason(tmp_path: Path, topic: str, body: Any, status: int) -> None:
    async with served(tmp_path) as rest:
        got, answer = await rest.post(topic, body)
        assert got == status, answer
        assert status == 200 or answer["reason"]


@asynchronous
async def test_too_many_requests_at_once_are_told_to_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with served(tmp_path) as rest:
        monkeypatch.setattr(rest_produce, "REQUESTS_MAX", 0)
        assert (await rest.post(TOPIC, {"messages": []}))[0] == 429
