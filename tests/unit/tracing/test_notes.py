"""The table of notes, and its form on the wire."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from replicator.tracing.context import ProducedContext, TraceContext, parse_traceparent, traceparent
from replicator.tracing.notes import FRAME_NOTES_MAX, CarriedNotes, Note, NoteTable, decode_notes, encode_notes
from snapshots.position import Position

T, A, B = "persistent://public/default/t", "us-east", "eu-west"


def note(ledger: int, entry: int, index: int = 0, span: int = 7) -> Note:
    return Note(Position(ledger, entry), index, TraceContext(1 << 100, span))


def test_notes_are_found_by_a_blocks_range_and_by_position() -> None:
    table = NoteTable(100)
    for each in (note(5, 1), note(5, 9), note(5, 4), note(5, 4, 3), note(6, 0)):
        table.put(T, A, each)
    table.put(T, B, note(5, 5))
    assert sorted(table.between(T, A, Position(5, 2), Position(5, 9))) == [note(5, 4), note(5, 4, 3), note(5, 9)]
    assert table.between(T, A, Position(5, 10), Position(5, 99)) == []
    assert table.between("other", A, Position(0, 0), Position(9, 9)) == []
    (of_topic,) = table.of(T)
    assert of_topic.by_position[Position(5, 4)] == {(A, 0): note(5, 4), (A, 3): note(5, 4, 3)}
    assert (len(table), table.forgotten) == (6, 0)


def test_a_message_that_is_noted_again_counts_once() -> None:
    table = NoteTable(100)
    table.put(T, A, note(5, 1, span=1))
    table.put(T, A, note(5, 1, span=2))
    assert table.between(T, A, Position(0, 0), Position(9, 9)) == [note(5, 1, span=2)]
    assert len(table) == 1


def test_the_youngest_notes_are_kept_and_no_more_than_may_be() -> None:
    table = NoteTable(100)
    for number in range(1_000):
        table.put(T, A, note(5, number))
        assert len(table) <= 100
    kept = table.between(T, A, Position(0, 0), Position(9, 9))
    assert note(5, 999) in kept
    assert len(kept) == len(table) >= 50
    assert table.forgotten == 1_000 - len(table)


def test_notes_go_over_a_link_as_they_are() -> None:
    blocks = [
        CarriedNotes(T, A, TraceContext(2**128 - 1, 2**64 - 1), [note(2**63, 0, 99_999), note(2**63, 4)]),
        CarriedNotes(T, f"{B}.pulsar", TraceContext(3, 4), [note(1, 1)]),
        CarriedNotes("persistent://public/default/ü", A, TraceContext(5, 6), [note(1, 1)]),
    ]
    assert decode_notes(encode_notes(blocks)) == {T: blocks[:2], "persistent://public/default/ü": blocks[2:]}
    assert decode_notes(b"") == {}


def test_a_frame_has_no_more_notes_than_may_be() -> None:
    block = CarriedNotes(T, A, TraceContext(1, 2), [note(1, number) for number in range(FRAME_NOTES_MAX - 1)])
    (first, second) = decode_notes(encode_notes([block, block, block]))[T]
    assert (len(first.notes), len(second.notes)) == (FRAME_NOTES_MAX - 1, 1)


@pytest.mark.parametrize(
    "content",
    [
        encode_notes([CarriedNotes(T, A, TraceContext(1, 2), [note(1, 1)])])[:-1],
        b"\xff\xff\x00\x00\x01\x00short",
        b"\x01\x00\x00\x00\x00\x00\xff" + bytes(24),
        b"".join(
            encode_notes([CarriedNotes(T, A, TraceContext(1, 2), [note(1, n) for n in range(600)])]) for _ in range(2)
        ),
    ],
    ids=["cut off", "name cut off", "no text", "too many"],
)
def test_what_is_no_notes_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError):
        decode_notes(content)


@dataclass(frozen=True)
class Text:
    text: str
    sampled: bool | None


VALID = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-"


@pytest.mark.parametrize(
    "case",
    [
        Text(f"{VALID}01", True),
        Text(f"{VALID}03", True),
        Text(f"{VALID}00", False),
        Text(f"01{VALID[2:]}01-more", True),  # a later version may have more
        Text(f"{VALID}01-more", None),
        Text(f"ff{VALID[2:]}01", None),
        Text(f"{VALID.upper()}01", None),
        Text("00-00000000000000000000000000000000-b7ad6b7169203331-01", None),
        Text("00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01", None),
        Text("", None),
        Text(f" {VALID}01", None),
    ],
    ids=lambda case: case.text,
)
def test_a_traceparent_says_whether_it_is_sampled(case: Text) -> None:
    context = TraceContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)
    found = parse_traceparent(case.text)
    assert found == (None if case.sampled is None else ProducedContext(context, case.sampled))
    assert traceparent(context) == f"{VALID}01"
