"""Seeks of readers whose clients send a start id each time they subscribe, as those of Java and Go do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from acknowledging_support import received
from gateway_support import BareClient, ServedEngine
from raw_command_support import T, flow, produce, publish, subscribe

from replicator.protocol.commands_pb2 import BaseCommand, CommandCloseConsumer, CommandSeek, MessageIdData
from replicator.protocol.errors import Refused
from replicator.protocol.values import message_id
from snapshots.position import BEFORE_ALL

FIRST = message_id(BEFORE_ALL, -1)
"""Id that clients send for the start of a topic."""


@pytest.fixture
def reading(gateway: ServedEngine, topic: str) -> Iterator[tuple[BareClient, list[MessageIdData]]]:
    """Yield a client whose reader got three messages, published at 1, 2 and 3 s, and their ids."""
    with BareClient(gateway.port) as client:
        produce(client, topic)
        ids = []
        for number in range(3):
            publish(client, sequence_id=number, at_ms=1000 * (number + 1))
            ids.append(client.next(T.SEND_RECEIPT).command.send_receipt.message_id)
        subscribe(client, topic, durable=False, start_message_id=FIRST)
        flow(client, 3)
        assert received(client, 3) == ids
        yield client, ids


def seek_to_time(client: BareClient, at_ms: int) -> None:
    """Seek, and wait until the server has let the reader go."""
    client.request(
        lambda number: BaseCommand(
            type=T.SEEK, seek=CommandSeek(consumer_id=1, request_id=number, message_publish_time=at_ms)
        )
    )
    client.next(T.CLOSE_CONSUMER)


@pytest.mark.parametrize("sent", ["the first id", "the last message"])
def test_a_reader_that_sends_its_start_again_after_a_seek_to_a_time_begins_at_that_time(
    reading: tuple[BareClient, list[MessageIdData]], topic: str, sent: str
) -> None:
    """After the seek, the Java client sends the first id, and the Go client where it began or had come to."""
    client, ids = reading
    seek_to_time(client, 2000)
    subscribe(client, topic, durable=False, start_message_id=FIRST if sent == "the first id" else ids[2])
    flow(client, 3)
    assert received(client, 2) == ids[1:]


def test_a_reader_that_began_some_time_ago_does_not_go_back_there_after_a_seek(
    reading: tuple[BareClient, list[MessageIdData]], topic: str
) -> None:
    client, ids = reading
    seek_to_time(client, 3000)
    subscribe(client, topic, durable=False, start_message_id=FIRST, start_message_rollback_duration_sec=2**31)
    flow(client, 3)
    assert received(client, 1) == ids[2:]


def test_a_reader_that_is_refused_after_its_seek_begins_at_the_sought_place_when_it_tries_again(
    reading: tuple[BareClient, list[MessageIdData]], gateway: ServedEngine, topic: str
) -> None:
    client, ids = reading
    seek_to_time(client, 3000)
    there = gateway.engine.find(topic)
    assert there is not None
    with BareClient(gateway.port) as other:
        subscribe(other, topic, durable=False, start_message_id=FIRST)
        with pytest.raises(Refused):
            subscribe(client, topic, durable=False, start_message_id=FIRST)
    gateway.until(lambda: "s" not in there.subscriptions, "the other reader has gone")
    subscribe(client, topic, durable=False, start_message_id=FIRST)
    flow(client, 3)
    assert received(client, 1) == ids[2:]


def test_a_reader_that_closed_after_its_seek_begins_anew_where_it_says(
    reading: tuple[BareClient, list[MessageIdData]], topic: str
) -> None:
    client, ids = reading
    seek_to_time(client, 3000)
    subscribe(client, topic, durable=False, start_message_id=FIRST)
    client.request(
        lambda number: BaseCommand(
            type=T.CLOSE_CONSUMER, close_consumer=CommandCloseConsumer(consumer_id=1, request_id=number)
        )
    )
    subscribe(client, topic, durable=False, start_message_id=FIRST)
    flow(client, 3)
    assert received(client, 3) == ids
