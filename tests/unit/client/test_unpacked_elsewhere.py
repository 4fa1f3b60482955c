"""Entries that are decompressed elsewhere: their content is held by nobody once the message is gone."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import pytest

from replicator.client.errors import InvalidMessage
from replicator.client.message import Message, Opening, messages_as_unpacked
from replicator.engine.errors import EntryCorrupt
from replicator.engine.log.compression import compress
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.types import Delivery
from replicator.metadata.metadata_pb2 import ZSTD, CompressionType, MessageMetadata, SingleMessageMetadata
from snapshots.position import Position


class Elsewhere:
    """Content that a test brings. It notes what becomes of it."""

    def __init__(self) -> None:
        self.found: bytes | None = None
        self.error: EntryCorrupt | None = None
        self.message: weakref.ref[Message] | None = None
        self.closed = 0

    def unpack(self, payload: memoryview, codec: CompressionType, size: int, ready: Callable[[], None]) -> Elsewhere:
        return self

    def content(self) -> bytes | None:
        if self.error is not None:
            raise self.error
        return self.found

    def belongs_to(self, message: Message) -> None:
        self.message = weakref.ref(message)

    def close(self) -> None:
        self.closed += 1


def delivery(content: bytes, messages: int = 0) -> Delivery:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1, compression=ZSTD)
    metadata.uncompressed_size = len(content)
    if messages:
        metadata.num_messages_in_batch = messages
    entry = encode_entry(metadata, compress(content, ZSTD))
    return Delivery(Position(1, 1), 0, max(messages, 1), None, entry, "us-east", Position(1, 1))


def test_a_message_waits_for_its_content_and_then_holds_it_alone() -> None:
    elsewhere = Elsewhere()
    messages = messages_as_unpacked(delivery(b"x" * 100), "t", -1, None, Opening(unpack=elsewhere.unpack))
    assert next(messages) is None
    assert next(messages) is None
    elsewhere.found = b"x" * 100
    message = next(messages)
    assert message is not None
    assert message.data() is elsewhere.found
    assert elsewhere.closed
    assert elsewhere.message is not None
    assert elsewhere.message() is message
    del message
    gc.collect()
    assert elsewhere.message() is None, "the entry is not over, and holds the message"
    assert list(messages) == []


def test_a_batch_holds_its_content_until_its_last_message_was_taken() -> None:
    body = bytearray()
    for number in range(3):
        append_to_batch(body, SingleMessageMetadata(payload_size=0), b"m%d" % number)
    elsewhere = Elsewhere()
    elsewhere.found = bytes(body)
    messages = messages_as_unpacked(delivery(bytes(body), 3), "t", -1, None, Opening(unpack=elsewhere.unpack))
    taken = [next(messages) for _ in range(3)]
    assert [message.data() for message in taken if message is not None] == [b"m0", b"m1", b"m2"]
    assert not elsewhere.closed
    assert list(messages) == []
    assert elsewhere.closed
    assert elsewhere.message is None


def test_what_cannot_be_decompressed_is_no_message_and_what_is_dropped_is_let_go_of() -> None:
    broken, dropped = Elsewhere(), Elsewhere()
    broken.error = EntryCorrupt("not what it says")
    with pytest.raises(InvalidMessage, match="not what it says"):
        next(messages_as_unpacked(delivery(b"x"), "t", -1, None, Opening(unpack=broken.unpack)))
    assert broken.closed
    messages = messages_as_unpacked(delivery(b"x"), "t", -1, None, Opening(unpack=dropped.unpack))
    assert next(messages) is None
    del messages
    assert dropped.closed
