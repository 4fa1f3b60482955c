"""Frames of rows: what goes in comes out, and what is cut, changed or made up is refused."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from engine_support import make_block
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.errors import BlockCorrupt, FrameTooLarge
from replicator.engine.log import arrow
from replicator.engine.log.arrow import JOINED_BYTES_MAX, PIECE_BYTES_MIN, ROWS_AT_ONCE, Outgoing, encode_append
from replicator.engine.log.frame_rows import MAGIC, decode_frame, decode_frame_by_steps, encode_rows
from snapshots.position import BEFORE_ALL, Position

FRAME = b"".join(
    encode_rows(
        [
            Outgoing("a", BEFORE_ALL, make_block(Position(5, 0), [b"one", b"two"])),
            Outgoing("b", Position(3, -1), make_block(Position(3, 0), [b"x" * 100])),
            Outgoing("b", Position(3, 0), make_block(Position(3, 1), [b"y"])),
            Outgoing("a", Position(5, 1), make_block(Position(5, 2), [b"three"]), True),
        ],
        b"notes",
    )
)
origin_positions = st.builds(Position, st.integers(0, 2**64 - 1), st.integers(-1, 2**62))
outgoing = st.builds(
    Outgoing, st.sampled_from(["a", "b", "ü/ñ"]), origin_positions, st.binary(max_size=80), st.booleans()
)


@given(st.lists(outgoing, max_size=20), st.binary(max_size=40))
def test_blocks_come_back_by_topic_in_order_with_the_notes(rows: list[Outgoing], notes: bytes) -> None:
    decoded, noted = decode_frame(b"".join(encode_rows(rows, notes)))
    assert noted == notes
    assert list(decoded) == list(dict.fromkeys(row.topic for row in rows))
    for name, copied in decoded.items():
        expected = [row[1:] for row in rows if row.topic == name]
        assert [(block.previous, bytes(block.block), block.left_out) for block in copied] == expected


@given(st.lists(outgoing, max_size=20))
def test_both_forms_of_a_frame_say_the_same(rows: list[Outgoing]) -> None:
    of_rows, of_arrow = (decode_frame(b"".join(encode(rows)))[0] for encode in (encode_rows, encode_append))
    for topic in of_arrow.keys() | of_rows.keys():
        for one, other in zip(of_rows[topic], of_arrow[topic], strict=True):
            assert (one.previous, bytes(one.block), one.left_out) == (
                other.previous,
                bytes(other.block),
                other.left_out,
            )


def test_notes_are_read_from_both_forms() -> None:
    rows = [Outgoing("t", Position(1, 2), b"block")]
    for encode in (encode_rows, encode_append):
        assert decode_frame(b"".join(encode(rows, b"notes")))[1] == b"notes"


def test_a_frame_without_blocks_is_a_sign_of_life() -> None:
    assert decode_frame(b"".join(encode_rows(()))) == ({}, b"")


@given(st.lists(st.sampled_from([0, 1, 700, PIECE_BYTES_MIN - 1, PIECE_BYTES_MIN, 300_000]), max_size=8))
def test_large_blocks_are_not_copied(sizes: list[int]) -> None:
    blocks = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    rows = [Outgoing("ab"[number % 2], Position(1, number), block) for number, block in enumerate(blocks)]
    pieces = encode_rows(rows)
    if sum(sizes) > JOINED_BYTES_MAX:
        large = {id(block) for block in blocks if len(block) >= PIECE_BYTES_MIN}
        assert large <= {id(piece) for piece in pieces}
    found, _ = decode_frame(b"".join(pieces))
    assert [bytes(each.block) for topic in "ab" for each in found.get(topic, ())] == blocks[::2] + blocks[1::2]


def test_a_small_frame_takes_little_more_than_its_blocks_and_names() -> None:
    name, block = "persistent://public/default/orders", make_block(Position(5, 0), [b"x" * 100])
    (frame,) = encode_rows([Outgoing(name, Position(5, number), block) for number in range(3)])
    assert len(frame) == 16 + 3 * (23 + len(block)) + len(name)


@pytest.mark.parametrize("end", range(len(FRAME)))
def test_a_frame_that_is_cut_anywhere_is_refused(end: int) -> None:
    with pytest.raises(BlockCorrupt):
        decode_frame(FRAME[:end])


def test_bytes_behind_a_frame_are_refused() -> None:
    with pytest.raises(BlockCorrupt, match="more bytes"):
        decode_frame(FRAME + b"x")


@given(st.integers(0, len(FRAME) - 1), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_leaves_values_that_later_checks_see(at: int, change: int) -> None:
    changed = bytearray(FRAME)
    changed[at] ^= change
    with contextlib.suppress(BlockCorrupt):
        decode_frame(bytes(changed))


@given(st.binary(max_size=400))
def test_noise_behind_the_magic_is_refused_or_has_no_more_than_it_says(noise: bytes) -> None:
    try:
        decoded, notes = decode_frame(MAGIC + noise)
    except BlockCorrupt:
        return
    assert sum(len(each.block) for blocks in decoded.values() for each in blocks) + len(notes) <= len(noise)


@pytest.mark.parametrize("encode", [encode_rows, encode_append])
def test_a_frame_with_more_rows_than_an_honest_link_sends_is_refused_before_they_are_read(
    monkeypatch: pytest.MonkeyPatch, encode: Callable[[Sequence[Outgoing]], list[Any]]
) -> None:
    frame = b"".join(encode([Outgoing("t", Position(1, number), b"block") for number in range(11)]))
    monkeypatch.setattr(arrow, "FRAME_ROWS_MAX", 10)
    steps = decode_frame_by_steps(frame)
    with pytest.raises(FrameTooLarge, match="frame of 11 blocks is over the limit of 10"):
        next(steps)


@pytest.mark.parametrize("encode", [encode_rows, encode_append])
@pytest.mark.parametrize("rows", [0, 1, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 3 * ROWS_AT_ONCE])
def test_whoever_decodes_a_large_frame_can_pause_between_parts_of_it(
    encode: Callable[[Sequence[Outgoing]], list[Any]], rows: int
) -> None:
    outgoing = [Outgoing("ab"[number % 2], Position(1, number), b"%d" % number) for number in range(rows)]
    frame = b"".join(encode(outgoing))
    steps = decode_frame_by_steps(frame)
    pauses, decoded = 0, None
    while decoded is None:
        try:
            next(steps)
            pauses += 1
        except StopIteration as end:
            decoded = end.value
    assert pauses >= (rows - 1) // ROWS_AT_ONCE
    assert decoded == decode_frame(frame)
    assert [bytes(block.block) for topic in decoded[0].values() for block in topic] == [
        each.block for topic in "ab" for each in outgoing if each.topic == topic
    ]


@pytest.mark.parametrize(
    ("head", "table", "why"),
    [
        ((2**32 - 1, 0, 0), b"", "no room for the table"),
        ((1, 2**32 - 1, 0), b"", "no room for the table"),
        ((0, 0, 2**32 - 1), b"", "no room for the table"),
        ((1, 23, 0), struct.pack("<HQqBI", 0, 1, 1, 0, 0), "no topic"),
        ((1, 24, 0), struct.pack("<HQqBI", 1, 1, 1, 2, 0) + b"t", "is wrong"),
        ((1, 24, 0), struct.pack("<HQqBI", 1, 1, 1, 0, 9) + b"t", "is wrong"),
        ((1, 24, 0), struct.pack("<HQqBI", 2, 1, 1, 0, 0) + b"t", "is wrong"),
        ((1, 24, 0), struct.pack("<HQqBI", 1, 1, 1, 0, 0) + b"\xff", "no text"),
        ((2, 46, 0), struct.pack("<HQqBI", 23, 1, 1, 0, 0) + b"t" * 23, "inside a row"),
        ((0, 1, 0), b"x", "more bytes"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(head: tuple[int, int, int], table: bytes, why: str) -> None:
    with pytest.raises(BlockCorrupt, match=why):
        decode_frame(struct.pack("<4sIII", MAGIC, *head) + table)
