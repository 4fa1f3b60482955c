"""Comparison of the copies of one topic, if at least one of them is at brokers. Pure; by whole columns.

A *copy* is the content of the topic in one place: brokers, or the log of a worker. Entries are told apart by their
identity, and compared by a checksum.

1. Identities become numbers that ascend as the entries of their origin do, the same in all copies (:class:`_Codes`).
2. An entry that a copy has twice is *duplicated*; one behind a later entry of its origin is *reordered*.
3. An entry that one copy of a pair has and the other has not is *missing* there, unless it is excused: it is above the
   position that the copy must have reached (*behind*), and may still come; its producer does not want it there; a link
   left it out; or retention deleted it. The last is known of workers. Brokers delete whole ledgers from the front:
   entries before the first one of their origin that the brokers still have, or are known to have got, are *gone*, and
   counted apart.
4. An entry that both have with other checksums is *corrupted*; but not a batch from which links left messages out.

Several pairs may find the same. Each entry counts once in each copy.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np
import numpy.typing as npt

from replicator.pipeline.verify.brokers.differences import Difference, EntryLocation, identity_at, runs
from replicator.pipeline.verify.brokers.entry_log import EntryLog, Int64s, Life
from snapshots.position import Position

ENTRY_BITS: Final = 33
"""Bits of an entry in a code. An entry's id has 32 bits, and a bound may lie one above the highest."""
EXAMPLES_MAX: Final = 10
GONE: Final = "gone"
BEHIND: Final = "behind"


@dataclass(frozen=True, slots=True)
class Copy:
    """One topic in one place. Its facts were true before the log was read, or describe what was read."""

    name: str
    log: EntryLog
    due: Mapping[Life, Position] = field(default_factory=dict)
    """Position up to which all entries of a life must be here. Of other lives nothing must."""
    trimmed: Mapping[str, Position] = field(default_factory=dict)
    """Position, by origin, up to which entries were deleted."""
    left_out: Mapping[str, Sequence[tuple[Position, Position]]] = field(default_factory=dict)
    """Ranges, by origin, that links left out: after, up to."""
    got: Mapping[Life, Position] | None = None
    """For brokers: an entry of each life that they have got, and whose ledger is still there.

    None for a worker's log, whose deletions are known."""
    cluster: str = ""
    """Cluster of the copy."""
    still: Collection[str] = ()
    """Origins whose entries did not arrive here during the wait, though some were due to. No entry of these is
    *behind*."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Two copies, by their numbers: ``lacking`` must have everything of an origin that ``having`` has."""

    having: int
    lacking: int
    origin: str
    contents: bool = False
    """Whether contents are compared as well; differences count against ``lacking``."""
    parts: bool = False
    """Whether links on the way may leave messages out of batches."""


def compare(copies: Sequence[Copy], pairs: Iterable[Pair]) -> Iterator[Difference]:
    """Yield all faults, one difference for each kind, life and copy."""
    codes = _Codes(copies)
    views = [
        {life: _View(copy.log, codes.of(copy.log), number) for number, life in enumerate(copy.log.lives)}
        for copy in copies
    ]
    for copy, of_copy in zip(copies, views, strict=True):
        for view in of_copy.values():
            yield from _within(copy, view)
    found: dict[tuple[int, Life, str], _MissingEntries] = {}
    for pair in pairs:
        for life, having in views[pair.having].items():
            if life.origin == pair.origin:
                there = views[pair.lacking].get(life)
                for kind, at in _between(copies[pair.lacking], life, having, there, codes, pair):
                    lack = found.setdefault((pair.lacking, life, kind), _MissingEntries())
                    lack.add(pair.having, having, at)
    for (number, life, kind), lack in found.items():
        yield from lack.differences(kind, copies, number, views[number].get(life))


@dataclass(slots=True)
class _Codes:
    """Identities as numbers: the index of the origin's ledger among all that occur, and the entry."""

    ledgers: Int64s

    def __init__(self, copies: Sequence[Copy]) -> None:
        self.ledgers = np.unique(np.concatenate([np.zeros(0, np.int64), *(_distinct(copy.log) for copy in copies)]))

    def of(self, log: EntryLog) -> Int64s:
        codes: Int64s = np.searchsorted(self.ledgers, log.origin_ledger) << ENTRY_BITS | log.origin_entry
        return codes

    def bound(self, position: Position) -> int:
        """Return a code above all entries at or before a position, and not above any other."""
        index = int(np.searchsorted(self.ledgers, position.ledger))
        if index < len(self.ledgers) and int(self.ledgers[index]) == position.ledger:
            return index << ENTRY_BITS | position.entry + 1
        return index << ENTRY_BITS


def _distinct(log: EntryLog) -> Int64s:
    return np.unique(log.origin_ledger)


class _View:
    """Entries of one life in one copy: ``codes`` ascends, each once, and ``at`` has their first rows in the log."""

    def __init__(self, log: EntryLog, codes: Int64s, number: int) -> None:
        self.log = log
        self._codes = codes
        rows = np.flatnonzero(log.life == number)
        of_rows = codes[rows]
        self.codes, first = np.unique(of_rows, return_index=True)
        self.at: Int64s = rows[first]
        self.first_in_log = int(of_rows[0])
        once = np.zeros(len(rows), bool)
        once[first] = True
        self.again: Int64s = rows[~once]
        """Rows of entries that occur earlier, too."""
        in_order = of_rows[once]
        highest = np.maximum.accumulate(in_order)
        self.late: Int64s = rows[once][in_order < highest]
        """Rows of entries that were published before one that stands before them."""

    def place_of(self, row: int) -> str:
        return f"{int(self.log.ledger[row])}:{int(self.log.entry[row])}"

    def first_row(self, row: int) -> int:
        """Return the first row of the entry at ``row``."""
        return int(self.at[np.searchsorted(self.codes, self._codes[row])])


