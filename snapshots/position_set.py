"""Sets of positions, compressed: for each ledger a roaring bitmap of entry ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from pyroaring import BitMap

from snapshots.position import Position

CHUNK_SHIFT: Final = 16
"""Bits of an entry id inside a chunk. A chunk is 65,536 entry ids of one ledger: one container of a roaring bitmap, 8
kB at most."""

_GALLOP_MAX: Final = 1 << 20
"""Limit of positions that are compared at once: 5 ms."""


def chunk_of(position: Position) -> tuple[int, int]:
    return position[0], position[1] >> CHUNK_SHIFT


class PositionSet:
    """Set of positions of one topic. Entry ids must lie in 0..2³²-1, which a ledger never outgrows."""

    __slots__ = ("_ledgers",)

    def __init__(self, positions: Iterable[Position] = ()) -> None:
        self._ledgers: dict[int, BitMap] = {}
        for position in positions:
            self.add(position)

    def __contains__(self, position: Position) -> bool:
        bitmap = self._ledgers.get(position[0])
        try:
            return bitmap is not None and position[1] in bitmap
        except OverflowError:  # no entry id: clients may ask for anything
            return False

    def __len__(self) -> int:
        return sum(len(bitmap) for bitmap in self._ledgers.values())

    def __bool__(self) -> bool:
        return bool(self._ledgers)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PositionSet) and self._ledgers == other._ledgers

    __hash__ = None  # type: ignore[assignment]

    def __iter__(self) -> Iterator[Position]:
        for ledger in sorted(self._ledgers):
            for entry in self._ledgers[ledger]:
                yield Position(ledger, entry)

    def add(self, position: Position) -> None:
        bitmap = self._ledgers.get(position[0])
        if bitmap is None:
            bitmap = self._ledgers[position[0]] = BitMap()
        bitmap.add(position[1])

    def add_range(self, ledger: int, first: int, last: int) -> None:
        """Add entries ``first`` to ``last`` of ``ledger``, both included."""
        if first <= last:
            self._bitmap(ledger).add_range(first, last + 1)

    def discard(self, position: Position) -> None:
        bitmap = self._ledgers.get(position[0])
        if bitmap is not None:
            bitmap.discard(position[1])
            if not bitmap:
                del self._ledgers[position[0]]

    def discard_through(self, position: Position) -> None:
        """Remove every position at or below ``position``."""
        if not self._ledgers:
            return
        for ledger in [ledger for ledger in self._ledgers if ledger < position[0]]:
            del self._ledgers[ledger]
        bitmap = self._ledgers.get(position[0])
        if bitmap is not None and position[1] >= 0:
            bitmap.remove_range(0, position[1] + 1)
            self._forget_if_empty(position[0])

    def after(self, position: Position) -> PositionSet:
        """Return a copy with only the positions above ``position``."""
        found = PositionSet()
        found._ledgers = {ledger: bitmap.copy() for ledger, bitmap in self._ledgers.items() if ledger >= position[0]}
        found.discard_through(position)
        return found

    def discard_after(self, position: Position) -> None:
        """Remove every position above ``position``."""
        for ledger in [ledger for ledger in self._ledgers if ledger > position[0]]:
            del self._ledgers[ledger]
        bitmap = self._ledgers.get(position[0])
        if bitmap is not None:
            bitmap.remove_range(max(position[1] + 1, 0), 2**32)
            self._forget_if_empty(position[0])

    def update(self, other: PositionSet) -> None:
        """Add all positions of ``other``."""
        for ledger, bitmap in other._ledgers.items():
            mine = self._ledgers.get(ledger)
            if mine is None:
                self._ledgers[ledger] = bitmap.copy()
            else:
                mine |= bitmap

    def difference_update(self, other: PositionSet) -> None:
        """Remove all positions of ``other``."""
        for ledger, bitmap in other._ledgers.items():
            mine = self._ledgers.get(ledger)
            if mine is not None:
                mine -= bitmap
                self._forget_if_empty(ledger)

    def intersection_update(self, other: PositionSet) -> None:
        """Keep only the positions that ``other`` has as well."""
        for ledger in list(self._ledgers):
            theirs = other._ledgers.get(ledger)
            if theirs is None:
                del self._ledgers[ledger]
            else:
                self._ledgers[ledger] &= theirs
                self._forget_if_empty(ledger)

    def common(self, other: PositionSet) -> PositionSet:
        """Return the positions that are in both sets."""
        found = PositionSet()
        for ledger, bitmap in self._ledgers.items():
            theirs = other._ledgers.get(ledger)
            if theirs is not None and (both := bitmap & theirs):
                found._ledgers[ledger] = both
        return found

    def ledgers(self) -> list[int]:
        """Return the ledgers that have positions in the set, in order."""
        return sorted(self._ledgers)

    def first(self) -> Position | None:
        if not self._ledgers:
            return None
        ledger = min(self._ledgers)
        return Position(ledger, self._ledgers[ledger].min())

    def head(self, count: int) -> list[Position]:
        """Return the lowest ``count`` positions, or all if there are fewer, in order."""
        found: list[Position] = []
        for ledger in sorted(self._ledgers):
            if len(found) >= count:
                break
            entries = self._ledgers[ledger][: count - len(found)]
            found.extend(Position(ledger, entry) for entry in entries)
        return found

    def run_end(self, position: Position) -> Position:
        """Return the last position of the run without holes that starts at ``position``, inside its ledger.

        It gallops over the bitmap's rank, so a run of n entries costs O(log n) look-ups.
        """
        bitmap = self._ledgers[position[0]]
        start = position[1]
        assert start in bitmap
        reach = 1
        while bitmap.range_cardinality(start, start + 2 * reach) == 2 * reach:
            reach *= 2
        step = reach
        while step:
            if bitmap.range_cardinality(start, start + reach + step) == reach + step:
                reach += step
            step //= 2
        return Position(position[0], start + reach - 1)

    def count_between(self, after: Position, upto: Position) -> int:
        """Return the number of positions p with ``after < p <= upto``."""
        total = 0
        for ledger, bitmap in self._ledgers.items():
            if ledger < after[0] or ledger > upto[0]:
                continue
            low = after[1] + 1 if ledger == after[0] else 0
            high = upto[1] + 1 if ledger == upto[0] else 2**32
            total += bitmap.range_cardinality(low, high) if low < high else 0
        return total

    def highest_through(self, position: Position) -> Position | None:
        """Return the highest position of the set at or below ``position``; None if there is none."""
        for ledger in sorted((ledger for ledger in self._ledgers if ledger <= position[0]), reverse=True):
            bitmap = self._ledgers[ledger]
            if ledger < position[0]:
                return Position(ledger, bitmap.max())
            if position[1] >= 0 and (rank := bitmap.rank(position[1])):
                return Position(ledger, bitmap[rank - 1])
        return None

    def next_after(self, position: Position) -> Position | None:
        """Return the lowest position of the set above ``position``; None if there is none."""
        for ledger in sorted(ledger for ledger in self._ledgers if ledger >= position[0]):
            bitmap = self._ledgers[ledger]
            if ledger > position[0] or position[1] < 0:
                return Position(ledger, bitmap.min())
            if position[1] < bitmap.max():
                return Position(ledger, bitmap.next_set_bit(position[1] + 1))
        return None

    def first_missing(self, other: PositionSet, after: Position) -> Position | None:
        """Return the lowest position above ``after`` that is in this set and not in ``other``; None if there is none.

        It gallops: it looks at one position first, and at ever longer parts of both sets while all of them are in
        ``other``.
        """
        for ledger in sorted(ledger for ledger in self._ledgers if ledger >= after[0]):
            mine, theirs = self._ledgers[ledger], other._ledgers.get(ledger)
            rank = mine.rank(after[1]) if ledger == after[0] and after[1] >= 0 else 0
            count = 1
            while rank < len(mine):
                if theirs is None:
                    return Position(ledger, mine[rank])
                missing = mine[rank : rank + count] - theirs
                if missing:
                    return Position(ledger, missing.min())
                rank += count
                count = min(8 * count, _GALLOP_MAX)
        return None

    def count_common(self, other: PositionSet) -> int:
        """Return the number of positions that are in both sets."""
        return sum(
            bitmap.intersection_cardinality(other._ledgers[ledger])
            for ledger, bitmap in self._ledgers.items()
            if ledger in other._ledgers
        )

    def by_ledger(self) -> Iterator[tuple[int, BitMap]]:
        """Yield each ledger with the bitmap of its entry ids, in order. The bitmaps are the set's own: do not change
        them."""
        for ledger in sorted(self._ledgers):
            yield ledger, self._ledgers[ledger]

    def add_entries(self, ledger: int, entries: BitMap) -> None:
        """Add entry ids of one ledger; the bitmap becomes the set's own."""
        mine = self._ledgers.get(ledger)
        if mine is not None:
            mine |= entries
        elif entries:
            self._ledgers[ledger] = entries

    def discard_above(self, position: Position) -> None:
        """Remove every position above ``position``."""
        for ledger in [ledger for ledger in self._ledgers if ledger > position[0]]:
            del self._ledgers[ledger]
        bitmap = self._ledgers.get(position[0])
        if bitmap is not None:
            bitmap.remove_range(max(position[1] + 1, 0), 1 << 32)
            self._forget_if_empty(position[0])

    def entries_in(self, ledger: int, first: int, last: int) -> BitMap:
        """Return the entry ids of ``ledger`` from ``first`` to ``last``, both included."""
        bitmap = self._ledgers.get(ledger)
        return BitMap() if bitmap is None else bitmap & BitMap(range(first, last + 1))

    def last(self) -> Position | None:
        if not self._ledgers:
            return None
        ledger = max(self._ledgers)
        return Position(ledger, self._ledgers[ledger].max())

    def runs(self) -> Iterator[tuple[Position, Position]]:
        """Yield the first and last position of each run without holes, in order."""
        for ledger in sorted(self._ledgers):
            bitmap = self._ledgers[ledger]
            entry: int | None = bitmap.min()
            while entry is not None:
                end = self.run_end(Position(ledger, entry))
                yield Position(ledger, entry), end
                rank = bitmap.rank(end.entry)
                entry = bitmap[rank] if rank < len(bitmap) else None

    def count_runs(self) -> int:
        """Return the number of runs without holes, without going through them."""
        return sum(len(bitmap) - bitmap.intersection_cardinality(bitmap.shift(1)) for bitmap in self._ledgers.values())

    def copy(self) -> PositionSet:
        copied = PositionSet()
        copied._ledgers = {ledger: bitmap.copy() for ledger, bitmap in self._ledgers.items()}
        return copied

    def serialize(self) -> list[tuple[int, bytes]]:
        """Return the id of each ledger with its portable roaring bytes."""
        return [(ledger, self._ledgers[ledger].serialize()) for ledger in sorted(self._ledgers)]

    def chunk_ids(self) -> list[tuple[int, int]]:
        """Return the ids of the chunks that hold positions, in order: the ledger, and the chunk's number in it."""
        found: list[tuple[int, int]] = []
        for ledger in sorted(self._ledgers):
            bitmap = self._ledgers[ledger]
            rank = 0
            while rank < len(bitmap):
                found.append((ledger, chunk := bitmap[rank] >> CHUNK_SHIFT))
                rank = bitmap.rank(((chunk + 1) << CHUNK_SHIFT) - 1)
        return found

    def serialize_chunk(self, chunk_id: tuple[int, int]) -> bytes | None:
        """Return the portable roaring bytes of the positions in one chunk; None if there are none."""
        bitmap = self._ledgers.get(chunk_id[0])
        if bitmap is None:
            return None
        first = chunk_id[1] << CHUNK_SHIFT
        part = bitmap & BitMap(range(first, first + (1 << CHUNK_SHIFT)))
        if not part:
            return None
        part.run_optimize()
        return part.serialize()

    def add_serialized(self, ledger: int, encoded: bytes) -> None:
        """Add the entries of ``ledger`` in ``encoded``, which :meth:`serialize_chunk` or :meth:`serialize` gave."""
        part = BitMap.deserialize(encoded)
        mine = self._ledgers.get(ledger)
        if mine is not None:
            mine |= part
        elif part:
            self._ledgers[ledger] = part

    @classmethod
    def deserialize(cls, parts: Iterable[tuple[int, bytes]]) -> PositionSet:
        result = cls()
        for ledger, encoded in parts:
            result._ledgers[ledger] = BitMap.deserialize(encoded)
        return result

    def _bitmap(self, ledger: int) -> BitMap:
        bitmap = self._ledgers.get(ledger)
        if bitmap is None:
            bitmap = self._ledgers[ledger] = BitMap()
        return bitmap

    def _forget_if_empty(self, ledger: int) -> None:
        if not self._ledgers[ledger]:
            del self._ledgers[ledger]
