"""Ack vectors: a subscription's acknowledged messages by identity, the same everywhere (DESIGN 4.4). Pure.

A message's identity is (origin, origin position, batch index). For each origin a vector holds

- *ranges* ``(after, upto]``: all messages of the origin in between. The claimant has all of them, or knows that other
  positions hold no message of that origin. The part up to mark-delete is announced as ranges;
- *positions* beyond: whole entries, in compressed bitmaps;
- *batches*: partly acknowledged entries, each with the bitmap of its acknowledged indexes.

Merging is by union of each, so it is commutative, associative and idempotent (invariant 6). A topic that was deleted
and made anew at its origin has several lives. Positions of a later life are greater than all of an earlier one, so a
vector holds the acknowledgements of all lives side by side, and the newest incarnation that its claimant knows. No
range spans two lives, because claims are made ledger by ledger.

The order inside a vector has no meaning, so a vector can be split into parts that are merged one by one.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyroaring import BitMap

from snapshots.position import Position
from snapshots.position_set import PositionSet

PART_BYTES_TARGET: Final = 1024 * 1024
"""Target size of one part of a vector. A part is sent in a marker; a marker is an entry, of at most about 5 MiB."""
BITMAP_POSITIONS_MAX: Final = 1 << 22
"""Longest distance between the first and the last position of one bitmap on the wire: 64 containers of 8 kB each."""
_RANGE_BYTES: Final = 48
_BATCH_BYTES: Final = 24

Range = tuple[Position, Position]
"""Positions after the first one, up to and including the second: ``(after, upto]``."""


@dataclass(slots=True)
class OriginAcks:
    """Acknowledged positions of one origin's messages. Ranges ascend and are disjoint."""

    incarnation: int
    """Newest incarnation of the topic at the origin that the claimant knows."""
    ranges: list[Range] = field(default_factory=list)
    positions: PositionSet = field(default_factory=PositionSet)
    batches: dict[Position, BitMap] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.ranges or self.positions or self.batches)

    def merge(self, other: OriginAcks) -> None:
        """Add the acknowledgements of ``other``, also those in other lives of the topic at the origin."""
        self.incarnation = max(self.incarnation, other.incarnation)
        self.ranges = merged_ranges([*self.ranges, *other.ranges])
        self.positions.update(other.positions)
        for position, indexes in other.batches.items():
            mine = self.batches.get(position)
            self.batches[position] = indexes if mine is None else mine | indexes

    def discard_through(self, position: Position) -> None:
        """Remove the acknowledgements of the origin's entries up to ``position``."""
        self.ranges = [(max(after, position), upto) for after, upto in self.ranges if upto > position]
        self.positions.discard_through(position)
        self.batches = {at: indexes for at, indexes in self.batches.items() if at > position}

    def discard_above(self, position: Position) -> None:
        """Remove the acknowledgements of the origin's entries after ``position``."""
        self.ranges = [(after, min(upto, position)) for after, upto in self.ranges if after < position]
        self.positions.discard_above(position)
        self.batches = {at: indexes for at, indexes in self.batches.items() if at <= position}

    def covers(self, position: Position) -> bool:
        """Return whether the whole entry at ``position`` is acknowledged."""
        at = bisect_left(self.ranges, position, key=lambda each: each[1])  # the first that ends at or above it
        return position in self.positions or (at < len(self.ranges) and self.ranges[at][0] < position)

    def copy(self) -> OriginAcks:
        return OriginAcks(self.incarnation, list(self.ranges), self.positions.copy(), dict(self.batches))


