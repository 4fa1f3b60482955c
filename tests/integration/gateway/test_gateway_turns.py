"""One client that floods the worker takes its share of each turn of the event loop, and no more.

Work in a turn is counted, not timed: the clock of the turns goes on by a fixed step each time that it is read.
"""

from __future__ import annotations

import fcntl
import struct
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from acknowledging_support import SubType, answers, connected, received, send, subscription_of
from gateway_support import BareClient, ServedEngine
from turns_support import IN_A_TURN_MAX, STEP_SECONDS, Counted, Ticking

from replicator.engine.log.foreign_positions import ForeignPositions
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.gateway.connection import Connection
from replicator.metadata.metadata_pb2 import KeyValue
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandAck,
    CommandFlow,
    CommandLookupTopic,
    CommandPartitionedTopicMetadata,
    CommandPing,
    CommandProducer,
    CommandRedeliverUnacknowledgedMessages,
    CommandSubscribe,
    IntRange,
    KeySharedMeta,
    KeySharedMode,
    MessageIdData,
    ServerError,
)
from replicator.protocol.errors import Refused
from replicator.protocol.frames import encode
from replicator.protocol.values import position_of

T = BaseCommand.Type
LARGE_STEP_SECONDS = 0.001
"""Time that a reading takes where a command is large: a slice has one step of it."""


@contextmanager
def ticking(gateway: ServedEngine, step_seconds: float) -> Iterator[None]:
    turns = gateway.engine.turns
    before = turns.clock
    gateway.ask(lambda: setattr(turns, "clock", Ticking(step_seconds)))
    try:
        yield
    finally:
        gateway.ask(lambda: setattr(turns, "clock", before))


@contextmanager
def counting(
    gateway: ServedEngine,
    monkeypatch: pytest.MonkeyPatch,
    owner: Any,
    name: str,
    amount: Callable[..., int],
    step_seconds: float = LARGE_STEP_SECONDS,
) -> Iterator[Counted]:
    """Count calls of a method by ``amount`` of their arguments."""
    counted = gateway.ask(lambda: Counted(gateway.loop))
    real = getattr(owner, name)

    def call(*arguments: Any, **named: Any) -> Any:
        counted.add(amount(*arguments, **named))
        return real(*arguments, **named)

    with ticking(gateway, step_seconds), monkeypatch.context() as patched:
        patched.setattr(owner, name, call)
        yield counted


def lookup(number: int) -> bytes:
    return encode(BaseCommand(type=T.LOOKUP, lookupTopic=CommandLookupTopic(topic="flood", request_id=number)))


def partitions(number: int) -> bytes:
    asked = CommandPartitionedTopicMetadata(
        topic="flood", request_id=number, metadata_auto_creation_enabled=number % 2 == 0
    )
    return encode(BaseCommand(type=T.PARTITIONED_METADATA, partitionMetadata=asked))


def ping(_: int) -> bytes:
    return encode(BaseCommand(type=T.PING, ping=CommandPing()))


def flow(_: int) -> bytes:
    return encode(BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=1, messagePermits=1)))


@pytest.mark.parametrize("command", [lookup, partitions, ping, flow])
def test_a_flood_of_small_commands_takes_its_share_of_each_turn(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch, command: Callable[[int], bytes]
) -> None:
    """All of them are answered, in the end; another client is heard beside them."""
    with BareClient(gateway.port) as client, BareClient(gateway.port) as honest:
        connected(client, topic, SubType.Shared)
        flood = b"".join(command(number) for number in range(1_000_000, 1_003_000))
        with counting(gateway, monkeypatch, Connection, "carry_out", lambda *_: 1, STEP_SECONDS) as counted:
            client.socket.sendall(flood)
            honest.ping()
            client.ping()
            assert counted.total >= 3_000
            assert counted.most <= IN_A_TURN_MAX


def large_ack(ids: list[MessageIdData], request_id: int) -> bytes:
    command = CommandAck(consumer_id=1, ack_type=CommandAck.AckType.Individual, request_id=request_id)
    command.message_id.extend(ids)
    return encode(BaseCommand(type=T.ACK, ack=command))


def published(client: BareClient, topic: str, count: int, messages: int = 1) -> list[MessageIdData]:
    connected(client, topic, SubType.Shared)
    client.send(BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=1, messagePermits=count * messages)))
    client.socket.sendall(b"".join(send(number, messages=messages) for number in range(count)))
    return received(client, count)


@pytest.mark.parametrize("known", [True, False], ids=["messages that are here", "messages of nobody"])
def test_a_large_list_of_acknowledgements_is_worked_off_in_steps_and_answered_once(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch, known: bool
) -> None:
    count = 2_000
    with BareClient(gateway.port) as client:
        ids = published(client, topic, count)
        named = ids if known else [MessageIdData(ledgerId=7, entryId=number) for number in range(count)]
        subscription = subscription_of(gateway, topic)
        number = client.state.request_id()
        if known:
            counted_calls = counting(
                gateway, monkeypatch, EngineConsumer, "acknowledge_entries", lambda _, positions, told: len(positions)
            )
        else:
            counted_calls = counting(gateway, monkeypatch, ForeignPositions, "message", lambda *_: 1)
        with counted_calls as counted:
            client.socket.sendall(large_ack(named, number))
            answer = answers(client, [number])[number]
            assert counted.total >= count
            assert counted.most <= (1_500 if known else 500)
        assert answer.HasField("error") is not known
        assert gateway.ask(subscription.cursor.backlog_entries) == (0 if known else count)


