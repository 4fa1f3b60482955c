"""Decoding many entries at once gives what protobuf gives one by one, whatever producers and bad disks write."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_worker import ScriptedTopic, marker_entry

from replicator.engine.log import compression
from replicator.engine.log.block import BlockKind
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.metadata.metadata_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD, MessageMetadata, SingleMessageMetadata
from replicator.pipeline.data_plane import FetchedBlock
from replicator.pipeline.errors import EntryUnreadable
from replicator.pipeline.source import decode, messages, schema
from snapshots.position import BEFORE_ALL, Position

NUMBERS = st.sampled_from([0, 1, 127, 128, 2**31, 2**63, 2**64 - 1])
TEXTS = st.sampled_from(["", "k", "ключ", "x" * 200])
# Payloads that look like what stands in front of a message, besides any others.
PAYLOADS = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [bytes(60), b"\0\0\0\2\x18\0", b"\0\0\0\2\x18\5hello", b"\0\0\0\2\x18\xff\xff", b"\0" * 3 + b"\x12"]
    ),
)
PROPERTIES = st.lists(st.tuples(st.sampled_from(["a", "b", "c"]), TEXTS), max_size=3)


@st.composite
def single_metadata(draw: st.DrawFn) -> SingleMessageMetadata:
    single = SingleMessageMetadata(payload_size=0)
    for key, value in draw(PROPERTIES):
        single.properties.add(key=key, value=value)
    if draw(st.booleans()):
        single.partition_key = draw(TEXTS)
        single.null_partition_key = draw(st.booleans())
    if draw(st.booleans()):
        single.sequence_id = draw(NUMBERS)
    if draw(st.integers(0, 9)) == 0:
        single.null_value = True
    return single


@st.composite
def entries(draw: st.DrawFn) -> tuple[bytes, int]:
    metadata = MessageMetadata(
        producer_name=draw(TEXTS), sequence_id=draw(NUMBERS), publish_time=draw(NUMBERS | st.just(1_700_000_000_000))
    )
    for key, value in draw(PROPERTIES):
        metadata.properties.add(key=key, value=value)
    if draw(st.booleans()):
        metadata.partition_key = draw(TEXTS)
    size = 1
    if draw(st.booleans()):
        batch = draw(st.lists(st.tuples(single_metadata(), PAYLOADS), min_size=1, max_size=6))
        # Now and then a batch that has more messages than it says, or fewer.
        size = metadata.num_messages_in_batch = max(len(batch) + draw(st.sampled_from([0, 0, 0, 0, -1, 1])), 1)
        body = bytearray()
        for single, content in batch:
            append_to_batch(body, single, content)
        payload = bytes(body)
    else:
        payload = draw(PAYLOADS)
        metadata.null_value = draw(st.integers(0, 9)) == 0
    codec = draw(st.sampled_from([NONE, NONE, LZ4, ZLIB, ZSTD, SNAPPY]))
    if codec != NONE:
        metadata.compression, metadata.uncompressed_size = codec, len(payload)
        payload = compression.compress(payload, codec)
    return encode_entry(metadata, payload), size


def rows(
    topic: ScriptedTopic, worth_messages: int, large_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> list[dict[str, Any]] | str:
    monkeypatch.setattr(decode, "_WORTH_MESSAGES", worth_messages)
    monkeypatch.setattr(messages, "LARGE_MESSAGE_BYTES", large_bytes)
    fetched = [FetchedBlock(at, memoryview(block)) for at, _, block in topic.blocks]
    try:
        batches = list(decode.message_batches(fetched, "us", "t", BEFORE_ALL, Position(99, 0), schema.COLUMNS))
    except EntryUnreadable as error:
        return str(error)
    for batch in batches:
        batch.validate(full=True)
    return [row for batch in batches for row in batch.to_pylist()]


@given(blocks=st.lists(st.lists(entries(), min_size=1, max_size=4), min_size=1, max_size=3))
def test_decoding_at_once_gives_what_decoding_one_by_one_gives(blocks: list[list[tuple[bytes, int]]]) -> None:
    topic = ScriptedTopic("us")
    for block in blocks:
        topic.publish(*(entry for entry, _ in block), sizes=[size for _, size in block])
        topic.publish(marker_entry(10), kind=BlockKind.MARKERS)
    with pytest.MonkeyPatch.context() as monkeypatch:
        one_by_one = rows(topic, 10**9, 0, monkeypatch)
        assert rows(topic, 0, 10**9, monkeypatch) == one_by_one, "where all messages are guessed"
        assert rows(topic, 0, 0, monkeypatch) == one_by_one, "where they are large"


@given(
    block=st.lists(entries(), min_size=1, max_size=4),
    damage=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=3),
)
def test_what_is_not_of_the_form_is_the_same_error_or_the_same_rows_at_once_and_one_by_one(
    block: list[tuple[bytes, int]], damage: list[tuple[int, int]]
) -> None:
    """The block's checksum is right: a producer wrote it so."""
    topic = ScriptedTopic("us")
    damaged = []
    for entry, _ in block:
        content = bytearray(entry)
        for at, byte in damage:
            content[at % len(content)] = byte
        damaged.append(bytes(content))
    topic.publish(*damaged, sizes=[size for _, size in block])
    with pytest.MonkeyPatch.context() as monkeypatch:
        one_by_one = rows(topic, 10**9, 0, monkeypatch)
        assert rows(topic, 0, 10**9, monkeypatch) == one_by_one, "where all messages are guessed"
        assert rows(topic, 0, 0, monkeypatch) == one_by_one, "where they are large"