def _within(copy: Copy, view: _View) -> Iterator[Difference]:
    log = view.log

    def text(rows: Int64s, start: int, stop: int, what: Callable[[int], str]) -> str:
        first = int(rows[start])
        return f"{_run(log, rows, start, stop)} ({copy.name} at {view.place_of(first)}, {what(first)})"

    def found(kind: str, rows: Int64s, messages: int, what: Callable[[int], str]) -> Difference:
        shown = tuple(text(rows, at, at + 1, what) for at in range(min(len(rows), EXAMPLES_MAX)))
        where = EntryLocation(log, rows, lambda start, stop: text(rows, start, stop, what))
        return Difference(kind, copy.name, len(rows), messages, shown, where)

    if len(view.again):
        messages = _messages(log, view.again)
        yield found(
            "duplicated", view.again, messages, lambda row: f"and at {view.place_of(view.first_row(row))} before"
        )
    if len(view.late):
        yield found("reordered", view.late, len(view.late), lambda row: "after a later one")


def _between(
    lacking: Copy, life: Life, having: _View, there: _View | None, codes: _Codes, pair: Pair
) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
    """Yield each kind of fault with the indexes in ``having.codes``."""
    none = np.zeros(len(having.codes), bool)
    here = none if there is None else np.isin(having.codes, there.codes, assume_unique=True)
    wanted = ~here & _wanted_in(lacking.cluster, life, having.log)[having.at]
    if life.origin in lacking.trimmed:
        wanted &= having.codes >= codes.bound(lacking.trimmed[life.origin])
    for after, upto in lacking.left_out.get(life.origin, ()):
        wanted &= (having.codes < codes.bound(after)) | (having.codes >= codes.bound(upto))
    due = lacking.due.get(life)
    late = wanted if due is None else wanted & (having.codes >= codes.bound(due))
    stuck = none
    if life.origin in lacking.still:
        late, stuck = none, late
    yield BEHIND, np.flatnonzero(late)
    wanted &= ~late
    if lacking.got is not None:
        known = [] if there is None else [there.first_in_log]
        known += [codes.bound(lacking.got[life]) - 1] if life in lacking.got else []
        gone = ~stuck & wanted & (having.codes < min(known) if known else True)
        yield GONE, np.flatnonzero(gone)
        wanted &= ~gone
    yield "missing", np.flatnonzero(wanted)
    if pair.contents and there is not None:
        both = np.flatnonzero(here)
        at = there.at[np.searchsorted(there.codes, having.codes[both])]
        rows = having.at[both]
        differ = having.log.checksum[rows] != there.log.checksum[at]
        if pair.parts:
            messages, absent = there.log.messages[at], there.log.absent[at]
            differ &= (absent == 0) | (messages + absent != having.log.messages[rows])
        yield "corrupted", both[differ]


def _wanted_in(cluster: str, life: Life, log: EntryLog) -> npt.NDArray[np.bool_]:
    """Return which entries of a log are wanted in a cluster by their producers. All are wanted where they were
    published."""
    home = life.origin.partition(".")[0] == cluster
    wanted = np.array([home or names is None or cluster in names for names in log.audiences], np.bool_)
    return wanted[log.audience]


@dataclass(slots=True)
class _MissingEntries:
    """Entries of one kind, in one life and copy, that several pairs found."""

    parts: list[tuple[int, _View, npt.NDArray[np.intp]]] = field(default_factory=list)
    known: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, number: int, having: _View, at: npt.NDArray[np.intp]) -> None:
        fresh = at[~np.isin(having.codes[at], self.known)]
        if len(fresh):
            self.parts.append((number, having, fresh))
            self.known = np.union1d(self.known, having.codes[fresh])

    def differences(self, kind: str, copies: Sequence[Copy], number: int, there: _View | None) -> Iterator[Difference]:
        for other, having, at in self.parts:
            rows = having.at[at]
            text = self._text(kind, copies[other], copies[number], having, at, there)
            shown = tuple(text(*run) for run in islice(runs(having.log, rows), EXAMPLES_MAX))
            where = EntryLocation(having.log, rows, text, copies[other].name)
            yield Difference(kind, copies[number].name, len(at), _messages(having.log, rows), shown, where)

    @staticmethod
    def _text(
        kind: str, other: Copy, lacking: Copy, having: _View, at: npt.NDArray[np.intp], there: _View | None
    ) -> Callable[[int, int], str]:
        """Return the function that describes a run of ``at``."""
        rows = having.at[at]

        def text(start: int, stop: int) -> str:
            place = f"not in {lacking.name}"
            if kind == "corrupted" and there is not None:
                index = int(np.searchsorted(there.codes, having.codes[at[start]]))
                place = f"other content in {lacking.name} at {there.place_of(int(there.at[index]))}"
            first = having.place_of(int(rows[start]))
            return f"{_run(having.log, rows, start, stop)} ({other.name} at {first}, {place})"

        return text


def _run(log: EntryLog, rows: Int64s, start: int, stop: int) -> str:
    more = f" to {int(log.origin_entry[rows[stop - 1]])}" if stop - start > 1 else ""
    return identity_at(log, int(rows[start])) + more


def _messages(log: EntryLog, rows: Int64s) -> int:
    return int(log.messages[rows].sum(dtype=np.int64))
