"""Messages that are encoded by columns have the bytes that protobuf gives them one by one."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.log.entry import append_to_batch
from replicator.metadata.metadata_pb2 import SingleMessageMetadata
from replicator.pipeline.sink.batch_encoding import EncodedMessages, encode_messages

Row = tuple[bytes | None, str | None, list[tuple[str, str | None]] | None, int | None]

sizes = st.sampled_from([0, 1, 127, 128, 20_000])
rows_of_any_kind = st.tuples(
    st.none() | sizes.map(lambda size: b"x" * size),
    st.none() | st.text(max_size=5) | sizes.map(lambda size: "k" * size),
    st.none() | st.lists(st.tuples(st.text(max_size=3), st.none() | st.text(max_size=3)), max_size=3),
    st.none() | st.sampled_from([0, 1, 127, 128, 1_795_281_379_386, 2**63 - 1]),
)


def one_by_one(row: Row) -> bytes:
    payload, key, properties, event_time_ms = row
    metadata = SingleMessageMetadata(payload_size=0)
    for name, value in properties or ():
        metadata.properties.add(key=name, value=value or "")
    if key is not None:
        metadata.partition_key = key
    if event_time_ms is not None:
        metadata.event_time = event_time_ms
    if payload is None:
        metadata.null_value = True
    batch = bytearray()
    append_to_batch(batch, metadata, payload or b"")
    return bytes(batch)


def encode(rows: list[Row], skip: int = 0) -> EncodedMessages:
    payload, key, properties, event_time = (list(column) for column in zip(*rows, strict=True))
    return encode_messages(
        pa.array(payload, pa.binary()).slice(skip),
        key=pa.array(key, pa.string()).slice(skip),
        properties=pa.array(properties, pa.map_(pa.string(), pa.string())).slice(skip),
        event_time_ms=pa.array(event_time, pa.int64()).slice(skip),
    )


@given(st.lists(rows_of_any_kind, min_size=1, max_size=12), st.integers(0, 3))
def test_the_bytes_are_those_of_protobuf_also_of_a_slice(rows: list[Row], skip: int) -> None:
    skip = min(skip, len(rows) - 1)
    encoded = encode(rows, skip)
    assert [bytes(encoded.payload(row, row + 1)) for row in range(len(encoded))] == [
        one_by_one(row) for row in rows[skip:]
    ]


def test_columns_that_are_not_there_cost_nothing() -> None:
    encoded = encode_messages(pa.array(["ab", "c"]), key=None, properties=None, event_time_ms=None)
    assert bytes(encoded.payload(0, 2)) == one_by_one((b"ab", None, None, None)) + one_by_one((b"c", None, None, None))


def test_batches_end_by_messages_or_bytes_and_hold_at_least_one_message() -> None:
    encoded = encode([(b"x" * size, None, None, None) for size in (10, 10, 10, 500, 10, 10)])

    def cut(messages_max: int, bytes_max: int, start: int = 0) -> list[tuple[int, int]]:
        return list(encoded.batches(start, 6, messages_max=messages_max, bytes_max=bytes_max))

    assert cut(2, 10_000) == [(0, 2), (2, 4), (4, 6)]
    assert cut(10, 40) == [(0, 2), (2, 3), (3, 4), (4, 6)]
    assert cut(4, 10_000, start=3) == [(3, 6)]
