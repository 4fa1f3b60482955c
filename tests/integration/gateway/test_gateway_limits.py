"""Limits of one client: its sessions, bytes that wait for the store or for a slow reader, and schemas.

Past a limit, the client gets the protocol's own error or a slow-down; other clients notice nothing.
"""

from __future__ import annotations

import asyncio
import time

import pytest
from gateway_support import BareClient, ServedEngine, served_engine

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import IncompatibleSchema
from replicator.engine.log.entry import encode_entry
from replicator.engine.policies import QuotaPolicy
from replicator.engine.producing import publishing
from replicator.engine.schemas import registry
from replicator.engine.schemas.schema import SCHEMA_BYTES_MAX, SchemaType, TopicSchema
from replicator.engine.topic import Topic
from replicator.gateway.connection import CALLS_MAX, HELD_BYTES_MAX, Connection
from replicator.gateway.outgoing import WRITE_BUFFER_BYTES
from replicator.gateway.permits import GRANT_BYTES_MAX, LARGE_GRANT_BYTES_MAX, PERMITS_MAX
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandFlow,
    CommandProducer,
    CommandSend,
    CommandSubscribe,
    CommandWatchTopicList,
    ProducerAccessMode,
    Schema,
    ServerError,
)
from replicator.protocol.errors import Refused
from replicator.protocol.frames import encode, encode_head
from replicator.protocol.server import SESSIONS_MAX, WATCHERS_MAX

T = BaseCommand.Type
MIB = 1024 * 1024


def producing(topic: str, producer_id: int, request_id: int, **fields: object) -> BaseCommand:
    command = CommandProducer(topic=topic, producer_id=producer_id, request_id=request_id, **fields)  # type: ignore[arg-type]
    return BaseCommand(type=T.PRODUCER, producer=command)


def subscribing(topic: str, consumer_id: int, request_id: int) -> BaseCommand:
    command = CommandSubscribe(
        topic=topic,
        subscription="s",
        subType=CommandSubscribe.SubType.Shared,
        consumer_id=consumer_id,
        request_id=request_id,
        initialPosition=CommandSubscribe.InitialPosition.Earliest,
    )
    return BaseCommand(type=T.SUBSCRIBE, subscribe=command)


def watching(_: str, watcher_id: int, request_id: int) -> BaseCommand:
    command = CommandWatchTopicList(
        request_id=request_id, watcher_id=watcher_id, namespace="public/default", topics_pattern="nothing-like-that"
    )
    return BaseCommand(type=T.WATCH_TOPIC_LIST, watchTopicList=command)


def connection_of(gateway: ServedEngine, client: BareClient) -> Connection:
    host, port = client.socket.getsockname()
    found = [each for each in gateway.gateway._connections if each.client.address == f"/{host}:{port}"]
    return found[0]


def undisturbed(gateway: ServedEngine, topic: str) -> None:
    """Another client produces on the same topic."""
    with BareClient(gateway.port) as other:
        other.request(lambda number: producing(topic, 1, number))


@pytest.mark.parametrize(
    ("made", "limit"), [(producing, SESSIONS_MAX), (subscribing, SESSIONS_MAX), (watching, WATCHERS_MAX)]
)
def test_producers_consumers_and_watchers_of_a_connection_are_counted(
    gateway: ServedEngine, topic: str, made: object, limit: int
) -> None:
    """One more is refused by itself; when another one goes there is room again."""
    assert callable(made)
    with BareClient(gateway.port) as client:
        client.request(lambda number: made(topic, 0, number))
        connection = connection_of(gateway, client)
        kept = {producing: "producers", subscribing: "consumers", watching: "watchers"}[made]
        sessions = getattr(connection.state, kept)
        assert gateway.ask(lambda: sessions._limit) == limit
        gateway.ask(lambda: setattr(sessions, "_limit", 3))
        for session_id in (1, 2):
            client.request(lambda number, session_id=session_id: made(topic, session_id, number))
        with pytest.raises(Refused) as refused:
            client.request(lambda number: made(topic, 3, number))
        assert refused.value.code == ServerError.TooManyRequests
        gateway.ask(lambda: sessions.close(2).close())
        client.request(lambda number: made(topic, 3, number))


def test_what_waits_for_the_store_stops_the_reading_of_that_client_and_no_other(
    gateway: ServedEngine, topic: str
) -> None:
    """The server takes some, then nothing more of the socket, until the store goes on."""
    entry = encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), bytes(MIB))
    count = HELD_BYTES_MAX // MIB * 3
    with BareClient(gateway.port) as client:
        client.request(lambda number: producing(topic, 1, number))
        connection = connection_of(gateway, client)
        sent = 0
        client.socket.settimeout(1.0)
        with gateway.engine.store.env.begin(write=True):  # the writer waits for its turn
            for number in range(count):
                command = BaseCommand(type=T.SEND, send=CommandSend(producer_id=1, sequence_id=number))
                frame = memoryview(encode_head(command, len(entry)) + entry)
                try:
                    while frame:
                        frame = frame[client.socket.send(frame) :]
                except TimeoutError:
                    break
                sent += 1
            assert sent < count - 5  # what the kernel's buffers hold comes on top
            assert not gateway.ask(lambda: connection._reading)
            assert gateway.ask(lambda: connection._held_bytes) < HELD_BYTES_MAX + 8 * MIB
            undisturbed(gateway, topic)
        client.socket.settimeout(20.0)
        client.socket.sendall(frame)
        ids = [client.next(T.SEND_RECEIPT).command.send_receipt.sequence_id for _ in range(sent + 1)]
        assert ids == list(range(sent + 1))
        assert gateway.ask(lambda: (connection._reading, connection._held_bytes)) == (True, 0)


