"""Decoding of blocks into rows, without Spark and without a network."""

from __future__ import annotations

import tracemalloc
import zlib
from typing import Any

import pyarrow as pa
import pytest
from pyroaring import BitMap
from wire_worker import ScriptedTopic, batch_entry, marker_entry, single_entry

from replicator.engine.errors import BlockCorrupt, EntryCorrupt
from replicator.engine.log.block import BlockKind, build_block
from replicator.engine.log.compression import UNCOMPRESSED_BYTES_MAX
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.metadata.metadata_pb2 import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    KeyValue,
    MessageMetadata,
    SingleMessageMetadata,
)
from replicator.pipeline.data_plane import FetchedBlock
from replicator.pipeline.errors import EntryUnreadable
from replicator.pipeline.source import decode, schema
from snapshots.position import BEFORE_ALL, Position

END = Position(99, 0)


def batches(topic: ScriptedTopic, after: Position = BEFORE_ALL, upto: Position = END) -> list[pa.RecordBatch]:
    fetched = [FetchedBlock(at, memoryview(block)) for at, _, block in topic.blocks]
    return list(decode.message_batches(fetched, "eu", "t", after, upto, schema.COLUMNS))


def rows(topic: ScriptedTopic, after: Position = BEFORE_ALL, upto: Position = END) -> list[dict[str, Any]]:
    return [row for batch in batches(topic, after, upto) for row in batch.to_pylist()]


def entry_with(payload: bytes = b"x", **fields: Any) -> bytes:
    return encode_entry(
        MessageMetadata(**({"producer_name": "p", "sequence_id": 4, "publish_time": 5} | fields)), payload
    )


def rows_of(entry: bytes) -> list[dict[str, Any]]:
    topic = ScriptedTopic("us")
    topic.publish(entry)
    return rows(topic)


def test_a_batch_becomes_a_row_for_each_message_with_what_they_share_and_what_is_its_own() -> None:
    topic = ScriptedTopic("us")
    topic.publish(single_entry(b"first"), batch_entry([b"a", b"b"], key="k", sequence_id=40), sizes=[1, 2])
    first, a, b = rows(topic)
    assert (first["entry"], first["batch_index"], first["batch_size"], first["key"]) == (0, 0, 1, None)
    assert (a["entry"], a["batch_index"], a["payload"], a["sequence_id"]) == (1, 0, b"a", 40)
    assert (b["entry"], b["batch_index"], b["payload"], b["sequence_id"]) == (1, 1, b"b", 41)
    assert b["key"] == "k"
    assert b["batch_size"] == 2
    assert (b["cluster"], b["topic"], b["kind"], b["marker_type"]) == ("eu", "t", "message", None)
    assert (b["origin"], b["incarnation"], b["origin_ledger"], b["origin_entry"]) == ("us", 7, 3, 1)


def test_a_copied_entry_has_its_position_here_and_at_its_origin() -> None:
    origin, copy = ScriptedTopic("us"), ScriptedTopic("eu", next=Position(8, 100))
    copy.store(origin.publish(single_entry(b"a"), single_entry(b"b")))
    assert [(row["ledger"], row["entry"], row["origin_ledger"], row["origin_entry"]) for row in rows(copy)] == [
        (8, 100, 3, 0),
        (8, 101, 3, 1),
    ]


def test_a_marker_is_one_row_with_its_type() -> None:
    topic = ScriptedTopic("us")
    topic.publish(marker_entry(10), kind=BlockKind.MARKERS)
    topic.publish(marker_entry(12, b"own"), kind=BlockKind.LOCAL_MARKERS)
    copied, own = rows(topic)
    assert (copied["kind"], copied["marker_type"], copied["batch_size"]) == ("marker", 10, 0)
    assert (own["kind"], own["marker_type"], own["payload"]) == ("local_marker", 12, b"own")


def test_entries_outside_the_range_are_left_out() -> None:
    topic = ScriptedTopic("us")
    for first in range(0, 9, 3):
        topic.publish(*(single_entry(b"%d" % (first + index)) for index in range(3)))
    topic.open_ledger(5)
    topic.publish(single_entry(b"9"), single_entry(b"10"))
    payloads = [row["payload"] for row in rows(topic, Position(3, 1), Position(5, 0))]
    assert payloads == [b"%d" % number for number in range(2, 10)]


