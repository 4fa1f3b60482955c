from __future__ import annotations

import contextlib
import subprocess
import sys
from itertools import pairwise

import pyarrow as pa
import pytest
from engine_support import make_block
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.arrow import (
    APPEND_SCHEMA,
    BLOCK_SCHEMA,
    JOINED_BYTES_MAX,
    NOTES_KEY,
    PIECE_BYTES_MIN,
    Outgoing,
    decode_append,
    encode_append,
    encode_read,
    notes_of,
)
from replicator.engine.log.block import read_header
from replicator.engine.log.stored_blocks import StoredBlock
from snapshots.position import BEFORE_ALL, Position

FRAME = b"".join(
    encode_append(
        [
            Outgoing("a", BEFORE_ALL, make_block(Position(5, 0), [b"one", b"two"])),
            Outgoing("b", Position(3, -1), make_block(Position(3, 0), [b"x" * 100])),
            Outgoing("a", Position(5, 1), make_block(Position(5, 2), [b"three"]), True),
        ]
    )
)


def stream_of(schema: pa.Schema, *columns: list[object]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(
            pa.record_batch([pa.array(c, f.type) for c, f in zip(columns, schema, strict=True)], schema=schema)
        )
    return sink.getvalue().to_pybytes()


origin_positions = st.builds(Position, st.integers(0, 2**64 - 1), st.integers(-1, 2**62))


outgoing = st.builds(Outgoing, st.sampled_from("abc"), origin_positions, st.binary(max_size=80), st.booleans())


@given(st.lists(outgoing, max_size=20))
def test_blocks_come_back_by_topic_in_order(rows: list[Outgoing]) -> None:
    decoded = decode_append(b"".join(encode_append(rows)))
    assert list(decoded) == list(dict.fromkeys(row.topic for row in rows))
    for name, copied in decoded.items():
        expected = [row[1:] for row in rows if row.topic == name]
        assert [(block.previous, bytes(block.block), block.left_out) for block in copied] == expected


def test_a_stream_without_blocks_is_a_sign_of_life() -> None:
    assert decode_append(b"".join(encode_append(()))) == {}


@given(st.lists(st.sampled_from([0, 1, 700, PIECE_BYTES_MIN - 1, PIECE_BYTES_MIN, 300_000]), max_size=8))
def test_large_blocks_are_pieces_of_the_stream_as_they_are(sizes: list[int]) -> None:
    blocks = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    rows = [Outgoing("ab"[number % 2], Position(1, number), block) for number, block in enumerate(blocks)]
    pieces = encode_append(rows)
    if sum(sizes) > JOINED_BYTES_MAX:
        large = {id(block) for block in blocks if len(block) >= PIECE_BYTES_MIN}
        assert large <= {id(piece) for piece in pieces}, "they are not copied"
        smaller = [len(piece) < PIECE_BYTES_MIN for piece in pieces]
        assert (True, True) not in set(pairwise(smaller)), "small neighbours are joined"
    by_arrow = stream_of(
        APPEND_SCHEMA,
        [row.topic for row in rows],
        [row.previous.ledger for row in rows],
        [row.previous.entry for row in rows],
        [row.left_out for row in rows],
        blocks,
    )
    joined = b"".join(pieces)
    assert len(joined) == len(by_arrow)
    assert pa.ipc.open_stream(joined).read_all() == pa.ipc.open_stream(by_arrow).read_all()
    found = decode_append(joined)
    assert [bytes(each.block) for topic in "ab" for each in found.get(topic, ())] == blocks[::2] + blocks[1::2]


def test_a_page_of_a_topic_has_position_size_and_bytes_of_each_block() -> None:
    block = make_block(Position(9, 4), [b"a", b"b"])
    page = pa.ipc.open_stream(encode_read([StoredBlock(Position(7, 1), read_header(block), block)])).read_all()
    assert page.schema == BLOCK_SCHEMA
    assert page.to_pylist() == [{"ledger": 7, "first": 1, "entries": 2, "block": block}]


@given(st.integers(0, len(FRAME) - 1))
def test_a_stream_that_is_cut_anywhere_is_refused_or_whole(cut: int) -> None:
    """The end mark of a stream may be missing: everything is there then. Nothing is ever taken in part."""
    try:
        decoded = decode_append(FRAME[:cut])
    except BlockCorrupt:
        return
    assert {topic: len(blocks) for topic, blocks in decoded.items()} in ({"a": 2, "b": 1}, {})


@given(st.integers(0, len(FRAME) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_leaves_values_that_later_checks_see(at: int, change: int) -> None:
    changed = bytearray(FRAME)
    changed[at] ^= change
    with contextlib.suppress(BlockCorrupt):
        decode_append(bytes(changed))


@given(st.binary(max_size=400))
def test_noise_is_refused(noise: bytes) -> None:
    with pytest.raises(BlockCorrupt):
        decode_append(noise)


@pytest.mark.parametrize("missing", range(5))
def test_a_missing_value_is_refused(missing: int) -> None:
    columns: list[list[object]] = [["a"], [1], [2], [False], [b"block"]]
    columns[missing] = [None]
    with pytest.raises(BlockCorrupt, match="missing"):
        decode_append(stream_of(APPEND_SCHEMA, *columns))


def test_other_columns_are_refused_by_name() -> None:
    with pytest.raises(BlockCorrupt, match="columns"):
        decode_append(encode_read([]).to_pybytes())


def test_a_worker_that_has_just_started_imports_no_pandas_to_copy() -> None:
    """The import would block it for half a second at the first frame."""
    script = (
        "import sys\n"
        "from replicator.engine.log.arrow import Outgoing, decode_append, encode_append\n"
        "from snapshots.position import Position\n"
        "decode_append(b''.join(encode_append([Outgoing('t', Position(1, 2), b'x' * 300_000)])))\n"
        "sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("block_bytes", [100, JOINED_BYTES_MAX + 1])
def test_notes_of_traces_go_beside_the_blocks_of_a_frame(block_bytes: int) -> None:
    blocks = [Outgoing("t", Position(1, 2), bytes(block_bytes)), Outgoing("u", Position(3, 4), b"x")]
    notes = b"\x00any bytes\xff" * 4000
    plain, noted = (b"".join(encode_append(blocks, each)) for each in (b"", notes))
    assert (notes_of(plain), notes_of(memoryview(noted))) == (b"", notes)
    assert decode_append(plain) == decode_append(noted)


@pytest.mark.parametrize("body", [b"", b"\xff\xff\xff\xff\xff\xff\xff\x7f" + NOTES_KEY, bytes(8) + NOTES_KEY])
def test_a_body_that_is_no_stream_has_no_notes(body: bytes) -> None:
    assert notes_of(body) == b""
