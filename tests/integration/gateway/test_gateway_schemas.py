"""Schemas with the official Python client: registered, evolved, refused, and asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gateway_support import BareClient, ServedEngine, served_engine

from replicator.engine.policies import PolicyOverrides, SchemaStrategy
from replicator.engine.schemas.registry import RegisteredSchema
from replicator.engine.schemas.schema import SchemaType, TopicSchema
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandGetOrCreateSchema,
    CommandGetSchema,
    CommandProducer,
    Schema,
    ServerError,
)
from replicator.protocol.errors import Refused

pulsar = pytest.importorskip("pulsar")
schema = pytest.importorskip("pulsar.schema")

T = BaseCommand.Type
WAIT_MS = 10_000
EARLIEST = pulsar.InitialPosition.Earliest


def order(**fields: Any) -> Any:
    """A record type; all that are made so have one name."""
    return type("Order", (schema.Record,), fields)


Order = order(number=schema.Integer())
OrderWithNote = order(number=schema.Integer(), note=schema.String(required_default=True))
OrderOfText = order(number=schema.String(required=True))


def definition_of(record: Any) -> bytes:
    found: bytes = schema.JsonSchema(record)._schema_info.schema().encode()
    return found


def test_json_messages_carry_the_version_of_their_schema(official: Any, gateway: ServedEngine, topic: str) -> None:
    producer = official.create_producer(topic, schema=schema.JsonSchema(Order))
    producer.send(Order(number=1))
    consumer = official.subscribe(topic, "s", schema=schema.JsonSchema(Order), initial_position=EARLIEST)
    message = consumer.receive(WAIT_MS)
    assert message.value().number == 1
    (registered,) = gateway.ask(lambda: gateway.engine.schemas.schemas(topic))
    assert message.schema_version().encode() == registered.schema.version


def test_a_schema_evolves_as_far_as_the_strategy_lets_it(official: Any, gateway: ServedEngine, topic: str) -> None:
    official.create_producer(topic, schema=schema.JsonSchema(Order)).send(Order(number=1))
    newer = official.create_producer(topic, schema=schema.JsonSchema(OrderWithNote))
    newer.send(OrderWithNote(number=2, note="x"))
    with pytest.raises(pulsar.IncompatibleSchema):
        official.create_producer(topic, schema=schema.JsonSchema(OrderOfText))
    with pytest.raises(pulsar.IncompatibleSchema):
        official.subscribe(topic, "s", schema=schema.JsonSchema(OrderOfText))
    assert len(gateway.ask(lambda: gateway.engine.schemas.schemas(topic))) == 2
    consumer = official.subscribe(topic, "s", schema=schema.JsonSchema(OrderWithNote), initial_position=EARLIEST)
    assert [consumer.receive(WAIT_MS).value().number for _ in range(2)] == [1, 2]


def set_policies(gateway: ServedEngine, topic: str, **policies: Any) -> None:
    async def change() -> None:
        await (await gateway.engine.topic(topic)).policies.set(PolicyOverrides(policies))

    gateway.run(change())


def test_the_strategy_is_a_policy_of_the_topic(official: Any, gateway: ServedEngine, topic: str) -> None:
    official.create_producer(topic, schema=schema.JsonSchema(Order))
    set_policies(gateway, topic, schema_compatibility=SchemaStrategy.ALWAYS_COMPATIBLE)
    official.create_producer(topic, schema=schema.JsonSchema(OrderOfText))
    set_policies(gateway, topic, schema_compatibility=SchemaStrategy.ALWAYS_INCOMPATIBLE)
    with pytest.raises(pulsar.IncompatibleSchema):
        official.create_producer(topic, schema=schema.JsonSchema(OrderWithNote))


def test_where_clients_may_not_register_schemas_they_use_those_that_are_there(
    official: Any, gateway: ServedEngine, topic: str
) -> None:
    official.create_producer(topic, schema=schema.JsonSchema(Order))
    set_policies(gateway, topic, schema_auto_update=False)
    official.create_producer(topic, schema=schema.JsonSchema(Order))
    with pytest.raises(pulsar.IncompatibleSchema):
        official.create_producer(topic, schema=schema.JsonSchema(OrderWithNote))


def test_a_topic_that_insists_on_its_schema_takes_no_producer_without_one(
    official: Any, gateway: ServedEngine, topic: str
) -> None:
    set_policies(gateway, topic, schema_validation_enforced=True)
    official.create_producer(topic)  # there is none yet
    official.create_producer(topic, schema=schema.JsonSchema(Order))
    with pytest.raises(pulsar.IncompatibleSchema):
        official.create_producer(topic)
    set_policies(gateway, topic, schema_validation_enforced=False)
    official.create_producer(topic)


def test_what_others_announce_is_taken_over_in_the_order_of_registration_whoever_says_it_first(
    gateway: ServedEngine, topic: str
) -> None:
    """Merging is commutative and idempotent: clusters that have heard of each other have the same list."""

    def known(name: str) -> list[RegisteredSchema]:
        return gateway.ask(lambda: gateway.engine.schemas.schemas(name))

    older = RegisteredSchema(TopicSchema(SchemaType.STRING, b""), 1_000)
    other = RegisteredSchema(TopicSchema(SchemaType.JSON, definition_of(Order)), 1_000)
    newer = RegisteredSchema(TopicSchema(SchemaType.STRING, b""), 2_000)
    learn = gateway.engine.schemas.learn
    for name, order in (
        (f"{topic}-1", ([newer], [other], [older])),
        (f"{topic}-2", ([older, other], [newer], [older])),
    ):
        for announced in order:
            gateway.run(learn(name, announced))
        assert known(name) == sorted([older, other], key=lambda each: each.schema.version)
    mine = gateway.run(gateway.engine.schemas.add(f"{topic}-3", TopicSchema(SchemaType.STRING, b"", {"a": "b"})))
    gateway.run(learn(f"{topic}-3", [older]))
    assert [each.schema.version for each in known(f"{topic}-3")] == [older.schema.version, mine]
    assert gateway.ask(lambda: [name for name in gateway.engine.schemas.topics() if name.startswith(topic)]) == [
        f"{topic}-{number}" for number in (1, 2, 3)
    ]


def test_a_string_topic_refuses_another_kind(official: Any, topic: str) -> None:
    official.create_producer(topic, schema=schema.StringSchema()).send("text")
    with pytest.raises(pulsar.IncompatibleSchema):
        official.create_producer(topic, schema=schema.JsonSchema(Order))
    consumer = official.subscribe(topic, "s", schema=schema.StringSchema(), initial_position=EARLIEST)
    assert consumer.receive(WAIT_MS).value() == "text"


def test_a_consumer_that_comes_first_gives_the_topic_its_schema(official: Any, topic: str) -> None:
    official.subscribe(topic, "s", schema=schema.JsonSchema(Order))
    with pytest.raises(pulsar.IncompatibleSchema):
        official.create_producer(topic, schema=schema.JsonSchema(OrderOfText))


def test_partitions_share_their_topics_schema(official: Any, gateway: ServedEngine, topic: str) -> None:
    gateway.run(gateway.engine.partitioned.create(topic, 2))
    official.create_producer(topic, schema=schema.JsonSchema(Order))
    assert len(gateway.ask(lambda: gateway.engine.schemas.schemas(f"{topic}-partition-1"))) == 1
    with pytest.raises(pulsar.IncompatibleSchema):
        official.create_producer(f"{topic}-partition-0", schema=schema.JsonSchema(OrderOfText))


def test_schemas_are_asked_for_by_version_and_the_newest(gateway: ServedEngine, topic: str) -> None:
    gateway.run(gateway.engine.topic(topic))
    versions = []
    with BareClient(gateway.port) as client:

        def asked(number: int, version: bytes | None = None) -> BaseCommand:
            wanted = CommandGetSchema(request_id=number, topic=topic, schema_version=version)
            return BaseCommand(type=T.GET_SCHEMA, getSchema=wanted)

        assert client.request(asked).error_code == ServerError.TopicNotFound
        for record in (Order, OrderWithNote):
            sent = Schema(name="x", type=Schema.Type.Json, schema_data=definition_of(record))
            answer = client.request(
                lambda number, sent=sent: BaseCommand(
                    type=T.GET_OR_CREATE_SCHEMA,
                    getOrCreateSchema=CommandGetOrCreateSchema(request_id=number, topic=topic, schema=sent),
                )
            )
            versions.append(answer.schema_version)
        first = client.request(lambda number: asked(number, versions[0]))
        assert first.schema.schema_data == definition_of(Order)
        newest = client.request(asked)
        assert (newest.schema.schema_data, newest.schema_version) == (definition_of(OrderWithNote), versions[1])
        assert client.request(lambda number: asked(number, b"\0" * 8)).error_code == ServerError.TopicNotFound


def test_a_schema_of_a_topic_that_is_not_there_is_refused_and_not_kept(gateway: ServedEngine, topic: str) -> None:
    sent = Schema(name="x", type=Schema.Type.Json, schema_data=definition_of(Order))
    with BareClient(gateway.port) as client:
        for absent in (topic, "persistent://nobody/nowhere/orders"):
            answer = client.request(
                lambda number, absent=absent: BaseCommand(
                    type=T.GET_OR_CREATE_SCHEMA,
                    getOrCreateSchema=CommandGetOrCreateSchema(request_id=number, topic=absent, schema=sent),
                )
            )
            assert answer.error_code == ServerError.TopicNotFound
            assert gateway.ask(lambda absent=absent: gateway.engine.schemas.schemas(absent)) == []


def test_a_refused_schema_leaves_the_id_of_the_producer_free(gateway: ServedEngine, topic: str) -> None:
    wrong = Schema(name="x", type=Schema.Type.Json, schema_data=b"{")
    with BareClient(gateway.port) as client:

        def produce(number: int, **fields: Any) -> BaseCommand:
            wanted = CommandProducer(topic=topic, producer_id=1, request_id=number, **fields)
            return BaseCommand(type=T.PRODUCER, producer=wanted)

        with pytest.raises(Refused) as refused:
            client.request(lambda number: produce(number, schema=wrong))
        assert refused.value.code == ServerError.IncompatibleSchema
        assert client.request(produce).schema_version == b""


def test_schemas_are_there_after_a_restart_and_the_same_in_another_cluster(tmp_path: Path, topic: str) -> None:
    def registered(directory: Path) -> bytes:
        with served_engine(directory) as served:
            client = pulsar.Client(served.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
            client.create_producer(topic, schema=schema.JsonSchema(Order))
            client.close()
            (only,) = served.ask(lambda: served.engine.schemas.schemas(topic))
            return only.schema.version

    assert registered(tmp_path / "a") == registered(tmp_path / "a") == registered(tmp_path / "b")
