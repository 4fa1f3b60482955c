"""Notes on traced messages of a topic: each has the span that continues the message's trace here. Pure.

A note is kept in memory, beside the log, under the message's identity: topic, origin, origin position, and index in its
batch. So it is the same note in every cluster, and it can be there before the block is.

Invariant 11 (DESIGN §3): the number of notes is limited. There are two halves; when the young one is full, the old one
is forgotten, without a search for the oldest notes.

Links bring notes along with the frame that has their blocks (:func:`encode_notes`), not in the messages.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from replicator.tracing.context import TraceContext
from snapshots.position import Position

FRAME_NOTES_MAX: Final = 1_000
"""Limit of notes in one frame; it bounds what a peer makes this end remember at once."""

_COUNTS: Final = struct.Struct("<HHH")
"""Lengths of the topic's and the origin's name, and number of notes."""
_BLOCK: Final = struct.Struct("<16s8s")
_NOTE: Final = struct.Struct("<QQI16s8s")


class Note(NamedTuple):
    """Note on one traced message. The next span continues ``context``."""

    position: Position
    """Position of the entry at its origin."""
    batch_index: int
    """Index in the batch; 0 for a message that is not batched."""
    context: TraceContext
    at_ns: int = 0
    """Time at which the note was made here, in nanoseconds."""


class CarriedNotes(NamedTuple):
    """Notes of one block on its way over a link; ``block`` is the span of the block."""

    topic: str
    origin: str
    block: TraceContext
    notes: Sequence[Note]


class TopicNotes:
    """Notes of one topic, in one half of the table."""

    __slots__ = ("_by_origin", "by_position")

    def __init__(self) -> None:
        self.by_position: dict[Position, dict[tuple[str, int], Note]] = {}
        """Notes by entry position, and then by origin and index in the batch."""
        self._by_origin: dict[str, list[Position]] = {}
        """Positions with notes by origin, in order."""

    def put(self, origin: str, note: Note) -> bool:
        """Add a note. Return whether it is new, rather than a replacement."""
        notes = self.by_position.setdefault(note.position, {})
        key = (origin, note.batch_index)
        new = key not in notes
        notes[key] = note
        positions = self._by_origin.setdefault(origin, [])
        if not positions or positions[-1] < note.position:
            positions.append(note.position)
        elif new and note.position not in positions[bisect_left(positions, note.position) :][:1]:
            insort(positions, note.position)
        return new

    def between(self, origin: str, first: Position, last: Position) -> Iterator[Note]:
        positions = self._by_origin.get(origin)
        if positions is None:
            return
        for at in range(bisect_left(positions, first), bisect_right(positions, last)):
            for (whose, _), note in self.by_position[positions[at]].items():
                if whose == origin:
                    yield note


class NoteTable:
    """Notes of all topics of a worker, ``notes_max`` at most."""

    def __init__(self, notes_max: int) -> None:
        self._half_max = max(1, notes_max // 2)
        self._young: dict[str, TopicNotes] = {}
        self._old: dict[str, TopicNotes] = {}
        self._young_notes = 0
        self._old_notes = 0
        self.forgotten = 0
        """Number of notes that were forgotten for younger ones."""

    def __len__(self) -> int:
        return self._young_notes + self._old_notes

    def put(self, topic: str, origin: str, note: Note) -> None:
        """Add a note, which replaces one of the same message."""
        of_topic = self._young.get(topic)
        if of_topic is None:
            of_topic = self._young[topic] = TopicNotes()
        self._young_notes += of_topic.put(origin, note)
        if self._young_notes >= self._half_max:
            self.forgotten += self._old_notes
            self._old, self._old_notes = self._young, self._young_notes
            self._young, self._young_notes = {}, 0

    def of(self, topic: str) -> Sequence[TopicNotes]:
        """Return the notes of a topic, the younger first; empty if it has none."""
        return [half[topic] for half in (self._young, self._old) if topic in half]

    def between(self, topic: str, origin: str, first: Position, last: Position) -> list[Note]:
        """Return the notes on traced messages that ``origin`` published at ``first`` to ``last``, both included."""
        found: dict[tuple[Position, int], Note] = {}
        for of_topic in self.of(topic):
            for note in of_topic.between(origin, first, last):
                found.setdefault((note.position, note.batch_index), note)
        return list(found.values())


def encode_notes(blocks: Sequence[CarriedNotes]) -> bytes:
    """Return the notes for the blocks of one frame as bytes; the first :data:`FRAME_NOTES_MAX` if there are more."""
    pieces: list[bytes] = []
    left = FRAME_NOTES_MAX
    for block in blocks:
        notes = block.notes[:left]
        left -= len(notes)
        if not notes:
            break
        topic, origin = block.topic.encode(), block.origin.encode()
        pieces += [_COUNTS.pack(len(topic), len(origin), len(notes)), topic, origin, _BLOCK.pack(*_packed(block.block))]
        pieces += [
            _NOTE.pack(note.position.ledger, note.position.entry, note.batch_index, *_packed(note.context))
            for note in notes
        ]
    return b"".join(pieces)


def decode_notes(content: bytes) -> Mapping[str, Sequence[CarriedNotes]]:
    """Return the notes in a frame by topic. Raises :class:`ValueError` for a wrong format, or more notes than a frame
    may have."""
    topics: dict[str, list[CarriedNotes]] = {}
    at, left = 0, FRAME_NOTES_MAX
    try:
        while at < len(content):
            topic_bytes, origin_bytes, count = _COUNTS.unpack_from(content, at)
            at += _COUNTS.size
            left -= count
            if left < 0:
                raise ValueError(
                    f"more than {FRAME_NOTES_MAX} notes of traces in a frame of a link: it is damaged, or of another "
                    "version"
                )
            topic = content[at : at + topic_bytes].decode()
            origin = content[at + topic_bytes : at + topic_bytes + origin_bytes].decode()
            at += topic_bytes + origin_bytes
            block = _context(*_BLOCK.unpack_from(content, at))
            at += _BLOCK.size
            notes: list[Note] = []
            for _ in range(count):
                ledger, entry, index, trace_id, span_id = _NOTE.unpack_from(content, at)
                at += _NOTE.size
                notes.append(Note(Position(ledger, entry), index, _context(trace_id, span_id)))
            topics.setdefault(topic, []).append(CarriedNotes(topic, origin, block, notes))
    except struct.error:
        raise ValueError(
            "the notes of traces in a frame of a link are cut off: it is damaged, or of another version"
        ) from None
    return topics


def _packed(context: TraceContext) -> tuple[bytes, bytes]:
    return context.trace_id.to_bytes(16, "big"), context.span_id.to_bytes(8, "big")


def _context(trace_id: bytes, span_id: bytes) -> TraceContext:
    return TraceContext(int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big"))