@pytest.mark.parametrize("codec", [NONE, ZLIB, LZ4, ZSTD, SNAPPY])
def test_compressed_batches_are_unpacked(codec: int) -> None:
    plain = bytearray()
    for payload in (b"abc" * 50, b"def" * 50):
        append_to_batch(plain, SingleMessageMetadata(payload_size=0), payload)
    names = {LZ4: "lz4_raw", ZSTD: "zstd", SNAPPY: "snappy"}
    if codec == NONE:
        packed = bytes(plain)
    elif codec == ZLIB:
        packed = zlib.compress(plain)
    else:
        packed = pa.Codec(names[codec]).compress(bytes(plain), asbytes=True)
    entry = entry_with(packed, compression=codec, uncompressed_size=len(plain), num_messages_in_batch=2)
    assert [row["payload"] for row in rows_of(entry)] == [b"abc" * 50, b"def" * 50]


@pytest.mark.parametrize(
    ("fields", "payload"),
    [
        ({"compression": ZLIB, "uncompressed_size": 10}, zlib.compress(b"x" * 1_000_000)),
        ({"compression": ZLIB, "uncompressed_size": 3}, zlib.compress(b"x")),
        ({"compression": ZLIB, "uncompressed_size": 3}, b"not zlib"),
        ({"compression": ZSTD, "uncompressed_size": 3}, b"not zstd"),
        ({"compression": LZ4, "uncompressed_size": 10}, pa.Codec("lz4_raw").compress(b"x" * 500, asbytes=True)),
        ({"num_messages_in_batch": 3}, b"\0\0"),
    ],
)
def test_an_entry_whose_payload_is_not_what_it_says_is_named(fields: dict[str, int], payload: bytes) -> None:
    with pytest.raises(EntryUnreadable, match=r"entry 3:0 of t in cluster eu cannot be read: ") as caught:
        rows_of(entry_with(payload, **fields))
    assert isinstance(caught.value.__cause__, EntryCorrupt)


def test_an_entry_that_says_it_unpacks_to_more_than_the_limit_is_refused_before_it_is_unpacked() -> None:
    plain = bytes(UNCOMPRESSED_BYTES_MAX + 1)
    bomb = entry_with(zlib.compress(plain), compression=ZLIB, uncompressed_size=len(plain))
    with pytest.raises(EntryUnreadable, match="more than the limit"):
        rows_of(bomb)


def test_a_block_with_a_flipped_bit_is_refused() -> None:
    topic = ScriptedTopic("us")
    block = bytearray(topic.publish(single_entry(b"payload")))
    block[-1] ^= 1
    topic.blocks = [(Position(3, 0), 1, bytes(block))]
    with pytest.raises(BlockCorrupt, match="checksum"):
        rows(topic)


def test_tombstones_null_keys_and_strange_metadata_do_not_stop_a_read() -> None:
    (tombstone,) = rows_of(entry_with(b"", null_value=True, partition_key="k"))
    assert (tombstone["payload"], tombstone["key"]) == (None, "k")
    (keyless,) = rows_of(entry_with(partition_key="ignored", null_partition_key=True))
    assert keyless["key"] is None
    (extreme,) = rows_of(entry_with(publish_time=2**64 - 1, sequence_id=2**64 - 1))
    assert (extreme["publish_time"], extreme["sequence_id"]) == (None, -1)
    (doubled,) = rows_of(entry_with(properties=[{"key": "a", "value": "1"}, {"key": "a", "value": "2"}]))
    assert doubled["properties"] == [("a", "2")]


def test_large_metadata_does_not_stop_a_read() -> None:
    large = "v" * 200_000  # more than a batch's messages are guessed to have
    (single,) = rows_of(entry_with(properties=[{"key": "a", "value": large}]))
    assert single["properties"] == [("a", large)]
    body = bytearray()
    for payload in (b"1", b"2"):
        own = SingleMessageMetadata(payload_size=0, properties=[KeyValue(key="a", value=large)])
        append_to_batch(body, own, payload)
    batched = rows_of(entry_with(bytes(body), num_messages_in_batch=2))
    assert [(row["payload"], row["properties"]) for row in batched] == [(b"1", [("a", large)]), (b"2", [("a", large)])]


