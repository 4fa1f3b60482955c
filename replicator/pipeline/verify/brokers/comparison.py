"""What is wrong between the copies of one topic, where at least one of them lies at brokers. Pure; by whole columns.

A *copy* is what one place has of the topic: brokers, or the log of a worker. Entries are told by their identity, and
compared by a checksum.

1. Identities become numbers that ascend as the entries of their origin do, the same in all copies (:class:`_Codes`).
2. What a copy has twice is *duplicated*; what stands after a later entry of its origin is *reordered*.
3. Of each pair, what one copy has and the other has not is *missing* there, unless it is excused: it is above what the
   copy must have by now (*behind*); a link left it out; or it was deleted by retention. The last is known of workers.
   Of brokers it is known that they delete whole ledgers from the front: what comes before the first entry of its origin
   that they still have, or that they are known to have got, is *gone*, and is counted apart.
4. What both have with other checksums is *corrupted*.

Several pairs may find the same. Each entry counts once in each copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from replicator.pipeline.verify.brokers.entry_log import EntryLog, Int64s, Life
from snapshots.position import Position

ENTRY_BITS: Final = 33
"""An entry's id has 32 bits, and a bound may lie one above the highest."""
EXAMPLES_MAX: Final = 10
GONE: Final = "gone"
BEHIND: Final = "behind"


@dataclass(frozen=True, slots=True)
class Copy:
    """One topic in one place. All that is said of it was so before the log was read, or is so of what was read."""

    name: str
    log: EntryLog
    due: Mapping[Life, Position] = field(default_factory=dict)
    """Up to there all of a life must be here. Of others nothing must."""
    trimmed: Mapping[str, Position] = field(default_factory=dict)
    """By origin, up to where entries were deleted."""
    left_out: Mapping[str, Sequence[tuple[Position, Position]]] = field(default_factory=dict)
    """By origin, the ranges that links left out: after, up to."""
    got: Mapping[Life, Position] | None = None
    """Of brokers: an entry of a life that they have got, and whose ledger is still there. None for a worker's log: what
    was deleted of that is known."""


@dataclass(frozen=True, slots=True)
class Pair:
    """Copies, by their numbers, of which ``lacking`` must have what ``having`` has of an origin."""

    having: int
    lacking: int
    origin: str
    contents: bool = False
    """Whether contents are compared as well; what differs is put down to ``lacking``."""


@dataclass(frozen=True, slots=True)
class Difference:
    """Entries of one topic with one fault in one copy; ``messages`` are those in them."""

    kind: str
    copy: str
    entries: int
    messages: int
    examples: tuple[str, ...]


def compare(copies: Sequence[Copy], pairs: Iterable[Pair]) -> Iterator[Difference]:
    """All that is wrong, one difference for each kind, life and copy."""
    codes = _Codes(copies)
    views = [
        {life: _View(copy.log, codes.of(copy.log), number) for number, life in enumerate(copy.log.lives)}
        for copy in copies
    ]
    for copy, of_copy in zip(copies, views, strict=True):
        for life, view in of_copy.items():
            yield from _within(copy, life, view)
    found: dict[tuple[int, Life, str], _Lack] = {}
    for pair in pairs:
        for life, having in views[pair.having].items():
            if life.origin == pair.origin:
                there = views[pair.lacking].get(life)
                for kind, at in _between(copies[pair.lacking], life, having, there, codes, contents=pair.contents):
                    lack = found.setdefault((pair.lacking, life, kind), _Lack())
                    lack.add(pair.having, having, at)
    for (number, life, kind), lack in found.items():
        yield from lack.differences(kind, copies, number, life, views[number].get(life))


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
        """Above all that are at or before a position, and not above any other."""
        index = int(np.searchsorted(self.ledgers, position.ledger))
        if index < len(self.ledgers) and int(self.ledgers[index]) == position.ledger:
            return index << ENTRY_BITS | position.entry + 1
        return index << ENTRY_BITS


def _distinct(log: EntryLog) -> Int64s:
    return np.unique(log.origin_ledger)


class _View:
    """The entries of one life in one copy: ``codes`` ascends, each once, and ``at`` says where in the log it is
    first."""

    def __init__(self, log: EntryLog, codes: Int64s, number: int) -> None:
        self.log = log
        rows = np.flatnonzero(log.life == number)
        of_rows = codes[rows]
        self.codes, first = np.unique(of_rows, return_index=True)
        self.at: Int64s = rows[first]
        self.first_in_log = int(of_rows[0])
        once = np.zeros(len(rows), bool)
        once[first] = True
        self.again: Int64s = rows[~once]
        """Where entries are that were there before."""
        in_order = of_rows[once]
        highest = np.maximum.accumulate(in_order)
        self.late: Int64s = rows[once][in_order < highest]
        """Where entries are that were published before one that stands before them."""

    def place_of(self, row: int) -> str:
        return f"{int(self.log.ledger[row])}:{int(self.log.entry[row])}"

    def first_row(self, row: int) -> int:
        """Where the entry at ``row`` is first."""
        same = (self.log.origin_ledger[self.at] == self.log.origin_ledger[row]) & (
            self.log.origin_entry[self.at] == self.log.origin_entry[row]
        )
        return int(self.at[np.flatnonzero(same)[0]])


