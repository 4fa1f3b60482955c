"""Messages come out of an entry lazily, without the acknowledged ones; ids order, print and read back."""

from __future__ import annotations

from typing import Any

import pytest
from pyroaring import BitMap

from replicator.client.errors import InvalidMessage
from replicator.client.message import MessageId, OutgoingMessage, messages_of
from replicator.client.producing.batching import BatchContainer
from replicator.client.producing.framing import EntryFramer, single_entry
from replicator.client.settings import BatchLimits
from replicator.engine.log.entry import encode_entry
from replicator.engine.types import Delivery
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.position import Position

TOPIC = "persistent://public/default/t"


def _batch(count: int) -> bytes:
    container: BatchContainer[None] = BatchContainer(BatchLimits(), EntryFramer("producer"))
    for index in range(count):
        message = OutgoingMessage(b"m%d" % index, {"n": str(index)}, f"key-{index}", f"order-{index}", None, 50 + index)
        container.add(message, 10 + index, 0.0, 1_000, None)
    entry = container.seal()[0].entry
    assert isinstance(entry, bytes)
    return entry


def _delivery(entry: bytes, batch_size: int, acked: BitMap | None = None) -> Delivery:
    return Delivery(
        position=Position(4, 7),
        redelivery_count=2,
        batch_size=batch_size,
        acked=None if acked is None else acked.serialize(),
        entry=entry,
        origin="eu-west",
        origin_position=Position(9, 1),
    )


def test_a_batch_opens_into_messages_with_their_own_metadata() -> None:
    messages = list(messages_of(_delivery(_batch(3), 3), TOPIC, -1))
    assert [message.data() for message in messages] == [b"m0", b"m1", b"m2"]
    last = messages[2]
    assert last.value() == b"m2"
    assert last.properties() == {"n": "2"}
    assert (last.partition_key(), last.ordering_key()) == ("key-2", "order-2")
    assert (last.publish_timestamp(), last.event_timestamp()) == (1_000, 52)
    assert last.message_id() == MessageId(-1, 4, 7, 2, 3)
    assert (last.topic_name(), last.redelivery_count(), last.producer_name()) == (TOPIC, 2, "producer")
    assert last.sequence_id() == 12
    assert last.origin() == "eu-west"
    assert last.origin_message_id() == MessageId(-1, 9, 1, 2, 3)


def test_a_single_message_has_no_batch_index() -> None:
    sealed = single_entry(OutgoingMessage(b"a", {"p": "1"}, "key"), 5, EntryFramer("producer"), 1_000, None)
    assert isinstance(sealed.entry, bytes)
    (message,) = messages_of(_delivery(sealed.entry, 1), TOPIC, 3)
    assert message.message_id().batch_index() == -1
    assert message.message_id().partition() == 3
    assert (message.data(), message.partition_key(), message.ordering_key()) == (b"a", "key", "")
    assert message.properties() == {"p": "1"}
    assert message.sequence_id() == 5


def test_acknowledged_indexes_are_left_out() -> None:
    delivery = _delivery(_batch(5), 5, BitMap([0, 3]))
    assert [message.message_id().batch_index() for message in messages_of(delivery, TOPIC, -1)] == [1, 2, 4]
    both = messages_of(delivery, TOPIC, -1, skip=BitMap([1]))
    assert [message.message_id().batch_index() for message in both] == [2, 4]


def test_a_batch_is_opened_only_as_far_as_it_is_read() -> None:
    messages = messages_of(_delivery(_batch(3)[:-3], 3), TOPIC, -1)
    with pytest.raises(InvalidMessage, match="4:7"):
        next(messages)  # the checksum covers the whole entry
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, num_messages_in_batch=2)
    payload = bytes.fromhex("00000002" + "1801" + "61")  # one message, and then nothing
    messages = messages_of(_delivery(encode_entry(metadata, payload), 2), TOPIC, -1)
    assert next(messages).data() == b"a"
    with pytest.raises(InvalidMessage, match="ends before message 1 of 2"):
        next(messages)


@pytest.mark.parametrize("entry", [b"", b"garbage", b"\x0e\x01" + bytes(8)])
def test_an_entry_that_cannot_be_read_names_its_position(entry: bytes) -> None:
    with pytest.raises(InvalidMessage, match="4:7"):
        next(messages_of(_delivery(entry, 1), TOPIC, -1))


def test_message_ids_are_ordered_by_position_then_index() -> None:
    ids = [MessageId(-1, 2, 0, 1, 5), MessageId(-1, 1, 9), MessageId(-1, 2, 0, 0, 5), MessageId(-1, 2, 3)]
    assert [str(message_id) for message_id in sorted(ids)] == ["1:9:-1:-1:1", "2:0:-1:0:5", "2:0:-1:1:5", "2:3:-1:-1:1"]
    assert MessageId(-1, 1, 9) == MessageId(-1, 1, 9)
    assert len({MessageId(-1, 1, 9), MessageId(-1, 1, 9), MessageId(-1, 1, 9, 0, 2)}) == 2


def test_message_ids_survive_serialization() -> None:
    message_id = MessageId(3, 2**63, 17, 4, 10)
    copy = MessageId.deserialize(message_id.serialize())
    assert copy == message_id
    assert (copy.partition(), copy.ledger_id(), copy.entry_id(), copy.batch_index(), copy.batch_size()) == (
        3,
        2**63,
        17,
        4,
        10,
    )


@pytest.mark.parametrize(
    "text", [b"", b"1:2", b"1:2:3:4:x", b"1:2:-1:5:5", b"1:2:-2:0:1", b"-1:2:-1:-1:1", b"1:2:-1:-1:0", b"\xff:1:1:1:1"]
)
def test_what_is_not_a_message_id_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidMessage, match="not a message id"):
        MessageId.deserialize(text)


@pytest.mark.parametrize(
    "numbers",
    [("a",), (1.0,), (True,), (2**64, 0), (-1, 3), (1, -2), (1, 1, 100_001), (1, 1, -2), (1, 1, 0, 0)],
    ids=str,
)
def test_an_id_that_no_message_has_is_refused_where_it_is_made_and_not_by_a_worker(numbers: tuple[Any, ...]) -> None:
    with pytest.raises(InvalidMessage, match="no message id"):
        MessageId(-1, *numbers)


def test_an_id_of_upstreams_defaults_is_the_earliest() -> None:
    assert MessageId(-1, -1, -1, -1) == MessageId.earliest