def test_what_a_quota_holds_does_not_keep_a_connection_from_being_heard(gateway: ServedEngine, topic: str) -> None:
    """Among what would not be heard are the acknowledgements that make the backlog smaller."""
    count = HELD_BYTES_MAX // MIB + 8
    found = gateway.run(gateway.engine.topic(topic))
    entry = encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), bytes(MIB))
    with BareClient(gateway.port) as client:
        client.request(lambda number: producing(topic, 1, number))
        connection = connection_of(gateway, client)
        gateway.ask(lambda: setattr(found.writing, "quota_exceeded", QuotaPolicy.PRODUCER_REQUEST_HOLD))
        for number in range(count):
            command = BaseCommand(type=T.SEND, send=CommandSend(producer_id=1, sequence_id=number))
            client.socket.sendall(encode_head(command, len(entry)) + entry)
        closed = client.next(T.CLOSE_PRODUCER).command.close_producer
        assert (closed.producer_id, closed.engine_error) == (1, "BacklogQuotaHolds")
        client.ping()
        assert gateway.ask(lambda: (connection._reading, connection._held_bytes)) == (True, 0)
        assert found.writing.gate.held == 0
        with pytest.raises(Refused) as refused:
            client.request(lambda number: producing(topic, 2, number))
        assert refused.value.code == ServerError.ProducerBlockedQuotaExceededError
        gateway.ask(lambda: setattr(found.writing, "quota_exceeded", None))
        client.request(lambda number: producing(topic, 2, number))
        assert found.log.messages == 0


def test_where_all_that_may_wait_for_a_quota_does_producers_are_closed_and_not_told_of_errors(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Clients close the whole connection at an error that they do not expect, or give the message up."""
    monkeypatch.setattr(publishing, "HELD_PUBLISHES_MAX", 1)
    found = gateway.run(gateway.engine.topic(topic))
    entry = encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), b"content")
    with BareClient(gateway.port) as first, BareClient(gateway.port) as second:
        for client in (first, second):
            client.request(lambda number: producing(topic, 1, number))
        gateway.ask(lambda: setattr(found.writing, "quota_exceeded", QuotaPolicy.PRODUCER_REQUEST_HOLD))
        commands = [CommandSend(producer_id=1, sequence_id=number) for number in range(2)]
        sends = [encode_head(BaseCommand(type=T.SEND, send=command), len(entry)) + entry for command in commands]
        first.socket.sendall(sends[0])
        gateway.until(lambda: found.writing.gate.held == 1, "it is not held")
        second.socket.sendall(b"".join(sends))
        assert second.next(T.CLOSE_PRODUCER).command.close_producer.engine_error == "BacklogQuotaHolds"
        gateway.ask(lambda: setattr(found.writing, "quota_exceeded", None))
        assert first.next(T.SEND_RECEIPT).command.send_receipt.sequence_id == 0
        assert found.log.messages == 1


def test_requests_that_run_at_once_are_bounded(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Producers whose topic takes its time: no more than so many, and the rest is not read until some are answered."""
    release = gateway.ask(asyncio.Event)
    find = Engine.topic

    async def slow(engine: Engine, name: str, **how: bool) -> Topic:
        await release.wait()
        return await find(engine, name, **how)

    with BareClient(gateway.port) as client:
        connection = connection_of(gateway, client)
        many = b"".join(encode(producing(topic, number, number)) for number in range(CALLS_MAX + 200))
        monkeypatch.setattr(Engine, "topic", slow)
        client.socket.sendall(many)
        gateway.until(lambda: len(connection._calls) >= CALLS_MAX, "so many run")
        gateway.until(lambda: not connection._reading, "it stops reading")
        assert CALLS_MAX <= gateway.ask(lambda: len(connection._calls)) <= CALLS_MAX + 200  # a read has several
        with BareClient(gateway.port) as other:
            other.ping()
        gateway.loop.call_soon_threadsafe(release.set)
        gateway.until(lambda: len(connection.state.producers.open()) == CALLS_MAX + 200, "the rest is read")


def test_producers_that_wait_for_the_topic_are_bounded_as_producers_and_hold_up_nothing(
    gateway: ServedEngine, topic: str
) -> None:
    """They may wait for days: more of them than calls that may run at once, and the connection is read all the same."""
    with BareClient(gateway.port) as client:
        client.request(lambda number: producing(topic, 0, number, producer_access_mode=ProducerAccessMode.Exclusive))
        connection = connection_of(gateway, client)
        for number in range(1, 1 + CALLS_MAX + 200):
            waiting = producing(
                topic, number, client.state.request_id(), producer_access_mode=ProducerAccessMode.WaitForExclusive
            )
            client.send(waiting)
        gateway.until(lambda: len(connection._calls) == CALLS_MAX + 200, "all wait")
        client.ping()
        sessions = connection.state.producers
        gateway.ask(lambda: setattr(sessions, "_limit", len(sessions)))
        with pytest.raises(Refused) as refused:
            client.request(
                lambda number: producing(topic, 5_000, number, producer_access_mode=ProducerAccessMode.WaitForExclusive)
            )
        assert refused.value.code == ServerError.TooManyRequests


def test_a_reader_that_is_slow_fills_no_memory(gateway: ServedEngine, topic: str) -> None:
    """The reader allows a million messages and takes none from its socket: a bounded part of the backlog waits for
    it."""
    backlog_bytes = 2 * (LARGE_GRANT_BYTES_MAX + GRANT_BYTES_MAX)
    entry = encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), bytes(4 * MIB))
    found = gateway.run(gateway.engine.topic(topic))

    async def fill() -> None:
        for _ in range(backlog_bytes // len(entry) // 4):
            await found.publish([entry] * 4)

    gateway.run(fill())
    with BareClient(gateway.port) as client:
        client.request(lambda number: subscribing(topic, 1, number))
        connection = connection_of(gateway, client)
        client.send(BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=1, messagePermits=PERMITS_MAX)))
        gateway.until(lambda: connection._transport.get_write_buffer_size() > WRITE_BUFFER_BYTES, "it is full")
        most = 0
        for _ in range(50):
            most = max(most, gateway.ask(lambda: connection._transport.get_write_buffer_size()))
            time.sleep(0.002)
        assert most <= LARGE_GRANT_BYTES_MAX + 8 * MIB
        undisturbed(gateway, topic)


