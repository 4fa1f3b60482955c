"""What links have left out of a topic: for each origin, the holes in what is here of it. Pure.

Invariant (DESIGN §3): 5. "All of origin A up to p" may be said by a cluster only if it has all of A up to p, or
excludes what it does not have; otherwise a failback would mark as consumed what nobody consumed (DESIGN §4.4).

1. A hole (``after``, ``upto``] lies between the high-water mark that was here and the first entry of a block that a
   link sent with the note that it may have left something out before it. It is written in the block's transaction.
   Where a filter leaves out the last that there is, a :class:`LeftOutNote` comes instead of a block.
2. High-water marks only grow, so a hole is never filled, and each new one lies above all that are there. Only what is
   trimmed of batches of which a part was left out (:mod:`replicator.engine.log.parts`) becomes a hole below others.
3. Too many holes are joined where they are nearest. What lies between two that are joined then counts as left out
   though it is here: less is claimed than is known, which repeats messages after a failback and never skips one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import google_crc32c

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import BlockHeader
from replicator.engine.log.cluster_names import ORIGIN_PATTERN
from snapshots.position import Position

HOLES_MAX: Final = 1_000
"""Of one topic and origin: what a claim may have to list, 16 bytes each."""
HOLES_KEPT: Final = 900
"""Left when there were too many: joining some at once means that the distances are compared once in a hundred holes."""

Hole = tuple[Position, Position]
"""``after`` and ``upto``: origin positions p with ``after < p <= upto`` may be missing here."""

_NOTE_MAGIC: Final = b"RHO1"
_CHECKSUM: Final = struct.Struct("<I")
_NOTE: Final = struct.Struct("<QQQ")
_ORIGIN_AT: Final = len(_NOTE_MAGIC) + _CHECKSUM.size + _NOTE.size
_ORIGIN: Final = re.compile(ORIGIN_PATTERN.encode())


@dataclass(frozen=True, slots=True)
class LeftOutNote:
    """What a link sends instead of a block: it left out all of ``origin`` up to ``upto`` that it has not sent."""

    origin: str
    incarnation: int
    upto: Position


def note_of(header: BlockHeader) -> bytes:
    """What goes in the place of a block that is not for the destination."""
    return encode_note(LeftOutNote(header.origin, header.incarnation, header.origin_last))


def encode_note(note: LeftOutNote) -> bytes:
    """For the place of a block, little-endian: magic "RHO1" | crc32c | incarnation | ledger | entry | origin."""
    body = _NOTE.pack(note.incarnation, *note.upto) + note.origin.encode("ascii")
    return _NOTE_MAGIC + _CHECKSUM.pack(google_crc32c.value(body)) + body


def is_note(block: bytes | bytearray | memoryview) -> bool:
    """Whether that is a note, and no block."""
    return bytes(block[: len(_NOTE_MAGIC)]) == _NOTE_MAGIC


def decode_note(block: bytes | bytearray | memoryview) -> LeftOutNote:
    """Raises :class:`BlockCorrupt`."""
    content = bytes(block[:1024])
    origin = content[_ORIGIN_AT:]
    if len(block) > len(content) or _ORIGIN.fullmatch(origin) is None:
        raise BlockCorrupt(f"a note of {len(block)} bytes on what was left out names no origin")
    (expected,) = _CHECKSUM.unpack_from(content, len(_NOTE_MAGIC))
    if google_crc32c.value(content[len(_NOTE_MAGIC) + _CHECKSUM.size :]) != expected:
        raise BlockCorrupt("the checksum of a note on what was left out is wrong")
    incarnation, ledger, entry = _NOTE.unpack_from(content, len(_NOTE_MAGIC) + _CHECKSUM.size)
    if entry >= 1 << 32 or ledger >= 1 << 63:
        raise BlockCorrupt(f"a note on what was left out ends at {ledger}:{entry}, where nothing can be")
    return LeftOutNote(origin.decode("ascii"), incarnation, Position(ledger, entry))


def with_hole(holes: Sequence[Hole], after: Position, upto: Position) -> tuple[Hole, ...]:
    """``holes``, in order, and one more at their end; touching ones are merged, too many are joined."""
    assert after < upto
    if holes and after <= holes[-1][1]:
        return (*holes[:-1], (holes[-1][0], max(upto, holes[-1][1])))
    grown = (*holes, (after, upto))
    return grown if len(grown) <= HOLES_MAX else _joined(grown, HOLES_KEPT)


def with_holes_below(holes: Sequence[Hole], more: Iterable[Hole]) -> tuple[Hole, ...]:
    """``holes``, in order, and ``more``, wherever they lie; touching ones are merged, too many are joined."""
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
    """Inside of a ledger entries are counted; how many lie between two ledgers nobody knows here, so those are last."""
    return start.ledger - end.ledger, start.entry - end.entry