@dataclass(slots=True)
class AckVector:
    """Acknowledgements by origin. An origin without acknowledgements is one that the claimant knows."""

    origins: dict[str, OriginAcks] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Return whether anything is acknowledged."""
        return any(self.origins.values())

    def merge(self, other: AckVector) -> None:
        for origin, acks in other.origins.items():
            mine = self.origins.get(origin)
            if mine is None:
                self.origins[origin] = acks.copy()
            else:
                mine.merge(acks)

    def copy(self) -> AckVector:
        return AckVector({origin: acks.copy() for origin, acks in self.origins.items()})

    def parts(self) -> Iterator[tuple[AckVector, int]]:
        """Yield one or more vectors whose union is this one, of about :data:`PART_BYTES_TARGET` encoded bytes at most.

        Each vector names all origins, and comes with about its size in bytes.
        """
        part, size = self._empty(), 0
        for origin, acks in self.origins.items():
            for piece, piece_bytes in _pieces(acks):
                if size and size + piece_bytes > PART_BYTES_TARGET:
                    yield part, size
                    part, size = self._empty(), 0
                part.origins[origin].merge(piece)
                size += piece_bytes
        yield part, size

    def _empty(self) -> AckVector:
        return AckVector({origin: OriginAcks(acks.incarnation) for origin, acks in self.origins.items()})


def merged_ranges(ranges: Iterable[Range]) -> list[Range]:
    """Return the positions of ``ranges`` as the fewest ranges, ascending and disjoint."""
    merged: list[Range] = []
    for after, upto in sorted(ranges):
        if upto <= after:
            continue
        if merged and after <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], upto)
        else:
            merged.append((after, upto))
    return merged


def without(ranges: Iterable[Range], holes: Iterable[Range]) -> list[Range]:
    """Return the parts of ``ranges`` that lie in none of ``holes``, by the fewest ranges, ascending and disjoint.

    The time grows with the number of ranges and holes together, apart from sorting them.
    """
    left: list[Range] = []
    cuts = merged_ranges(holes)
    at = 0
    for start, upto in merged_ranges(ranges):
        after = start
        while at < len(cuts) and cuts[at][1] <= after:
            at += 1
        while at < len(cuts) and cuts[at][0] < upto:
            if after < cuts[at][0]:
                left.append((after, cuts[at][0]))
            after = max(after, cuts[at][1])
            if after >= upto:
                break  # the cut may reach into the next range
            at += 1
        if after < upto:
            left.append((after, upto))
    return left


def within(ranges: Iterable[Range], holes: Iterable[Range]) -> list[Range]:
    """Return the parts of ``ranges`` that lie in one of ``holes``. In both arguments, ranges ascend without overlap."""
    found: list[Range] = []
    left, wanted = iter(ranges), iter(holes)
    each, hole = next(left, None), next(wanted, None)
    while each is not None and hole is not None:
        after, upto = max(each[0], hole[0]), min(each[1], hole[1])
        if after < upto:
            found.append((after, upto))
        if each[1] < hole[1]:
            each = next(left, None)
        else:
            hole = next(wanted, None)
    return found


def union(vectors: Iterable[AckVector]) -> AckVector:
    """Return all vectors merged into a new one. The given ones do not change."""
    result = AckVector()
    for vector in vectors:
        result.merge(vector)
    return result


def as_data(vector: AckVector) -> Mapping[str, object]:
    """Return the vector for JSON, exact, with runs instead of bitmaps. Equal vectors give equal data."""
    return {
        origin: {
            "incarnation": acks.incarnation,
            "ranges": [[str(after), str(upto)] for after, upto in acks.ranges],
            "beyond": [[str(first), str(last)] for first, last in acks.positions.runs()],
            "batches": {str(position): list(acks.batches[position]) for position in sorted(acks.batches)},
        }
        for origin, acks in sorted(vector.origins.items())
    }


def from_data(rows: Mapping[str, Any]) -> AckVector:
    """Return the vector that :func:`as_data` gave as ``rows``.

    Raises ValueError, KeyError, TypeError, AttributeError or InvalidPosition if ``rows`` are malformed.
    """
    vector = AckVector()
    for origin, row in rows.items():
        acks = vector.origins[str(origin)] = OriginAcks(int(row["incarnation"]))
        acks.ranges = [(Position.parse(after), Position.parse(upto)) for after, upto in row["ranges"]]
        for first, last in ((Position.parse(a), Position.parse(b)) for a, b in row["beyond"]):
            acks.positions.add_range(first.ledger, first.entry, last.entry)
        acks.batches = {Position.parse(at): BitMap(indexes) for at, indexes in row["batches"].items()}
    return vector


def claimed(acks: Mapping[str, Any]) -> list[Range]:
    """Return the positions that ``acks`` claims in whole or in part, as ascending and disjoint ranges.

    ``acks`` is the value of one origin in :func:`as_data`.
    """
    runs = [(Position.parse(first), Position.parse(last)) for first, last in acks.get("beyond", ())]
    runs += [(at, at) for at in map(Position.parse, acks.get("batches", ()))]
    ranges = [(Position.parse(after), Position.parse(upto)) for after, upto in acks.get("ranges", ())]
    return merged_ranges([*ranges, *((Position(first.ledger, first.entry - 1), last) for first, last in runs)])


def bitmap_pieces(bitmap: BitMap) -> Iterator[BitMap]:
    """Yield the bitmap in compact pieces that span at most :data:`BITMAP_POSITIONS_MAX` positions each."""
    rank = 0
    while rank < len(bitmap):
        low = bitmap[rank]
        piece = bitmap & BitMap(range(low, min(low + BITMAP_POSITIONS_MAX, 1 << 32)))
        rank += len(piece)
        piece.run_optimize()
        yield piece


def _pieces(acks: OriginAcks) -> Iterator[tuple[OriginAcks, int]]:
    """Yield the acknowledgements in pieces that are much smaller than a part, each with about its encoded bytes."""
    for each in acks.ranges:
        yield OriginAcks(acks.incarnation, ranges=[each]), _RANGE_BYTES
    for ledger, bitmap in acks.positions.by_ledger():
        for entries in bitmap_pieces(bitmap):
            positions = PositionSet()
            positions.add_entries(ledger, entries)
            yield OriginAcks(acks.incarnation, positions=positions), len(entries.serialize())
    for position, indexes in acks.batches.items():
        yield OriginAcks(acks.incarnation, batches={position: indexes}), _BATCH_BYTES + len(indexes.serialize())