def test_text_that_is_not_utf8_is_escaped() -> None:
    valid = entry_with(partition_key="\x7fkey")
    metadata_at = valid.index(b"\x7fkey")
    broken = valid[:metadata_at] + b"\xff" + valid[metadata_at + 1 :]
    (row,) = rows_of(broken)  # the block's checksum is right: this is what its producer sent
    assert row["key"] == "\\xffkey"


def test_an_encrypted_batch_keeps_its_row_count_and_its_sealed_payload() -> None:
    sealed = entry_with(b"sealed", num_messages_in_batch=3, encryption_keys=[{"key": "k", "value": b"v"}])
    assert [(row["batch_index"], row["payload"]) for row in rows_of(sealed)] == [(0, b"sealed"), (1, None), (2, None)]


def test_record_batches_are_bounded_by_rows_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = ScriptedTopic("us")
    for _ in range(10):
        topic.publish(single_entry(b"x" * 100), single_entry(b"x" * 100))
    monkeypatch.setattr(decode, "BATCH_ROWS_MAX", 8)
    assert [batch.num_rows for batch in batches(topic)] == [8, 8, 4]
    monkeypatch.setattr(decode, "BATCH_BYTES_MAX", 300)
    assert {batch.num_rows for batch in batches(topic)} == {2, 3}


def test_only_the_wanted_columns_are_made() -> None:
    topic = ScriptedTopic("us")
    topic.publish(batch_entry([b"a", b"b"]), sizes=[2])
    selection = pa.schema([schema.COLUMNS.field("batch_index"), schema.COLUMNS.field("topic")])
    fetched = [FetchedBlock(at, memoryview(block)) for at, _, block in topic.blocks]
    (batch,) = decode.message_batches(fetched, "eu", "t", BEFORE_ALL, END, selection)
    assert batch.to_pydict() == {"batch_index": [0, 1], "topic": ["t", "t"]}


def test_memory_stays_bounded_however_much_there_is_to_read_and_to_decompress() -> None:
    """400 MB, which are 2 MB as they are stored; what comes out is dropped, as Spark does."""
    body = bytearray()
    for _ in range(100):
        append_to_batch(body, SingleMessageMetadata(payload_size=0), bytes(50_000))
    compressed = pa.compress(bytes(body), codec="lz4_raw", asbytes=True)
    entry = entry_with(
        compressed, num_messages_in_batch=100, compression=LZ4, uncompressed_size=len(body), publish_time=1
    )
    topic = ScriptedTopic("us")
    block = topic.publish(*[entry] * 40, sizes=[100] * 40)
    tracemalloc.start()
    pool = pa.default_memory_pool()
    before = pool.bytes_allocated()
    decoder = decode.Decoder(schema.COLUMNS)
    rows_read = arrow_most = 0
    try:
        for number in range(2):
            fetched = FetchedBlock(Position(3, 40 * number), memoryview(block))
            for batch in decoder.add(fetched, "us", "t", BEFORE_ALL, END):
                rows_read += batch.num_rows
                arrow_most = max(arrow_most, pool.bytes_allocated() - before)
        rows_read += sum(batch.num_rows for batch in decoder.finish())
        _, python_most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows_read == 2 * 40 * 100
    # What was decompressed, its copy in one buffer, and Arrow's.
    assert python_most + arrow_most < 4 * decode.UNPACKED_BYTES_MAX


def test_messages_that_a_link_left_out_of_a_batch_have_no_row() -> None:
    block = build_block(
        kind=BlockKind.MESSAGES,
        origin="us",
        incarnation=7,
        origin_first=Position(3, 0),
        publish_time_ms=1,
        entries=[batch_entry([b"a", b"b", b"c"], sequence_id=5)] * 30,
        batch_sizes=[3] * 30,
        absent={entry: BitMap([1]) for entry in range(30)},
    )
    fetched = FetchedBlock(Position(8, 0), memoryview(block))
    read = [
        row
        for batch in decode.message_batches([fetched], "eu", "t", BEFORE_ALL, END, schema.COLUMNS)
        for row in batch.to_pylist()
    ]
    assert [(row["payload"], row["batch_index"], row["sequence_id"]) for row in read] == [
        (b"a", 0, 5),
        (b"c", 2, 7),
    ] * 30
