"""Holes: for each origin of a topic, the ranges that links may have left out. Pure.

Invariant (DESIGN §3): 5. A cluster may claim "all of origin A up to p" only if it has all of A up to p, or excludes
what it lacks. Otherwise a failback would mark messages as consumed that nobody consumed (DESIGN §4.4).

1. A link can send a block with the flag that it may have left messages out before it. The hole (``after``, ``upto``]
   then lies between the old high-water mark and the block's first entry. It is written in the block's transaction. If
   a filter leaves out the newest messages, a :class:`LeftOutNote` comes instead of a block.
2. High-water marks only grow, so a hole is never filled, and each new one lies above all others. The exception:
   trimming a batch that lacks messages (:mod:`replicator.engine.log.parts`) makes a hole below others.
3. If there are too many holes, the nearest ones are joined. Entries between joined holes then count as left out though
   they are here. That claims too little: it may repeat messages after a failback, but never skips one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import google_crc32c

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import ENTRY_IDS_MAX, LEDGER_MAX, BlockHeader
from replicator.engine.log.cluster_names import ORIGIN_PATTERN
from snapshots.position import Position

HOLES_MAX: Final = 1_000
"""Limit of holes of one topic and origin. A claim may have to list all of them, 16 bytes each."""
HOLES_KEPT: Final = 900
"""Number of holes that are left after too many were joined. Joining several at once saves comparing the distances each
time."""

Hole = tuple[Position, Position]
"""``after`` and ``upto``: entries at origin positions p with ``after < p <= upto`` may be missing here."""

_NOTE_MAGIC: Final = b"RHO1"
_CHECKSUM: Final = struct.Struct("<I")
_NOTE: Final = struct.Struct("<QQQ")
_ORIGIN_AT: Final = len(_NOTE_MAGIC) + _CHECKSUM.size + _NOTE.size
_ORIGIN: Final = re.compile(ORIGIN_PATTERN.encode())


@dataclass(frozen=True, slots=True)
class LeftOutNote:
    """Note that a link sends in place of a block: it left out all of ``origin`` up to ``upto`` that it did not send."""

    origin: str
    incarnation: int
    upto: Position


def note_of(header: BlockHeader) -> bytes:
    """Return the note that replaces a block that the destination may not have."""
    return encode_note(LeftOutNote(header.origin, header.incarnation, header.origin_last))


def encode_note(note: LeftOutNote) -> bytes:
    """Return the encoded note, little-endian: magic "RHO1" | crc32c | incarnation | ledger | entry | origin."""
    body = _NOTE.pack(note.incarnation, *note.upto) + note.origin.encode("ascii")
    return _NOTE_MAGIC + _CHECKSUM.pack(google_crc32c.value(body)) + body


def is_note(block: bytes | bytearray | memoryview) -> bool:
    """Return whether ``block`` is a note, and no block."""
    return bytes(block[: len(_NOTE_MAGIC)]) == _NOTE_MAGIC


def decode_note(block: bytes | bytearray | memoryview) -> LeftOutNote:
    """Return the decoded note. Raise :class:`BlockCorrupt` if it is damaged."""
    content = bytes(block[:1024])
    origin = content[_ORIGIN_AT:]
    if len(block) > len(content) or _ORIGIN.fullmatch(origin) is None:
        raise BlockCorrupt(
            f"a link's note of {len(block)} bytes, which says up to where messages were left out, names no cluster as "
            "their origin: run the same version at both ends"
        )
    (expected,) = _CHECKSUM.unpack_from(content, len(_NOTE_MAGIC))
    if google_crc32c.value(content[len(_NOTE_MAGIC) + _CHECKSUM.size :]) != expected:
        raise BlockCorrupt(
            "a link's note that says up to where messages were left out has a wrong checksum: it was damaged on the "
            "way, and is sent again"
        )
    incarnation, ledger, entry = _NOTE.unpack_from(content, len(_NOTE_MAGIC) + _CHECKSUM.size)
    if entry >= ENTRY_IDS_MAX or max(ledger, incarnation) > LEDGER_MAX:
        raise BlockCorrupt(
            f"a link's note says that messages were left out up to {ledger}:{entry}, life {incarnation}, where no "
            "message can be: run the same version at both ends"
        )
    return LeftOutNote(origin.decode("ascii"), incarnation, Position(ledger, entry))


def with_hole(holes: Sequence[Hole], after: Position, upto: Position) -> tuple[Hole, ...]:
    """Return ``holes`` and one more at their end, in order. Touching holes are merged; too many are joined."""
    assert after < upto
    if holes and after <= holes[-1][1]:
        return (*holes[:-1], (holes[-1][0], max(upto, holes[-1][1])))
    grown = (*holes, (after, upto))
    return grown if len(grown) <= HOLES_MAX else _joined(grown, HOLES_KEPT)


def with_holes_below(holes: Sequence[Hole], more: Iterable[Hole]) -> tuple[Hole, ...]:
    """Return ``holes`` and ``more``, which may lie anywhere, in order. Touching holes are merged; too many are
    joined."""
    merged: list[Hole] = []
    for after, upto in sorted([*holes, *more]):
        if merged and after <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], upto))
        else:
            merged.append((after, upto))
    return tuple(merged) if len(merged) <= HOLES_MAX else _joined(merged, HOLES_KEPT)


def _joined(holes: Sequence[Hole], kept: int) -> tuple[Hole, ...]:
    by_distance = sorted(range(1, len(holes)), key=lambda at: _distance(holes[at - 1][1], holes[at][0]))
    closed = set(by_distance[: len(holes) - kept])
    found: list[Hole] = []
    for at, hole in enumerate(holes):
        if at in closed:
            found[-1] = (found[-1][0], hole[1])
        else:
            found.append(hole)
    return tuple(found)


def _distance(end: Position, start: Position) -> tuple[int, int]:
    """Return a distance for comparison: first ledgers, then entries. The number of entries between ledgers is unknown,
    so holes in different ledgers are joined last."""
    return start.ledger - end.ledger, start.entry - end.entry
