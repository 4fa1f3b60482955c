from __future__ import annotations

import struct

import google_crc32c
import pytest
from engine_support import batch, message
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.errors import EntryCorrupt, MessageTooLarge
from replicator.engine.log.entry import (
    BATCH_MESSAGES_MAX,
    ENTRY_BYTES_MAX,
    append_plain_to_batch,
    append_to_batch,
    decode_entry,
    encode_entry,
    encode_plain_entry,
    producer_field,
    split_batch,
)
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata


@given(st.binary(max_size=200), st.integers(0, 2**63))
def test_an_entry_gives_back_metadata_and_payload(payload: bytes, sequence_id: int) -> None:
    metadata, body = decode_entry(message(payload, sequence_id=sequence_id))
    assert (metadata.sequence_id, metadata.num_messages_in_batch, bytes(body)) == (sequence_id, 1, payload)


@given(st.lists(st.binary(max_size=50), min_size=1, max_size=20))
def test_a_batch_splits_into_its_messages(payloads: list[bytes]) -> None:
    metadata, body = decode_entry(batch(payloads))
    assert [bytes(single.payload) for single in split_batch(metadata, body)] == payloads


@given(st.binary(max_size=60), st.data())
def test_any_flipped_bit_is_found(payload: bytes, data: st.DataObject) -> None:
    entry = bytearray(message(payload))
    bit = data.draw(st.integers(0, len(entry) * 8 - 1))
    entry[bit // 8] ^= 1 << bit % 8
    with pytest.raises(EntryCorrupt):
        decode_entry(bytes(entry))


@given(st.binary(max_size=200))
def test_noise_is_refused(noise: bytes) -> None:
    for wrong in (noise, struct.pack(">H", 0x0E01) + noise):
        with pytest.raises(EntryCorrupt):
            decode_entry(wrong)


@given(st.lists(st.binary(max_size=20), min_size=2, max_size=5), st.data())
def test_a_batch_that_is_cut_short_is_named(payloads: list[bytes], data: st.DataObject) -> None:
    metadata, body = decode_entry(batch(payloads))
    cut = data.draw(st.integers(0, len(body) - 1))
    with pytest.raises(EntryCorrupt, match=r"batch|metadata of message"):
        list(split_batch(metadata, body[:cut]))


@pytest.mark.parametrize("count", [0, -1, BATCH_MESSAGES_MAX + 1])
def test_a_batch_of_no_plausible_size_is_refused(count: int) -> None:
    with pytest.raises(EntryCorrupt, match="messages"):
        decode_entry(message(batch_size=count))


def test_metadata_that_lacks_a_required_field_is_refused() -> None:
    incomplete = MessageMetadata(producer_name="p").SerializePartialToString()
    body = struct.pack(">I", len(incomplete)) + incomplete
    with pytest.raises(EntryCorrupt, match="lacks"):
        decode_entry(struct.pack(">HI", 0x0E01, google_crc32c.value(body)) + body)


def test_invariant_11_an_entry_over_the_limit_is_neither_made_nor_read() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    with pytest.raises(MessageTooLarge):
        encode_entry(metadata, b"x" * ENTRY_BYTES_MAX)
    with pytest.raises(MessageTooLarge):
        decode_entry(b"x" * (ENTRY_BYTES_MAX + 1))


numbers = st.one_of(
    st.integers(0, 300), st.sampled_from([2**14 - 1, 2**14, 2**21 - 1, 2**21]), st.integers(0, 2**64 - 1)
)


@given(name=st.text(min_size=1, max_size=200), sequence_id=numbers, time_ms=numbers, payload=st.binary(max_size=50))
def test_an_entry_of_one_plain_message_is_the_bytes_that_protobuf_makes(
    name: str, sequence_id: int, time_ms: int, payload: bytes
) -> None:
    metadata = MessageMetadata(producer_name=name, sequence_id=sequence_id, publish_time=time_ms)
    assert encode_plain_entry(producer_field(name), sequence_id, time_ms, payload) == encode_entry(metadata, payload)


@given(sequence_id=numbers, payload=st.one_of(st.binary(max_size=50), st.just(bytes(70_000))))
def test_a_plain_message_of_a_batch_is_the_bytes_that_protobuf_makes(sequence_id: int, payload: bytes) -> None:
    by_hand, expected = bytearray(b"before"), bytearray(b"before")
    append_plain_to_batch(by_hand, sequence_id, payload)
    append_to_batch(expected, SingleMessageMetadata(sequence_id=sequence_id), payload)
    assert by_hand == expected
