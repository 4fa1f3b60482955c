"""Clients that stop reading, ask without listening, or send what is refused amid what is not."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest
from gateway_support import BareClient, ServedEngine

from replicator.engine.engine import Engine
from replicator.engine.log.entry import encode_entry
from replicator.engine.policies import QuotaPolicy, TopicPolicies
from replicator.gateway import connection, outgoing, producing
from replicator.gateway.connection import Addresses
from replicator.gateway.server import Gateway
from replicator.metadata.metadata_pb2 import MessageMetadata
from replicator.protocol import server as protocol_server
from replicator.protocol.client import Response
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandCloseProducer,
    CommandFlow,
    CommandGetTopicsOfNamespace,
    CommandProducer,
    CommandSend,
    CommandSubscribe,
    ProducerAccessMode,
    ServerError,
)
from replicator.protocol.frames import Frame, FrameDecoder, encode, encode_head

T = BaseCommand.Type
EARLIEST = CommandSubscribe.InitialPosition.Earliest


def subscribe(client: BareClient, topic: str, name: str = "s", consumer_id: int = 1) -> None:
    client.request(
        lambda number: BaseCommand(
            type=T.SUBSCRIBE,
            subscribe=CommandSubscribe(
                topic=topic,
                subscription=name,
                consumer_id=consumer_id,
                request_id=number,
                subType=CommandSubscribe.SubType.Exclusive,
                initialPosition=EARLIEST,
            ),
        )
    )


def produce(client: BareClient, topic: str) -> None:
    client.request(
        lambda number: BaseCommand(
            type=T.PRODUCER,
            producer=CommandProducer(topic=topic, producer_id=1, request_id=number, producer_name="p"),
        )
    )


def flow(client: BareClient, permits: int, consumer_id: int = 1) -> None:
    client.send(BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=consumer_id, messagePermits=permits)))


def entry(sequence_id: int, payload: bytes = b"m") -> bytes:
    return encode_entry(MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1), payload)


def framed(sequence_id: int, sent: bytes) -> bytes:
    command = BaseCommand(type=T.SEND, send=CommandSend(producer_id=1, sequence_id=sequence_id))
    return encode_head(command, len(sent)) + sent


def fill(gateway: ServedEngine, topic: str, entries: int, size_bytes: int) -> None:
    async def published() -> None:
        there = await gateway.engine.topic(topic)
        for number in range(entries):
            await there.publish([entry(number, bytes(size_bytes))])

    gateway.run(published())


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients are asked whether they are there so often that a test need not wait long."""
    monkeypatch.setattr(protocol_server, "KEEP_ALIVE_SECONDS", 0.2)


def test_a_client_that_has_stopped_gives_up_its_subscription_although_its_socket_is_full(
    gateway: ServedEngine, topic: str, impatient: None
) -> None:
    fill(gateway, topic, 16, 1024 * 1024)
    there = gateway.run(gateway.engine.topic(topic))
    with BareClient(gateway.port) as stopped:
        stopped.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024)
        subscribe(stopped, topic)
        flow(stopped, 1_000)
        gateway.until(lambda: not there.subscriptions["s"].consumers, "the consumer of a dead client is still there")


@pytest.mark.parametrize("wrong", [3, 1_499])
def test_what_follows_a_refused_entry_is_stored_after_what_went_before_it(
    gateway: ServedEngine, topic: str, wrong: int
) -> None:
    count = 1_500
    with BareClient(gateway.port) as client:
        produce(client, topic)
        entries = [entry(number) for number in range(count)]
        damaged = bytearray(entries[wrong])
        damaged[-1] ^= 1
        entries[wrong] = bytes(damaged)
        client.socket.sendall(b"".join(framed(number, sent) for number, sent in enumerate(entries)))
        assert client.next(T.SEND_ERROR).command.send_error.error == ServerError.ChecksumError
        receipts = [client.next(T.SEND_RECEIPT).command.send_receipt for _ in range(count - 1)]
    assert [receipt.sequence_id for receipt in receipts] == [number for number in range(count) if number != wrong]
    places = [(receipt.message_id.ledgerId, receipt.message_id.entryId) for receipt in receipts]
    assert places == sorted(set(places)), "some were confirmed and not stored, or not in order"

    async def stored() -> int:
        return (await gateway.engine.topic(topic)).log.entries

    assert gateway.run(stored()) == count - 1