def _within(copy: Copy, life: Life, view: _View) -> Iterator[Difference]:
    def text(row: int) -> str:
        return f"{_identity(life, view.log, row)} ({copy.name} at {view.place_of(row)}"

    if len(view.again):
        shown = tuple(
            f"{text(row)}, and at {view.place_of(view.first_row(row))} before)"
            for row in view.again[:EXAMPLES_MAX].tolist()
        )
        yield Difference("duplicated", copy.name, len(view.again), _messages(view.log, view.again), shown)
    if len(view.late):
        shown = tuple(f"{text(row)}, after a later one)" for row in view.late[:EXAMPLES_MAX].tolist())
        yield Difference("reordered", copy.name, len(view.late), len(view.late), shown)


def _between(
    lacking: Copy, life: Life, having: _View, there: _View | None, codes: _Codes, *, contents: bool
) -> Iterator[tuple[str, npt.NDArray[np.intp]]]:
    """Kinds, each with the indexes in ``having.codes``."""
    none = np.zeros(len(having.codes), bool)
    here = none if there is None else np.isin(having.codes, there.codes, assume_unique=True)
    wanted = ~here & ~having.log.for_some[having.at]
    if life.origin in lacking.trimmed:
        wanted &= having.codes >= codes.bound(lacking.trimmed[life.origin])
    for after, upto in lacking.left_out.get(life.origin, ()):
        wanted &= (having.codes < codes.bound(after)) | (having.codes >= codes.bound(upto))
    due = lacking.due.get(life)
    late = wanted if due is None else wanted & (having.codes >= codes.bound(due))
    yield BEHIND, np.flatnonzero(late)
    wanted &= ~late
    if lacking.got is not None:
        known = [] if there is None else [there.first_in_log]
        known += [codes.bound(lacking.got[life]) - 1] if life in lacking.got else []
        gone = wanted & (having.codes < min(known)) if known else wanted
        yield GONE, np.flatnonzero(gone)
        wanted &= ~gone
    yield "missing", np.flatnonzero(wanted)
    if contents and there is not None:
        both = np.flatnonzero(here)
        at = there.at[np.searchsorted(there.codes, having.codes[both])]
        differ = having.log.checksum[having.at[both]] != there.log.checksum[at]
        yield "corrupted", both[differ]


@dataclass(slots=True)
class _Lack:
    """What several pairs found of one kind, of one life in one copy."""

    parts: list[tuple[int, _View, npt.NDArray[np.intp]]] = field(default_factory=list)
    known: Int64s = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, number: int, having: _View, at: npt.NDArray[np.intp]) -> None:
        fresh = at[~np.isin(having.codes[at], self.known)]
        if len(fresh):
            self.parts.append((number, having, fresh))
            self.known = np.union1d(self.known, having.codes[fresh])

    def differences(
        self, kind: str, copies: Sequence[Copy], number: int, life: Life, there: _View | None
    ) -> Iterator[Difference]:
        lacking = copies[number]
        for other, having, at in self.parts:
            rows = having.at[at]
            shown = []
            for start, stop in _runs(having.codes[at])[:EXAMPLES_MAX]:
                first = int(rows[start])
                text = _identity(life, having.log, first)
                if stop - start > 1:
                    text += f" to {int(having.log.origin_entry[rows[stop - 1]])}"
                place = f"not in {lacking.name}"
                if kind == "corrupted" and there is not None:
                    index = int(np.searchsorted(there.codes, having.codes[at[start]]))
                    place = f"other content in {lacking.name} at {there.place_of(int(there.at[index]))}"
                shown.append(f"{text} ({copies[other].name} at {having.place_of(first)}, {place})")
            yield Difference(kind, lacking.name, len(at), _messages(having.log, rows), tuple(shown))


def _runs(codes: Int64s) -> list[tuple[int, int]]:
    """Where runs of entries that follow one another begin and end: the first of them."""
    breaks = np.flatnonzero(np.diff(codes) != 1)[:EXAMPLES_MAX] + 1
    starts = [0, *breaks.tolist()]
    return list(zip(starts, [*starts[1:], len(codes) if len(breaks) < EXAMPLES_MAX else starts[-1]], strict=True))


def _identity(life: Life, log: EntryLog, row: int) -> str:
    return f"{life.origin} {int(log.origin_ledger[row])}:{int(log.origin_entry[row])}"


def _messages(log: EntryLog, rows: Int64s) -> int:
    return int(log.messages[rows].sum(dtype=np.int64))
