"""Schemas in another cluster: there before the messages of them, in the same order everywhere, from whichever side."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from engine_support import TOPIC, entries_of, eventually, message
from gateway_support import BareClient, ServedEngine, linked_engines
from link_support import ENGINES, web

from replicator.engine.engine import Engine
from replicator.engine.log.entry import decode_entry
from replicator.engine.schemas.schema import SchemaType, TopicSchema
from replicator.protocol.commands_pb2 import BaseCommand, CommandFlow, CommandGetSchema, CommandSubscribe, Schema
from replicator.topology import Link as LinkSpec

T = BaseCommand.Type
WAIT_MS = 10_000
BOTH_WAYS = [LinkSpec("us-east", "eu-west"), LinkSpec("eu-west", "us-east")]


def text(note: str) -> TopicSchema:
    return TopicSchema(SchemaType.STRING, b"", {"note": note})


def versions(engine: Engine, topic: str = TOPIC) -> list[bytes]:
    return [each.schema.version for each in engine.schemas.schemas(topic)]


@pytest.mark.parametrize("engine", ENGINES)
def test_a_schema_is_there_before_the_messages_of_it(tmp_path: Path, engine: str) -> None:
    """Each message at the destination finds the schemas there that were registered before it."""

    async def main() -> None:
        async with web(tmp_path, [LinkSpec("us-east", "eu-west")], engine=engine) as made:
            east, west = made.engines["us-east"], made.engines["eu-west"]
            topic = await east.topic(TOPIC)
            for number in range(20):
                version = await east.schemas.add(TOPIC, text(str(number)))
                await topic.publish([message(version)])
                if number % 5 == 4:
                    await eventually(lambda count=number + 1: len(_arrived(west)) == count)
                for seen in _arrived(west):
                    assert seen in versions(west)
            assert versions(west) == versions(east)

    asyncio.run(main())


def _arrived(engine: Engine) -> list[bytes]:
    found = engine.find(TOPIC)
    return [] if found is None else [bytes(decode_entry(entry)[1]) for entry in entries_of(found, "us-east")]


def test_what_both_sides_register_at_once_is_in_both_lists_in_one_order(tmp_path: Path) -> None:
    """Also what does not go with each other: messages of both exist."""

    async def main() -> None:
        async with web(tmp_path, BOTH_WAYS, started=False) as made:
            east, west = made.engines["us-east"], made.engines["eu-west"]
            for engine in (east, west):
                await engine.topic(TOPIC)
                await engine.schemas.add(TOPIC, text("the same"))
            one = await east.schemas.add(TOPIC, text("of us-east"))
            other = await west.schemas.add(TOPIC, TopicSchema(SchemaType.STRING, b"", {"note": "of eu-west"}))
            await east.schemas.add(f"{TOPIC}-2", text("before the first message"))
            for link in made.links.values():
                link.start()
            await eventually(lambda: len(versions(east)) == len(versions(west)) == 3)
            assert versions(east) == versions(west)
            assert {one, other} < set(versions(east))
            await eventually(lambda: len(versions(west, f"{TOPIC}-2")) == 1)
            later = await west.schemas.add(TOPIC, text("later"))
            await eventually(lambda: versions(east)[-1] == later)
            assert versions(east) == versions(west)

    asyncio.run(main())


def test_schemas_go_on_along_forwarding_links_and_come_back_after_a_cut(tmp_path: Path) -> None:
    async def main() -> None:
        specs = [LinkSpec("us-east", "eu-west"), LinkSpec("eu-west", "ap-south", forward=("us-east",))]
        async with web(tmp_path, specs) as made:
            await made.engines["us-east"].topic(TOPIC)
            await made.engines["us-east"].schemas.add(TOPIC, text("1"))
            await eventually(lambda: len(versions(made.engines["ap-south"])) == 1)
            await made.servers["eu-west"].stop()
            await made.engines["us-east"].schemas.add(TOPIC, text("2"))
            await made.servers["eu-west"].start()
            await eventually(lambda: len(versions(made.engines["ap-south"])) == 2)

    asyncio.run(main())


def test_refused_schemas_are_in_the_links_status_and_hold_up_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with web(tmp_path, [LinkSpec("us-east", "eu-west")], started=False) as made:
            east = made.engines["us-east"]
            await east.schemas.add(TOPIC, text("1"))
            await east.schemas.add(TOPIC, text("2"))
            monkeypatch.setattr("replicator.engine.schemas.registry.ANNOUNCED_MAX", 1)
            (link,) = made.links.values()
            link.start()
            await made.publish("us-east", 0, 3)
            await eventually(lambda: len(made.entries("eu-west", "us-east")) == 3)
            assert "IncompatibleSchema" in link.status()["halted"][TOPIC]

    asyncio.run(main())


# With official clients.


def test_a_consumer_elsewhere_reads_a_schema_that_evolved_twice(tmp_path: Path) -> None:
    pulsar = pytest.importorskip("pulsar")
    pytest.importorskip("fastavro")
    from pulsar import schema

    def order(**fields: Any) -> Any:
        return type("Order", (schema.Record,), fields)

    first = order(number=schema.Integer())
    second = order(number=schema.Integer(), note=schema.String(required_default=True))
    third = order(
        number=schema.Integer(),
        note=schema.String(required_default=True),
        price=schema.Double(required_default=True),
    )
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    with linked_engines(tmp_path, "a", "b") as clusters:
        a, b = clusters["a"], clusters["b"]
        there, here = pulsar.Client(a.url, logger=quiet), pulsar.Client(b.url, logger=quiet)
        for number, record in enumerate((first, second, third)):
            fields: dict[str, Any] = {"number": number, "note": "noted", "price": 2.5}
            known = {name: value for name, value in fields.items() if name in record._fields}
            there.create_producer("orders", schema=schema.AvroSchema(record)).send(record(**known))
        b.until(lambda: b.engine.find("orders") is not None, "the topic is copied")
        # Reads each message by the schema that it was written with, which it asks this cluster for.
        consumer = here.subscribe(
            "orders", "s", schema=schema.AvroSchema(third), initial_position=pulsar.InitialPosition.Earliest
        )
        values = [consumer.receive(WAIT_MS).value() for _ in range(3)]
        assert [(each.number, each.note, each.price) for each in values] == [
            (0, None, None), (1, "noted", None), (2, "noted", 2.5)
        ]  # fmt: skip
        _auto_consume(b)
        there.close()
        here.close()


def _auto_consume(served: ServedEngine) -> None:
    """Act like a client with schema AUTO_CONSUME, which the Python client lacks: subscribe with whatever schema there
    is, and ask for the schema of each message by its version."""
    found = []
    with BareClient(served.port) as client:
        whatever = Schema(name="", type=Schema.Type.AutoConsume, schema_data=b"")
        client.request(
            lambda number: BaseCommand(
                type=T.SUBSCRIBE,
                subscribe=CommandSubscribe(
                    topic="orders", subscription="auto", consumer_id=1, request_id=number, schema=whatever,
                    subType=CommandSubscribe.SubType.Exclusive,
                    initialPosition=CommandSubscribe.InitialPosition.Earliest,
                ),
            )
        )  # fmt: skip
        client.send(BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=1, messagePermits=3)))
        for _ in range(3):
            metadata, _ = decode_entry(bytes(client.next(T.MESSAGE).rest))
            answer = client.request(
                lambda number, version=metadata.schema_version: BaseCommand(
                    type=T.GET_SCHEMA,
                    getSchema=CommandGetSchema(request_id=number, topic="orders", schema_version=version),
                )
            )
            assert answer.schema_version == metadata.schema_version
            found.append(answer.schema.schema_data)
    assert [("note" in str(each), "price" in str(each)) for each in found] == [
        (False, False), (True, False), (True, True)
    ]  # fmt: skip
