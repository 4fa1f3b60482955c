"""Extents: the exact mapping between an origin's positions and the positions here, for one topic and one origin.

An extent says: ``entries`` entries from origin position p on lie here from local position q on. Copying yields extents
at no cost (DESIGN 4.1). The entries of one origin have the same order everywhere (invariant 3), so both sides of a
table ascend, and one table answers in both directions by bisection.

Storage: one column each for the runs' starts at the origin, their starts here, and their lengths, 20 bytes a run. A
start is one number, ``rank of the ledger << 32 | entry``; the ranks' ledgers are in a list, as there are few. An entry
id is below 2**32 (a writer opens a new ledger long before), so starts ascend as positions do, and numpy searches a
million of them at once. A run lies in one ledger on each side.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from snapshots.errors import ExtentsCorrupt
from snapshots.position import Position
from snapshots.position_set import PositionSet

ENTRY_BITS: Final = 32
_ENTRY_MASK: Final = (1 << ENTRY_BITS) - 1
_ABOVE_ALL: Final = (1 << 63) - 1
FEW_POSITIONS: Final = 24
"""Limit of the positions of one ledger that are translated one by one; more are translated as arrays."""
FEW_RUNS: Final = 32
"""Limit of the runs that are walked one by one; more are translated as arrays."""
LONG_RUN: Final = 256
"""Entries from which a run is added as a range, also among many: single entries of it would cost more."""
SLICE_POSITIONS: Final = 1 << 20
"""Limit of positions of a set that are translated at once: some ten megabytes of numbers."""
_ANEW: Final = "`replicator mapping rebuild` makes it anew"
_COLUMNS: Final = 5
_COUNT: Final = struct.Struct("<I")
_COLUMN: Final = struct.Struct("<QB")
_WIDTHS: Final = (1, 2, 4, 8)
_TYPES: Final = {width: f"<u{width}" for width in _WIDTHS}

Numbers = npt.NDArray[np.uint64]


class Extent(NamedTuple):
    """Extent: ``entries`` entries from ``origin_first`` on at the origin lie here from ``local_first`` on."""

    origin_first: Position
    local_first: Position
    entries: int

    @property
    def origin_last(self) -> Position:
        return Position(self.origin_first.ledger, self.origin_first.entry + self.entries - 1)

    @property
    def local_last(self) -> Position:
        return Position(self.local_first.ledger, self.local_first.entry + self.entries - 1)


class _Side:
    """Starts of all runs on one side: at the origin, or here."""

    __slots__ = ("ledgers", "starts")

    def __init__(self) -> None:
        self.ledgers: list[int] = []
        self.starts = array("Q")

    def append(self, position: Position) -> None:
        if not self.ledgers or self.ledgers[-1] != position.ledger:
            self.ledgers.append(position.ledger)
        self.starts.append((len(self.ledgers) - 1) << ENTRY_BITS | position.entry)

    def fill(self, ledgers: Numbers, starts: Numbers, entries: Numbers) -> None:
        """Set the starts of all runs at once; ``entries`` are their lengths, ``starts`` their first entry ids.

        Raise :class:`ValueError` unless each run lies above the one before it.
        """
        if not len(ledgers):
            return
        end = np.uint64(1 << ENTRY_BITS)
        if (entries == 0).any() or (entries >= end).any() or (starts >= end).any() or (starts + entries > end).any():
            raise ValueError("a run of positions in the map is empty, or ends beyond its ledger: the map is damaged")
        news = np.concatenate([np.ones(1, np.bool_), ledgers[1:] != ledgers[:-1]])
        keys = (np.cumsum(news, dtype=np.uint64) - np.uint64(1)) << np.uint64(ENTRY_BITS) | starts
        if (ledgers[1:] < ledgers[:-1]).any() or (keys[:-1] + entries[:-1] > keys[1:]).any():
            raise ValueError("a run of positions in the map does not lie above the one before it: the map is damaged")
        self.ledgers = ledgers[news].tolist()
        self.starts = array("Q", keys.tobytes())

    def position(self, key: int) -> Position:
        return Position(self.ledgers[key >> ENTRY_BITS], key & _ENTRY_MASK)

    def floor_key(self, position: Position) -> int:
        """Return the key of ``position``, or of the highest place below it in one of these ledgers; -1 if there is
        none."""
        rank = bisect_right(self.ledgers, position.ledger) - 1
        if rank < 0:
            return -1
        if self.ledgers[rank] < position.ledger:
            return rank << ENTRY_BITS | _ENTRY_MASK
        return (rank << ENTRY_BITS) + min(position.entry, _ENTRY_MASK)

    def drop(self, runs: int) -> None:
        """Forget the first ``runs`` runs, and the ledgers that only those had."""
        del self.starts[:runs]
        gone = self.starts[0] >> ENTRY_BITS if self.starts else len(self.ledgers)
        if gone:
            del self.ledgers[:gone]
            self.starts = array("Q", (np.frombuffer(self.starts, np.uint64) - np.uint64(gone << ENTRY_BITS)).tobytes())

    def keys(self, first: int, stop: int) -> npt.NDArray[np.int64]:
        """Return the keys of the starts of runs ``first`` to ``stop``, without the last one."""
        return np.frombuffer(self.starts, np.uint64)[first:stop].astype(np.int64)

    def add_range(self, key: int, more: int, result: PositionSet) -> None:
        """Add the position of ``key`` and the ``more`` ones after it, all in one ledger, to ``result``."""
        ledger, entry = self.position(key)
        result.add_range(ledger, entry, entry + more)

    def add_keys(self, keys: npt.NDArray[np.int64], result: PositionSet) -> None:
        """Add the positions of ``keys``, which ascend, to ``result``."""
        ranks = keys >> ENTRY_BITS
        cuts = [0, *(np.flatnonzero(np.diff(ranks)) + 1).tolist(), len(ranks)] if len(ranks) else [0]
        for start, stop in pairwise(cuts):
            entries = (keys[start:stop] & _ENTRY_MASK).astype(np.uint32)
            result.add_entries(self.ledgers[int(ranks[start])], BitMap(array("I", entries.tobytes())))

    def columns(self) -> tuple[Numbers, Numbers]:
        """Return ``(ledgers, entries)`` of all starts."""
        starts = np.array(self.starts, np.uint64)
        ledgers = np.array(self.ledgers, np.uint64)
        return ledgers[starts >> np.uint64(ENTRY_BITS)], starts & np.uint64(_ENTRY_MASK)


class ExtentTable:
    """Exact mapping of one topic, origin and incarnation. Entries at positions that no extent covers are not here."""

    __slots__ = ("_entries", "_local", "_origin")

    def __init__(self) -> None:
        self._origin = _Side()
        self._local = _Side()
        self._entries = array("I")

    # ---- what is in it ----------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Return the number of runs."""
        return len(self._entries)

    def __iter__(self) -> Iterator[Extent]:
        for index in range(len(self)):
            yield self[index]

    def __getitem__(self, index: int) -> Extent:
        origin, local = self._origin.starts[index], self._local.starts[index]
        return Extent(self._origin.position(origin), self._local.position(local), self._entries[index])

    @property
    def entries(self) -> int:
        return sum(self._entries)

    @property
    def first(self) -> Extent | None:
        return self[0] if self._entries else None

    @property
    def last(self) -> Extent | None:
        return self[-1] if self._entries else None

    def append(self, origin_first: Position, local_first: Position, entries: int) -> None:
        """Add copied entries, which come after all others on both sides. If they continue the last run, lengthen it."""
        assert entries > 0
        before = self.last
        if before is not None:
            assert before.origin_last < origin_first, f"{origin_first} at the origin does not follow {before}"
            assert before.local_last < local_first, f"{local_first} here does not follow {before}"
            if _follows(before.origin_last, origin_first) and _follows(before.local_last, local_first):
                self._entries[-1] += entries
                return
        self._origin.append(origin_first)
        self._local.append(local_first)
        self._entries.append(entries)

    def trim(self, local_through: Position) -> int:
        """Forget the runs that lie wholly at or below ``local_through``; return their number."""
        runs = bisect_right(self._local.starts, self._local.floor_key(local_through))
        if runs and self[runs - 1].local_last > local_through:
            runs -= 1
        if runs:
            self._origin.drop(runs)
            self._local.drop(runs)
            del self._entries[:runs]
        return runs

    # ---- one position -----------------------------------------------------------------------------------

    def to_local(self, position: Position) -> Position | None:
        """Translate an origin position to a local one; None if the entry is not here."""
        return self._one(self._origin, self._local, position)

    def to_origin(self, position: Position) -> Position | None:
        """Translate a local position to an origin position; None if the entry is not of this origin."""
        return self._one(self._local, self._origin, position)

    def origin_through(self, local: Position) -> Position | None:
        """Return the highest origin position p such that all entries here up to p lie at or below ``local``.

        If all entries here lie above, return the position before the first of them. Return None for an empty table.
        """
        if not self._entries:
            return None
        at = bisect_right(self._local.starts, self._local.floor_key(local)) - 1
        if at < 0:
            first = self[0].origin_first
            return Position(first.ledger, first.entry - 1)
        run = self[at]
        if run.local_last <= local:
            return run.origin_last
        return Position(run.origin_first.ledger, run.origin_first.entry + local.entry - run.local_first.entry)

    def origin_ledgers(self) -> list[Position]:
        """Return, for each ledger of the origin in order, the last position that is here."""
        if not self._entries:
            return []
        ledgers = np.frombuffer(self._origin.starts, np.uint64) >> np.uint64(ENTRY_BITS)
        lasts = np.flatnonzero(np.concatenate([ledgers[1:] != ledgers[:-1], np.ones(1, np.bool_)]))
        return [self[int(at)].origin_last for at in lasts]

    # ---- many positions ---------------------------------------------------------------------------------

    def to_local_many(self, ledgers: Numbers, entries: Numbers) -> tuple[Numbers, Numbers, npt.NDArray[np.bool_]]:
        """Translate many origin positions to local ones, and return ``(ledgers, entries, found)``.

        Where ``found`` is False, the entry is not here, and the other two values have no meaning.
        """
        return self._many(self._origin, self._local, ledgers, entries)

    def to_origin_many(self, ledgers: Numbers, entries: Numbers) -> tuple[Numbers, Numbers, npt.NDArray[np.bool_]]:
        """Translate many local positions to origin positions; see :meth:`to_local_many`."""
        return self._many(self._local, self._origin, ledgers, entries)

    def to_local_set(self, positions: PositionSet) -> PositionSet:
        """Return the local positions of those of the origin's ``positions`` that are here."""
        return self._set(self._origin, self._local, positions)

    def to_origin_set(self, positions: PositionSet) -> PositionSet:
        """Return the origin positions of those local ``positions`` that are of this origin."""
        return self._set(self._local, self._origin, positions)

    def of_origin(self, positions: PositionSet) -> PositionSet:
        """Return those local ``positions`` that are of this origin."""
        return self._set(self._local, self._local, positions)

    def local_between(self, after: Position, upto: Position, *, above: Position) -> PositionSet:
        """Return the local positions above ``above`` of entries whose origin positions p have ``after < p <= upto``."""
        origin, here, found = self._origin, self._local, PositionSet()
        after_key, upto_key, above_key = origin.floor_key(after), origin.floor_key(upto), here.floor_key(above)
        first = max(bisect_right(origin.starts, after_key) - 1, bisect_right(here.starts, above_key) - 1, 0)
        within = [(origin, after_key + 1, upto_key), (here, above_key + 1, _ABOVE_ALL)]
        self._add_runs(here, first, bisect_right(origin.starts, upto_key), within, found)
        return found

    # ---- bytes ------------------------------------------------------------------------------------------

    def pack(self) -> bytes:
        """Return the runs as compressed columns, for the index: a byte or a few a run.

        Compressed: the number of runs u32, then for each column its first value u64, the width in bytes of a difference
        u8, and the differences from each value to the next, little-endian; those that are negative wrap round.
        """
        pieces = [_COUNT.pack(len(self))]
        for column in (*self._origin.columns(), *self._local.columns(), np.array(self._entries, np.uint64)):
            if not len(column):
                break
            differences = np.diff(column)
            largest = int(differences.max(initial=0))
            width = next(width for width in _WIDTHS if largest < 1 << 8 * width)
            pieces += [_COLUMN.pack(int(column[0]), width), differences.astype(f"<u{width}").tobytes()]
        return zlib.compress(b"".join(pieces))

    @classmethod
    def unpack(cls, packed: bytes, *, runs_max: int = 1 << 20) -> ExtentTable:
        """Return the table that :meth:`pack` gave. Raises :class:`ExtentsCorrupt` for other bytes, or more runs than
        ``runs_max``."""
        limit = _COUNT.size + _COLUMNS * (_COLUMN.size + runs_max * _WIDTHS[-1])
        try:
            unpacking = zlib.decompressobj()
            raw = unpacking.decompress(packed, limit + 1)
            if len(raw) > limit or not unpacking.eof:
                raise ExtentsCorrupt(
                    f"the stored map of a topic's positions ({len(packed)} bytes of extents) is cut short, or too "
                    f"large: {_ANEW}"
                )
            columns = _columns(raw, runs_max)
        except (zlib.error, struct.error, ValueError, KeyError) as error:
            raise ExtentsCorrupt(
                f"the stored map of a topic's positions ({len(packed)} bytes of extents) cannot be read: {error}: "
                f"{_ANEW}"
            ) from None
        origin_ledgers, origin_entries, local_ledgers, local_entries, entries = columns
        table = cls()
        try:
            table._origin.fill(origin_ledgers, origin_entries, entries)
            table._local.fill(local_ledgers, local_entries, entries)
        except ValueError as error:
            raise ExtentsCorrupt(
                f"the stored map of a topic's positions ({len(packed)} bytes of extents) contradicts itself: {error}: "
                f"{_ANEW}"
            ) from None
        table._entries = array("I", entries.astype(np.uint32).tobytes())
        return table

    # ---- both ways --------------------------------------------------------------------------------------

    def _one(self, here: _Side, there: _Side, position: Position) -> Position | None:
        rank = bisect_left(here.ledgers, position.ledger)
        if rank == len(here.ledgers) or here.ledgers[rank] != position.ledger or not 0 <= position.entry <= _ENTRY_MASK:
            return None
        key = rank << ENTRY_BITS | position.entry
        at = bisect_right(here.starts, key) - 1
        if at < 0 or key - here.starts[at] >= self._entries[at]:
            return None
        return there.position(there.starts[at] + key - here.starts[at])

    def _many(
        self, here: _Side, there: _Side, ledgers: Numbers, entries: Numbers
    ) -> tuple[Numbers, Numbers, npt.NDArray[np.bool_]]:
        if not self._entries or not len(ledgers):
            nothing = np.zeros(len(ledgers), np.uint64)
            return nothing, nothing, np.zeros(len(ledgers), np.bool_)
        here_ledgers = np.array(here.ledgers, np.uint64)
        rank = np.minimum(np.searchsorted(here_ledgers, ledgers), len(here_ledgers) - 1)
        known = here_ledgers[rank] == ledgers
        keys = rank.astype(np.uint64) << np.uint64(ENTRY_BITS) | np.asarray(entries, np.uint64)
        translated, found = self._keys(here, there, keys)
        there_ledgers = np.array(there.ledgers, np.uint64)
        translated[~found] = 0
        return (
            there_ledgers[translated >> np.uint64(ENTRY_BITS)],
            translated & np.uint64(_ENTRY_MASK),
            found & known,
        )

    def _keys(self, here: _Side, there: _Side, keys: Numbers) -> tuple[Numbers, npt.NDArray[np.bool_]]:
        """Translate ``keys`` from side ``here`` to side ``there``; return them, and for each whether it was found."""
        starts = np.frombuffer(here.starts, np.uint64)
        lengths = np.frombuffer(self._entries, np.uint32)
        at = np.searchsorted(starts, keys, side="right") - 1
        below, at = at < 0, np.maximum(at, 0)
        offset = keys - starts[at]
        found: npt.NDArray[np.bool_] = ~below & (offset < lengths[at])
        return np.frombuffer(there.starts, np.uint64)[at] + offset, found

    def _set(self, here: _Side, there: _Side, positions: PositionSet) -> PositionSet:
        result = PositionSet()
        for ledger, bitmap in positions.by_ledger():
            rank = bisect_left(here.ledgers, ledger)
            if rank == len(here.ledgers) or here.ledgers[rank] != ledger:
                continue
            first, last = bitmap.min(), bitmap.max()
            if last - first + 1 == len(bitmap):
                self._range(here, there, rank, first, last, result)
            elif len(bitmap) <= FEW_POSITIONS:
                self._few(here, there, rank, bitmap, result)
            else:
                self._translate_scattered(here, there, rank, bitmap, result)
        return result

    def _range(self, here: _Side, there: _Side, rank: int, first: int, last: int, result: PositionSet) -> None:
        """Add entries ``first`` to ``last`` of the ledger of ``rank``, translated run by run, to ``result``."""
        low, high = rank << ENTRY_BITS | first, rank << ENTRY_BITS | last
        at = max(0, bisect_right(here.starts, low) - 1)
        self._add_runs(there, at, bisect_right(here.starts, high), [(here, low, high)], result)

    def _add_runs(
        self, there: _Side, first: int, stop: int, within: Sequence[tuple[_Side, int, int]], result: PositionSet
    ) -> None:
        """Add runs ``first`` to ``stop``, without the last one, as they lie ``there``, to ``result``.

        Of each run only the entries are added that lie in the range of keys that ``within`` gives for a side. A few
        runs are added one by one, and many as arrays.
        """
        if stop - first <= FEW_RUNS:
            for at in range(first, stop):
                low, high = 0, self._entries[at] - 1
                for side, least, most in within:
                    low, high = max(low, least - side.starts[at]), min(high, most - side.starts[at])
                if low <= high:
                    there.add_range(there.starts[at] + low, high - low, result)
            return
        lows = np.zeros(stop - first, np.int64)
        highs = np.frombuffer(self._entries, np.uint32)[first:stop].astype(np.int64) - 1
        for side, least, most in within:
            starts = side.keys(first, stop)
            lows, highs = np.maximum(lows, least - starts), np.minimum(highs, most - starts)
        some, long = lows <= highs, highs - lows >= LONG_RUN
        begins, more = there.keys(first, stop) + lows, highs - lows
        for begin, rest in zip(begins[long].tolist(), more[long].tolist(), strict=True):
            there.add_range(begin, rest, result)
        begins, counts = begins[some & ~long], more[some & ~long] + 1
        for at in range(0, len(begins), SLICE_POSITIONS // LONG_RUN):
            begin, count = begins[at:][: SLICE_POSITIONS // LONG_RUN], counts[at:][: SLICE_POSITIONS // LONG_RUN]
            passed = np.cumsum(count) - count
            there.add_keys(np.repeat(begin - passed, count) + np.arange(int(count.sum())), result)

    def _few(self, here: _Side, there: _Side, rank: int, bitmap: BitMap, result: PositionSet) -> None:
        """Add few entries of the ledger of ``rank``, translated one by one, to ``result``; arrays would take longer."""
        start = end = to = 0
        for entry in bitmap:
            key = rank << ENTRY_BITS | entry
            if key >= end:
                at = bisect_right(here.starts, key) - 1
                if at < 0:
                    continue
                start, to = here.starts[at], there.starts[at]
                end = start + self._entries[at]
            if key < end:
                result.add(there.position(to + key - start))

    def _translate_scattered(self, here: _Side, there: _Side, rank: int, bitmap: BitMap, result: PositionSet) -> None:
        for begin in range(0, len(bitmap), SLICE_POSITIONS):
            part: Any = bitmap[begin : begin + SLICE_POSITIONS]
            keys = np.frombuffer(part.to_array(), np.uint32).astype(np.uint64) | np.uint64(rank << ENTRY_BITS)
            translated, found = self._keys(here, there, keys)
            there.add_keys(translated[found].astype(np.int64), result)


def _columns(raw: bytes, runs_max: int) -> list[Numbers]:
    """Return the columns of numbers in ``raw``: packed extents (:meth:`ExtentTable.pack`) after decompression.

    Raise struct.error, ValueError or KeyError if it is something else, or has more than ``runs_max`` runs.
    """
    (runs,) = _COUNT.unpack_from(raw)
    if runs > runs_max:
        raise ValueError(f"the map is damaged: it has {runs} runs of positions, over the limit of {runs_max}")
    if not runs:
        return [np.zeros(0, np.uint64)] * _COLUMNS
    columns: list[Numbers] = []
    at = _COUNT.size
    for _ in range(_COLUMNS):
        first, width = _COLUMN.unpack_from(raw, at)
        at += _COLUMN.size
        column = np.empty(runs, np.uint64)
        column[0] = first
        column[1:] = np.frombuffer(raw, _TYPES[width], runs - 1, at)
        columns.append(np.cumsum(column, dtype=np.uint64))
        at += (runs - 1) * width
    if at != len(raw):
        raise ValueError(f"the map is damaged: {len(raw) - at} bytes are left over behind its positions")
    return columns


def _follows(last: Position, first: Position) -> bool:
    return last.ledger == first.ledger and last.entry + 1 == first.entry
