from __future__ import annotations

import contextlib
import subprocess
import sys

import pyarrow as pa
import pytest
from engine_support import make_block
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.arrow import APPEND_SCHEMA, BLOCK_SCHEMA, Outgoing, decode_append, encode_append, encode_read
from replicator.engine.log.block import read_header
from replicator.engine.log.store import StoredBlock
from snapshots.position import BEFORE_ALL, Position

FRAME = encode_append(
    [
        Outgoing("a", BEFORE_ALL, make_block(Position(5, 0), [b"one", b"two"])),
        Outgoing("b", Position(3, -1), make_block(Position(3, 0), [b"x" * 100])),
        Outgoing("a", Position(5, 1), make_block(Position(5, 2), [b"three"]), True),
    ]
).to_pybytes()


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
    decoded = decode_append(encode_append(rows).to_pybytes())
    assert list(decoded) == list(dict.fromkeys(row.topic for row in rows))
    for name, copied in decoded.items():
        expected = [row[1:] for row in rows if row.topic == name]
        assert [(block.previous, bytes(block.block), block.left_out) for block in copied] == expected


def test_a_stream_without_blocks_is_a_sign_of_life() -> None:
    assert decode_append(encode_append(()).to_pybytes()) == {}


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
    """It would stand still for half a second at the first frame."""
    script = (
        "import sys\n"
        "from replicator.engine.log.arrow import Outgoing, decode_append, encode_append\n"
        "from snapshots.position import Position\n"
        "decode_append(encode_append([Outgoing('t', Position(1, 2), b'x')]).to_pybytes())\n"
        "sys.exit('pandas' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