def test_parts_of_batches_in_a_large_list_count_and_wrong_ones_among_them_are_told(
    gateway: ServedEngine, topic: str
) -> None:
    """Every second message of each batch; one id is of no message, which the answer says."""
    with BareClient(gateway.port) as client:
        ids = published(client, topic, 200, messages=4)
        for each in ids:
            each.ack_set.append(0b0101)
        wrong = MessageIdData(ledgerId=ids[0].ledgerId, entryId=70_000)
        numbers = [client.state.request_id() for _ in range(2)]
        client.socket.sendall(large_ack([*ids[:120], wrong], numbers[0]) + large_ack(ids[120:], numbers[1]))
        first, second = answers(client, numbers).values()
        assert first.HasField("error")
        assert not second.HasField("error")
        cursor = subscription_of(gateway, topic).cursor
        acked = gateway.ask(lambda: [cursor.acked_indexes(position_of(each)) for each in ids])
        assert [found is None or list(found) == [1, 3] for found in acked] == [True] * len(ids)
        assert sum(found is not None for found in acked) >= 150


@pytest.mark.parametrize("kind", [SubType.Shared, SubType.Exclusive])
def test_a_large_list_to_be_sent_again_is_worked_off_in_steps(
    gateway: ServedEngine, topic: str, monkeypatch: pytest.MonkeyPatch, kind: SubType
) -> None:
    """An exclusive consumer gets all of it again, once, in its order."""
    count = 2_000
    with BareClient(gateway.port) as client:
        connected(client, topic, kind)
        client.send(BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=1, messagePermits=2 * count)))
        client.socket.sendall(b"".join(send(number) for number in range(count)))
        ids = received(client, count)
        command = CommandRedeliverUnacknowledgedMessages(consumer_id=1)
        command.message_ids.extend(ids)
        counted_calls = counting(
            gateway, monkeypatch, EngineConsumer, "redeliver", lambda _, positions=None: len(positions or ())
        )
        with counted_calls as counted:
            frame = BaseCommand(type=T.REDELIVER_UNACKNOWLEDGED_MESSAGES, redeliverUnacknowledgedMessages=command)
            client.send(frame)
            again = [client.next(T.MESSAGE).command.message for _ in range(count)]
            assert counted.most <= 1_500
        entries = [message.message_id.entryId for message in again]
        assert sorted(entries) == [each.entryId for each in ids]
        assert {message.redelivery_count for message in again} == {1}
        if kind == SubType.Exclusive:
            assert entries == sorted(entries)


@pytest.mark.parametrize("answered", [False, True], ids=["closed", "reset"])
def test_what_a_client_acknowledged_before_it_closed_its_connection_counts(
    gateway: ServedEngine, topic: str, answered: bool
) -> None:
    """50,000 acknowledgements. Where they want answers, nobody takes these, so that the connection is reset."""
    count = 50_000
    with BareClient(gateway.port) as client:
        ids = published(client, topic, 500)
        subscription = subscription_of(gateway, topic)
        acks = [ack_of(each, number if answered else None) for number, each in enumerate(ids)]
        again = b"".join(acks[:-1]) * (count // len(acks))  # the last of them comes at the end of all
        client.socket.sendall(again + acks[-1])
        while answered and struct.unpack("i", fcntl.ioctl(client.socket, termios.TIOCOUTQ, bytes(4)))[0]:
            pass  # it is on its way still: a reset would throw it away here
    gateway.until(lambda: not subscription.consumers, "its consumer is disconnected")
    assert gateway.ask(subscription.cursor.backlog_entries) == 0


def ack_of(message: MessageIdData, request_id: int | None) -> bytes:
    command = CommandAck(consumer_id=1, ack_type=CommandAck.AckType.Individual, request_id=request_id)
    command.message_id.append(message)
    return encode(BaseCommand(type=T.ACK, ack=command))


def test_a_request_with_more_parts_than_any_client_has_is_refused_and_the_connection_goes_on(
    gateway: ServedEngine, topic: str
) -> None:
    many = [KeyValue(key="k", value="v")] * 100_000

    def producing(number: int) -> BaseCommand:
        command = CommandProducer(topic=topic, producer_id=1, request_id=number, metadata=many)
        return BaseCommand(type=T.PRODUCER, producer=command)

    def subscribing(number: int) -> BaseCommand:
        ranges = [IntRange(start=2 * each, end=2 * each) for each in range(30_000)]
        command = CommandSubscribe(
            topic=topic,
            subscription="s",
            subType=SubType.Key_Shared,
            consumer_id=1,
            request_id=number,
            keySharedMeta=KeySharedMeta(keySharedMode=KeySharedMode.STICKY, hashRanges=ranges),
        )
        return BaseCommand(type=T.SUBSCRIBE, subscribe=command)

    with BareClient(gateway.port) as client:
        for asked in (producing, subscribing):
            with pytest.raises(Refused, match="more than 1000 parts") as refused:
                client.request(asked)
            assert refused.value.code == ServerError.NotAllowedError
        del many[1_000:]
        client.request(producing)


def test_the_clients_that_take_most_of_the_loop_are_known_by_address(gateway: ServedEngine) -> None:
    with BareClient(gateway.port) as client:
        client.socket.sendall(b"".join(lookup(number) for number in range(1_000_000, 1_002_000)))
        client.ping()
        host, port = client.socket.getsockname()
        busiest = gateway.ask(lambda: gateway.engine.turns.busiest(3))
        assert f"{host}:{port}" in [share.address for share, _ in busiest]
        gateway.ask(lambda: [share.end() for share in gateway.engine.turns.clients(f"{host}:{port}") if share.end])
        assert client.closed_by_server()
    gateway.until(lambda: gateway.engine.turns.client(f"{host}:{port}") is None, "it is forgotten")