@pytest.mark.parametrize("size", [SCHEMA_BYTES_MAX + 1, 900_000])
def test_a_schema_that_is_too_large_is_refused_and_the_connection_stays(
    gateway: ServedEngine, topic: str, size: int
) -> None:
    with BareClient(gateway.port) as client:
        schema = Schema(name="s", schema_data=bytes(size), type=Schema.Type.String)
        with pytest.raises(Refused) as refused:
            client.request(lambda number: producing(topic, 1, number, schema=schema))
        assert refused.value.code == ServerError.IncompatibleSchema
        client.request(lambda number: producing(topic, 1, number))


def test_schemas_of_a_topic_are_bounded_by_number_and_size(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def schema(number: int, padding: int = 0) -> TopicSchema:
        return TopicSchema(SchemaType.STRING, b"", {"number": str(number), "padding": "x" * padding}, "s")

    monkeypatch.setattr(registry, "SCHEMAS_MAX", 3)
    monkeypatch.setattr(registry, "TOPIC_BYTES_MAX", 4_000)
    with served_engine(tmp_path_factory.mktemp("schemas")) as served:
        add = served.engine.schemas.add
        for number in range(3):
            served.run(add("persistent://public/default/many", schema(number)))
        with pytest.raises(IncompatibleSchema, match="3 are allowed"):
            served.run(add("persistent://public/default/many", schema(3)))
        served.run(add("persistent://public/default/many", schema(2)))  # it is there
        served.run(add("persistent://public/default/large", schema(0, 2_500)))
        with pytest.raises(IncompatibleSchema):
            served.run(add("persistent://public/default/large", schema(1, 2_500)))
        assert len(served.engine.schemas.schemas("persistent://public/default/large")) == 1


def test_a_store_that_is_full_refuses_what_comes_and_serves_what_is_there(
    tmp_path_factory: pytest.TempPathFactory, topic: str
) -> None:
    """By the code after which clients try again; nothing that was confirmed is missing (invariant 1)."""
    entry = encode_entry(MessageMetadata(producer_name="p", sequence_id=0, publish_time=1), bytes(MIB // 4))
    settings = EngineSettings(store_bytes_max=4 * MIB)
    with served_engine(tmp_path_factory.mktemp("full"), settings) as served, BareClient(served.port) as client:
        client.request(lambda number: producing(topic, 1, number))
        confirmed = 0
        while True:
            command = CommandSend(producer_id=1, sequence_id=confirmed)
            client.socket.sendall(encode_head(BaseCommand(type=T.SEND, send=command), len(entry)) + entry)
            answer = client.next(T.SEND_RECEIPT, T.SEND_ERROR).command
            if answer.type == T.SEND_ERROR:
                break
            confirmed += 1
        assert (answer.send_error.sequence_id, answer.send_error.error) == (confirmed, ServerError.PersistenceError)
        assert "store.size_max" in answer.send_error.message
        assert 0 < confirmed < 16
        client.request(lambda number: subscribing(topic, 1, number))
        client.send(BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=1, messagePermits=PERMITS_MAX)))
        entries = [client.next(T.MESSAGE).command.message.message_id.entryId for _ in range(confirmed)]
        assert entries == list(range(confirmed))