@pytest.mark.parametrize("damaged", [False, True])
def test_what_a_producer_sends_just_before_it_is_closed_is_answered_before_that(
    gateway: ServedEngine, topic: str, damaged: bool
) -> None:
    """Clients give up what has no receipt when they hear that the producer is closed."""
    with BareClient(gateway.port) as client:
        produce(client, topic)
        closing = CommandCloseProducer(producer_id=1, request_id=client.state.request_id())
        close = encode(BaseCommand(type=T.CLOSE_PRODUCER, close_producer=closing))
        wrong = entry(0)[:-1] + b"!"
        sent = framed(0, wrong) if damaged else framed(0, entry(0)) + framed(1, entry(1))
        client.socket.sendall(sent + close)
        while not any(isinstance(step, Response) for step in client._steps):
            client._receive()
        *before, answer = client._steps
        assert isinstance(answer, Response)
        assert answer.request_id == closing.request_id
        kinds = [step.command.type for step in before if isinstance(step, Frame)]
        assert kinds == ([T.SEND_ERROR] if damaged else [T.SEND_RECEIPT, T.SEND_RECEIPT])


def test_a_producer_whose_messages_a_quota_holds_is_closed_without_their_answers(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(producing, "CLOSE_SECONDS_MAX", 0.05)

    async def over_quota() -> None:
        (await gateway.engine.topic(topic)).writing.quota_exceeded = QuotaPolicy.PRODUCER_REQUEST_HOLD

    with BareClient(gateway.port) as client:
        produce(client, topic)
        gateway.run(over_quota())
        client.socket.sendall(framed(0, entry(0)))
        client.request(
            lambda number: BaseCommand(
                type=T.CLOSE_PRODUCER, close_producer=CommandCloseProducer(producer_id=1, request_id=number)
            )
        )
        assert not client._steps


def test_nothing_is_stored_behind_what_a_client_sends_again_after_an_error(gateway: ServedEngine, topic: str) -> None:
    """Otherwise the message sent again would be taken for a duplicate."""

    async def over_quota(policy: QuotaPolicy | None) -> None:
        there = await gateway.engine.topic(topic)
        await there.policies.set(TopicPolicies(deduplication=True))
        there.writing.quota_exceeded = policy

    gateway.run(over_quota(QuotaPolicy.PRODUCER_EXCEPTION))
    with BareClient(gateway.port) as client:
        produce(client, topic)
        client.socket.sendall(framed(0, entry(0)))
        assert client.next(T.SEND_ERROR).command.send_error.sequence_id == 0
        gateway.run(over_quota(None))
        client.socket.sendall(framed(1, entry(1)))
        assert client.next(T.CLOSE_PRODUCER).command.close_producer.producer_id == 1
        produce(client, topic)
        client.socket.sendall(framed(0, entry(0)) + framed(1, entry(1)))
        receipts = [client.next(T.SEND_RECEIPT).command.send_receipt for _ in range(2)]
    assert [receipt.sequence_id for receipt in receipts] == [0, 1]
    assert [receipt.message_id.entryId for receipt in receipts] == [0, 1], "confirmed, and not stored"


@pytest.mark.parametrize("wrong", [3, 1_499])
def test_with_deduplication_a_damaged_entry_may_be_sent_again_whole(
    gateway: ServedEngine, topic: str, wrong: int
) -> None:
    """Java and Go send again so. Nothing behind the entry is stored before it; otherwise it would be confirmed as a
    duplicate."""
    count = 1_500

    async def deduplicated() -> None:
        await (await gateway.engine.topic(topic)).policies.set(TopicPolicies(deduplication=True))

    gateway.run(deduplicated())
    with BareClient(gateway.port) as client:
        produce(client, topic)
        entries = [entry(number) for number in range(count)]
        damaged = bytearray(entries[wrong])
        damaged[-1] ^= 1
        sent = [*entries[:wrong], bytes(damaged), *entries[wrong + 1 :]]
        client.socket.sendall(b"".join(framed(number, each) for number, each in enumerate(sent)))
        receipts = [client.next(T.SEND_RECEIPT).command.send_receipt for _ in range(wrong)]
        refused = client.next(T.SEND_ERROR).command.send_error
        assert (refused.error, refused.sequence_id) == (ServerError.ChecksumError, wrong)
        assert client.next(T.CLOSE_PRODUCER).command.close_producer.producer_id == 1
        produce(client, topic)
        client.socket.sendall(b"".join(framed(number, entries[number]) for number in range(wrong, count)))
        receipts += [client.next(T.SEND_RECEIPT).command.send_receipt for _ in range(wrong, count)]
    assert [receipt.sequence_id for receipt in receipts] == list(range(count))
    places = [(receipt.message_id.ledgerId, receipt.message_id.entryId) for receipt in receipts]
    assert places == sorted(set(places)), "some were confirmed and not stored, or not in order"


def test_what_a_quota_holds_behind_a_refused_entry_is_given_up_with_its_client(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise clients that come and go would fill what may be held for all (invariant 11)."""
    monkeypatch.setattr(producing, "CLOSE_SECONDS_MAX", 0.2)

    there = gateway.run(gateway.engine.topic(topic))
    with BareClient(gateway.port) as client:
        produce(client, topic)
        gateway.ask(lambda: setattr(there.writing, "quota_exceeded", QuotaPolicy.PRODUCER_REQUEST_HOLD))
        damaged = bytearray(entry(0))
        damaged[-1] ^= 1
        client.socket.sendall(framed(0, bytes(damaged)) + framed(1, entry(1)))
        gateway.until(lambda: there.writing.gate.held == 1, "it is not held")
    gateway.until(lambda: there.writing.gate.held == 0, "it is still held")


def test_a_producer_that_is_closed_before_it_waits_does_not_wait(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        produce(client, topic)
        waiting = CommandProducer(
            topic=topic,
            producer_id=2,
            request_id=client.state.request_id(),
            producer_access_mode=ProducerAccessMode.WaitForExclusive,
        )
        closing = CommandCloseProducer(producer_id=2, request_id=client.state.request_id())
        client.socket.sendall(
            encode(BaseCommand(type=T.PRODUCER, producer=waiting))
            + encode(BaseCommand(type=T.CLOSE_PRODUCER, close_producer=closing))
        )
        client.ping()
        gateway.until(lambda: not any(each._calls for each in gateway.gateway._connections), "it waits for its turn")


def buffered(gateway: ServedEngine) -> int:
    """Return the largest number of unsent bytes in a connection's buffer."""
    return max(
        (each._transport.get_write_buffer_size() for each in gateway.gateway._connections if each._transport), default=0
    )


def test_many_consumers_of_a_client_that_does_not_read_fill_no_memory(gateway: ServedEngine, topic: str) -> None:
    fill(gateway, topic, 8, 1024 * 1024)
    consumers = 20
    with BareClient(gateway.port) as slow:
        for number in range(consumers):
            subscribe(slow, topic, f"s{number}", number)
        for number in range(consumers):
            flow(slow, 1_000, number)
        slow.ping()
        read = 0
        assert gateway.ask(lambda: buffered(gateway)) < 16 * 1024 * 1024
        for _ in range(8 * consumers):  # and none of them is forgotten
            read += slow.next(T.MESSAGE).rest.nbytes
        assert read > 8 * consumers * 1024 * 1024


def test_a_client_that_asks_and_does_not_read_is_not_listened_to_until_it_does(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = 1024 * 1024
    monkeypatch.setattr(outgoing, "UNREAD_BYTES_MAX", limit)
    monkeypatch.setattr(outgoing, "WRITE_BUFFER_BYTES", limit // 2)
    asked = 12_000
    for number in range(10):
        gateway.run(gateway.engine.topic(f"{topic}-{number}"))
    with BareClient(gateway.port) as client:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 128 * 1024)
        wanted = b"".join(
            encode(
                BaseCommand(
                    type=T.GET_TOPICS_OF_NAMESPACE,
                    getTopicsOfNamespace=CommandGetTopicsOfNamespace(request_id=number, namespace="public/default"),
                )
            )
            for number in range(asked)
        )
        asking = threading.Thread(target=client.socket.sendall, args=(wanted,))
        asking.start()
        connections = gateway.ask(lambda: list(gateway.gateway._connections))
        gateway.until(lambda: any(each._outgoing.flooded for each in connections), "everything is read")
        assert gateway.ask(lambda: any(not each._transport.is_reading() for each in connections))
        assert gateway.ask(lambda: buffered(gateway)) < 2 * limit
        answered = 0
        decoder = FrameDecoder()
        while answered < asked:
            answered += sum(1 for _ in decoder.receive(client.socket.recv(1024 * 1024)))
        asking.join()


def test_producers_that_wait_for_their_turn_do_not_keep_the_client_from_being_heard(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "CALLS_MAX", 3)
    exclusive = {"producer_access_mode": ProducerAccessMode.WaitForExclusive}
    with BareClient(gateway.port) as first, BareClient(gateway.port) as waiting:
        produce(first, topic)
        for number in range(5):
            command = CommandProducer(topic=topic, producer_id=number, request_id=1_000 + number, **exclusive)
            waiting.send(BaseCommand(type=T.PRODUCER, producer=command))
        there = gateway.run(gateway.engine.topic(topic))
        gateway.until(lambda: there.producers.connected == 6, "nobody reads what the client asks")
        waiting.ping()


def test_a_gateway_that_stops_closes_a_connection_that_was_just_accepted(data_dir: Path) -> None:
    """Its transport comes later than its socket."""

    async def main() -> None:
        engine = await Engine.open(data_dir, cluster="us-east")
        gateway = Gateway(engine, Addresses("pulsar://127.0.0.1:1"))
        accepted = gateway.connection()
        await gateway.stop()
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        with ours:
            await loop.connect_accepted_socket(lambda: accepted, theirs)
            ours.setblocking(False)
            assert await asyncio.wait_for(loop.sock_recv(ours, 1), 10) == b""
        assert gateway.connections == 0
        await engine.close()

    asyncio.run(main())
