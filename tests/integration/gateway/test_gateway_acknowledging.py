"""Acknowledgements and sends that arrive in one read: each is answered for itself, in order."""

from __future__ import annotations

from pathlib import Path

import pytest
from acknowledging_support import SubType, T, answers, connected, received, send, subscription_of
from engine_support import marker
from gateway_support import BareClient, ServedEngine, served_engine

from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandAck,
    MessageIdData,
    ServerError,
)
from replicator.protocol.frames import encode
from replicator.protocol.values import NONE_U64
from snapshots.position import Position


def ack(request_id: int, *ids: MessageIdData, number: int = 1, cumulative: bool = False) -> bytes:
    kind = CommandAck.AckType.Cumulative if cumulative else CommandAck.AckType.Individual
    command = CommandAck(consumer_id=number, ack_type=kind, request_id=request_id)
    command.message_id.extend(ids)
    return encode(BaseCommand(type=T.ACK, ack=command))


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


@pytest.mark.parametrize("in_part", [False, True])
def test_one_id_beyond_the_end_of_the_log_does_not_hold_up_the_others_of_its_list(
    gateway: ServedEngine, topic: str, in_part: bool
) -> None:
    """Clients name such ids after the end of the log was lost, because an older state of the disk was restored."""
    with BareClient(gateway.port) as client:
        connected(client, topic, SubType.Shared)
        client.socket.sendall(b"".join(send(number) for number in range(4)))
        ids = received(client, 4)
        lost = MessageIdData(ledgerId=ids[0].ledgerId, entryId=77, ack_set=[0b10] if in_part else [])
        (number,) = numbers = [client.state.request_id()]
        client.socket.sendall(ack(number, ids[0], ids[1], lost, ids[3]))
        answer = answers(client, numbers)[number]
        assert (answer.error, "77" in answer.message) == (ServerError.MetadataError, True)
        subscription = subscription_of(gateway, topic)
        assert gateway.ask(subscription.cursor.backlog_entries) == 1
        assert gateway.ask(lambda: subscription.mark_delete.entry) == 1


def acknowledged_through(client: BareClient, ledger: int, entry: int) -> bool:
    """Acknowledge cumulatively; return whether that was taken."""
    number = client.state.request_id()
    client.socket.sendall(ack(number, MessageIdData(ledgerId=ledger, entryId=entry), cumulative=True))
    return not answers(client, [number])[number].HasField("error")


def test_a_cumulative_acknowledgement_before_the_first_batch_of_a_ledger_covers_the_ledgers_before(
    tmp_path: Path, topic: str
) -> None:
    """Official clients name entry -1 if they acknowledge a part of the first batch after a restart."""
    with served_engine(tmp_path) as served, BareClient(served.port) as client:
        connected(client, topic, SubType.Exclusive)
        client.socket.sendall(send(0) + send(1))
        older = received(client, 2)
        assert acknowledged_through(client, older[0].ledgerId, NONE_U64)
        assert served.ask(subscription_of(served, topic).cursor.backlog_entries) == 2
    with served_engine(tmp_path) as served, BareClient(served.port) as client:
        connected(client, topic, SubType.Exclusive)
        client.socket.sendall(send(2))
        *_, first = received(client, 3)
        assert first.ledgerId > older[-1].ledgerId, "else this shows nothing"
        for _ in range(2):  # the second one is late
            assert acknowledged_through(client, first.ledgerId, NONE_U64)
            assert served.ask(subscription_of(served, topic).cursor.backlog_entries) == 1


def test_a_cumulative_acknowledgement_before_a_batch_that_follows_a_marker_covers_what_is_before_the_marker(
    gateway: ServedEngine, topic: str
) -> None:
    """Clients that acknowledge a part of a batch name the entry before it, and have never heard of markers."""
    with BareClient(gateway.port) as client:
        connected(client, topic, SubType.Exclusive)
        client.socket.sendall(send(0) + send(1))
        received(client, 2)
        place = gateway.run(gateway.run(gateway.engine.topic(topic)).writing.marker(marker()))
        client.socket.sendall(send(2))
        (following,) = received(client, 1)
        assert following.entryId == place.entry + 1, "else this shows nothing"
        assert acknowledged_through(client, *place)
        assert gateway.ask(subscription_of(gateway, topic).cursor.backlog_entries) == 1


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
