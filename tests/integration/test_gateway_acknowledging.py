"""Acknowledgements and sends that arrive in one read: each is answered for itself, in order."""

from __future__ import annotations

from typing import Any

import pytest
from gateway_support import BareClient, ServedEngine

from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.subscriptions.subscription import Subscription
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata
from replicator.protocol.client import Answered
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandAck,
    CommandFlow,
    CommandProducer,
    CommandSend,
    CommandSubscribe,
    MessageIdData,
)
from replicator.protocol.frames import encode, encode_head
from snapshots.position import Position

T = BaseCommand.Type
SubType = CommandSubscribe.SubType


def connected(client: BareClient, topic: str, kind: SubType, number: int = 1) -> None:
    """Connect a producer and a consumer, both with the id ``number``, to a topic."""
    client.request(
        lambda request_id: BaseCommand(
            type=T.PRODUCER, producer=CommandProducer(topic=topic, producer_id=number, request_id=request_id)
        )
    )
    subscribe = CommandSubscribe(
        topic=topic,
        subscription="s",
        subType=kind,
        consumer_id=number,
        initialPosition=CommandSubscribe.InitialPosition.Earliest,
    )

    def subscribing(request_id: int) -> BaseCommand:
        subscribe.request_id = request_id
        return BaseCommand(type=T.SUBSCRIBE, subscribe=subscribe)

    client.request(subscribing)
    client.send(BaseCommand(type=T.FLOW, flow=CommandFlow(consumer_id=number, messagePermits=100)))


def send(sequence_id: int, number: int = 1, messages: int = 1) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1)
    body = bytearray(b"m")
    if messages > 1:
        metadata.num_messages_in_batch = messages
        body.clear()
        for _ in range(messages):
            append_to_batch(body, SingleMessageMetadata(payload_size=0), b"m")
    entry = encode_entry(metadata, body)
    command = CommandSend(producer_id=number, sequence_id=sequence_id, num_messages=messages)
    return encode_head(BaseCommand(type=T.SEND, send=command), len(entry)) + entry


def ack(request_id: int, *ids: MessageIdData, number: int = 1, cumulative: bool = False) -> bytes:
    kind = CommandAck.AckType.Cumulative if cumulative else CommandAck.AckType.Individual
    command = CommandAck(consumer_id=number, ack_type=kind, request_id=request_id)
    command.message_id.extend(ids)
    return encode(BaseCommand(type=T.ACK, ack=command))


def subscription_of(gateway: ServedEngine, topic: str) -> Subscription:
    found = gateway.engine.find(topic)
    assert found is not None
    return found.subscriptions["s"]


def received(client: BareClient, count: int) -> list[MessageIdData]:
    return [client.next(T.MESSAGE).command.message.message_id for _ in range(count)]


def answers(client: BareClient, numbers: list[int]) -> dict[int, Any]:
    """Return the answer to each request."""
    found: dict[int, Any] = {}
    while len(found) < len(numbers):
        for at, step in enumerate(client._steps):
            if isinstance(step, Answered) and step.request_id in numbers:
                found[step.request_id] = step.answer
                del client._steps[at]
                break
        else:
            client._receive()
    return found


@pytest.mark.parametrize("kind", [SubType.Exclusive, SubType.Shared, SubType.Key_Shared])
def test_one_invalid_acknowledgement_among_others_is_refused_and_the_others_count(
    gateway: ServedEngine, topic: str, kind: SubType
) -> None:
    with BareClient(gateway.port) as client:
        connected(client, topic, kind)
        client.socket.sendall(b"".join(send(number) for number in range(4)))
        ids = received(client, 4)
        wrong = MessageIdData(ledgerId=ids[0].ledgerId, entryId=77)
        numbers = [client.state.request_id() for _ in range(4)]
        named = (ids[0], wrong, ids[1], ids[3])
        client.socket.sendall(b"".join(map(ack, numbers, named)))
        found = answers(client, numbers)
        assert [found[number].HasField("error") for number in numbers] == [False, True, False, False]
        subscription = subscription_of(gateway, topic)
        assert gateway.ask(subscription.cursor.backlog_entries) == 1
        assert gateway.ask(lambda: subscription.mark_delete.entry) == 1


def test_acknowledgements_of_every_form_in_one_read_count_together(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        connected(client, topic, SubType.Exclusive)
        client.socket.sendall(b"".join(send(number) for number in range(6)))
        ids = received(client, 6)
        numbers = [client.state.request_id() for _ in range(4)]
        client.socket.sendall(
            ack(numbers[0], ids[1])
            + ack(numbers[1], ids[3], ids[4])
            + ack(numbers[2], ids[2], cumulative=True)
            + ack(numbers[3], ids[5])
        )
        assert not any(answer.HasField("error") for answer in answers(client, numbers).values())
        subscription = subscription_of(gateway, topic)
        assert gateway.ask(lambda: subscription.mark_delete.entry) == 5


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("kind", [SubType.Shared, SubType.Key_Shared])
def test_of_a_batch_among_whole_entries_only_the_named_messages_are_acknowledged(
    gateway: ServedEngine, topic: str, kind: SubType, together: bool
) -> None:
    with BareClient(gateway.port) as client:
        connected(client, topic, kind)
        client.socket.sendall(b"".join([send(0), send(1), send(2, messages=3), send(5)]))
        ids = received(client, 4)
        ids[2].ack_set.append(0b110)  # the first message is done
        numbers = [client.state.request_id() for _ in ids]
        if together:
            client.socket.sendall(ack(numbers[0], *ids))
            del numbers[1:]
        else:
            client.socket.sendall(b"".join(map(ack, numbers, ids)))
        assert not any(answer.HasField("error") for answer in answers(client, numbers).values())
        subscription = subscription_of(gateway, topic)
        batch = Position(ids[2].ledgerId, ids[2].entryId)
        assert gateway.ask(subscription.cursor.backlog_entries) == 1
        assert gateway.ask(lambda: list(subscription.cursor.acked_indexes(batch) or ())) == [0]


def test_receipts_of_one_producer_keep_their_order_among_sends_and_acknowledgements_of_others(
    gateway: ServedEngine, topic: str
) -> None:
    with BareClient(gateway.port) as client:
        for number in (1, 2):
            connected(client, f"{topic}-{number}", SubType.Shared, number)
        client.socket.sendall(send(0, 1) + send(0, 2))
        first = {}
        for _ in range(2):
            message = client.next(T.MESSAGE).command.message
            first[message.consumer_id] = message.message_id
        numbers = [client.state.request_id() for _ in range(2)]
        client.socket.sendall(
            send(1, 1)
            + ack(numbers[0], first[1], number=1)
            + send(1, 2)
            + send(2, 1)
            + ack(numbers[1], first[2], number=2)
            + send(3, 1)
        )
        assert len(answers(client, numbers)) == 2
        receipts = [client.next(T.SEND_RECEIPT).command.send_receipt for _ in range(6)]
        by_producer = {
            number: [each.sequence_id for each in receipts if each.producer_id == number] for number in (1, 2)
        }
        assert by_producer == {1: [0, 1, 2, 3], 2: [0, 1]}


def test_an_acknowledgement_of_a_consumer_that_is_not_there_is_dropped(gateway: ServedEngine, topic: str) -> None:
    with BareClient(gateway.port) as client:
        connected(client, topic, SubType.Shared)
        client.socket.sendall(send(0))
        (message,) = received(client, 1)
        number = client.state.request_id()
        client.socket.sendall(ack(99, message, number=7) + ack(number, message))
        assert list(answers(client, [number])) == [number]
