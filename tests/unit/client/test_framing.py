"""Entries are compressed, cut, encrypted and framed so that a consumer gets back exactly what was sent."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.client.chunking import Assembled, Chunk, ChunkAssembler
from replicator.client.errors import InvalidMessage, MessageTooBig
from replicator.client.message import ChunkMessageId, Message, MessageId, Opening, OutgoingMessage, messages_of
from replicator.client.producing.batching import BatchContainer
from replicator.client.producing.framing import EntryFramer, SealedEntry, chunked_entries, single_entry
from replicator.client.settings import BatchLimits, CompressionType
from replicator.engine.log.entry import ENTRY_BYTES_MAX, decode_entry, encode_entry
from replicator.engine.types import Delivery
from replicator.metadata.metadata_pb2 import LZ4, NONE, ZSTD, MessageMetadata
from snapshots.position import Position

TOPIC = "persistent://public/default/t"
CODECS = [codec for codec in CompressionType if codec is not CompressionType.NONE]


def _delivery(entry: object, position: Position = Position(4, 7)) -> Delivery:  # noqa: B008  (a value)
    assert isinstance(entry, bytes)
    return Delivery(position, 0, 1, None, entry, "eu-west", position)


def _received(sealed: Sequence[SealedEntry[None]], opening: Opening | None = None) -> list[Message]:
    """Return the messages that a consumer gets of the entries when they are stored one after the other."""
    return [
        message
        for at, entry in enumerate(sealed)
        for message in messages_of(_delivery(entry.entry, Position(4, at)), TOPIC, -1, None, opening)
    ]


def _metadata(sealed: SealedEntry[None]) -> MessageMetadata:
    assert isinstance(sealed.entry, bytes)
    return decode_entry(sealed.entry)[0]


def _assembling() -> Opening:
    assembler = ChunkAssembler()

    def on_chunk(chunk: Chunk) -> Assembled | None:
        for action in assembler.add(chunk, 0):
            assert isinstance(action, Assembled)
            return action
        return None

    return Opening(on_chunk=on_chunk)


def test_a_single_message_is_an_entry_without_a_batch() -> None:
    message = OutgoingMessage(b"a", {"p": "1"}, "key", "order", None, 77, 5_000)
    sealed = single_entry(message, 5, EntryFramer("producer"), 1_000, None)
    assert isinstance(sealed.entry, bytes)
    metadata, payload = decode_entry(sealed.entry)
    assert not metadata.HasField("num_messages_in_batch")
    assert bytes(payload) == b"a"
    assert (metadata.partition_key, metadata.ordering_key, metadata.event_time) == ("key", b"order", 77)
    assert (metadata.sequence_id, metadata.publish_time, metadata.producer_name) == (5, 1_000, "producer")
    assert metadata.deliver_at_time == 5_000
    assert not sealed.batched


def test_what_cannot_be_framed_is_sealed_as_its_error() -> None:
    sealed = single_entry(OutgoingMessage(b"x" * ENTRY_BYTES_MAX), 0, EntryFramer("producer"), 0, None)
    assert isinstance(sealed.entry, MessageTooBig)
    assert len(sealed.messages) == 1


@pytest.mark.parametrize("compression", CODECS)
def test_a_batch_is_compressed_whole_and_says_how_large_it_was(compression: CompressionType) -> None:
    container: BatchContainer[None] = BatchContainer(BatchLimits(), EntryFramer("producer", compression))
    plain: BatchContainer[None] = BatchContainer(BatchLimits(), EntryFramer("producer"))
    for index in range(50):
        for one in (container, plain):
            one.add(OutgoingMessage(b"the same text again %d" % index), index, 0.0, 0, None)
    (sealed,) = container.seal()
    (uncompressed,) = plain.seal()
    assert isinstance(sealed.entry, bytes)
    assert isinstance(uncompressed.entry, bytes)
    assert len(sealed.entry) < len(uncompressed.entry) / 2
    assert _metadata(sealed).uncompressed_size == _metadata(uncompressed).uncompressed_size
    assert [message.data() for message in _received([sealed])] == [b"the same text again %d" % n for n in range(50)]


@pytest.mark.parametrize("compression", CODECS)
def test_a_payload_that_compression_does_not_make_smaller_goes_as_it_is(compression: CompressionType) -> None:
    sealed = single_entry(OutgoingMessage(b"\x00\x9f\x01"), 0, EntryFramer("producer", compression), 0, None)
    assert _metadata(sealed).compression == NONE
    (message,) = _received([sealed])
    assert message.data() == b"\x00\x9f\x01"


@pytest.mark.parametrize(
    ("codec", "payload", "said", "named"),
    [
        (LZ4, b"garbage", 100, "4:7"),
        (ZSTD, b"garbage", 100, "4:7"),
        (LZ4, bytes.fromhex("1061"), 2, "4:7"),  # one literal byte that claims to be two
        (LZ4, bytes.fromhex("1061"), 2**31, "limit"),
    ],
)
def test_a_compressed_payload_that_lies_is_refused_with_its_position(
    codec: int, payload: bytes, said: int, named: str
) -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=0, uncompressed_size=said)
    metadata.compression = codec  # type: ignore[assignment]
    with pytest.raises(InvalidMessage, match=named) as caught:
        next(messages_of(_delivery(encode_entry(metadata, payload)), TOPIC, -1))
    assert "4:7" in str(caught.value)


def test_a_message_that_fits_is_no_chunk() -> None:
    (sealed,) = chunked_entries(
        OutgoingMessage(b"x" * 100), 0, EntryFramer("producer"), 0, None, uuid="u", message_bytes_max=1_000
    )
    assert not _metadata(sealed).HasField("uuid")
    assert (sealed.chunk_id, sealed.chunks) == (0, 1)


@pytest.mark.parametrize("compression", list(CompressionType))
def test_a_message_in_chunks_comes_back_whole_with_the_positions_of_all(compression: CompressionType) -> None:
    content = b"".join(b"%d," % (n * 7919) for n in range(2_000))
    message = OutgoingMessage(content, {"p": "1"}, "key", event_timestamp=9)
    sealed = chunked_entries(
        message, 5, EntryFramer("producer", compression), 0, None, uuid="u", message_bytes_max=1_000
    )
    assert len(sealed) > 2
    for chunk_id, entry in enumerate(sealed):
        metadata = _metadata(entry)
        assert isinstance(entry.entry, bytes)
        assert len(entry.entry) <= 1_000 + 10, "the frame is beside the limit"
        assert (metadata.chunk_id, metadata.num_chunks_from_msg, metadata.sequence_id) == (chunk_id, len(sealed), 5)
        assert (metadata.uuid, metadata.partition_key) == ("u", "key")
    assert [len(entry.messages) for entry in sealed] == [0] * (len(sealed) - 1) + [1]
    (received,) = _received(sealed, _assembling())
    assert received.data() == content
    assert received.properties() == {"p": "1"}
    assert received.is_chunked()
    message_id = received.message_id()
    assert isinstance(message_id, ChunkMessageId)
    assert message_id.chunk_positions() == tuple(Position(4, at) for at in range(len(sealed)))
    assert message_id == MessageId(-1, 4, len(sealed) - 1)


def test_properties_that_leave_no_room_for_a_chunk_are_too_big() -> None:
    message = OutgoingMessage(b"x" * 2_000, {"p": "y" * 1_000})
    (sealed,) = chunked_entries(message, 0, EntryFramer("producer"), 0, None, uuid="u", message_bytes_max=1_000)
    assert isinstance(sealed.entry, MessageTooBig)
    assert len(sealed.messages) == 1


def test_a_chunk_that_nobody_assembles_is_refused_by_name() -> None:
    sealed = chunked_entries(
        OutgoingMessage(b"x" * 2_000), 0, EntryFramer("producer"), 0, None, uuid="u", message_bytes_max=1_000
    )
    with pytest.raises(InvalidMessage, match=r"4:0 .* chunk"):
        _received(sealed)


@given(content=st.binary(max_size=5_000), message_bytes_max=st.integers(120, 400))
def test_any_content_survives_being_cut(content: bytes, message_bytes_max: int) -> None:
    sealed = chunked_entries(
        OutgoingMessage(content), 0, EntryFramer("p"), 0, None, uuid="u", message_bytes_max=message_bytes_max
    )
    (received,) = _received(sealed, _assembling())
    assert received.data() == content
