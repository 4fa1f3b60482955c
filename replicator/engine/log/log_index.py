"""Index of one topic's log: which positions exist, and which of them are markers.

It is pure bookkeeping in memory for each loaded topic: a few numbers for each ledger, and one compressed bitmap of
markers. Cursors and dispatchers read it. The topic adds committed entries.

Trimming removes positions at the front, but never the last one, which keeps the counts. The end of the trimmed range
is remembered. So a cursor, a late acknowledgement or a link below it can be told from one with a wrong position.

A compacted topic has a second index beside this one: the positions of its compacted view, up to a horizon. They stay
when the log is trimmed. Subscriptions that read compacted use it.

Invariant 7 is kept here: the markers of a topic are kept once for all its cursors. A cursor steps over them without
acknowledging anything, and they never become individually deleted ranges.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from replicator.engine.log.duplicates import DuplicateEntries
from replicator.engine.log.ledger_ends import note_end
from replicator.engine.log.parts import PartialBatches
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet


@dataclass(frozen=True, slots=True)
class ViewIndex:
    """Positions of a topic's compacted view, which replaces the log up to ``horizon``. Immutable."""

    horizon: Position = BEFORE_ALL
    positions: PositionSet = field(default_factory=PositionSet)

    def lacks(self, position: Position) -> bool:
        """Return whether the view covers ``position`` but does not have it."""
        return position <= self.horizon and position not in self.positions

    def clamp(self, position: Position) -> Position:
        """Return the highest position of the view at or below ``position``, or BEFORE_ALL."""
        return self.positions.highest_through(position) or BEFORE_ALL


class LogIndex:
    """Index of the positions of a topic that exist: for each ledger the entries ``first`` to ``last``."""

    __slots__ = (
        "_first",
        "_last",
        "_ledgers",
        "duplicates",
        "markers",
        "messages",
        "parts",
        "terminated",
        "trimmed",
        "trimmed_ends",
        "view",
    )

    def __init__(self, trimmed: Position = BEFORE_ALL, trimmed_ends: Iterable[Position] = ()) -> None:
        self.trimmed = trimmed
        """Position up to which everything was trimmed."""
        self.trimmed_ends = list(trimmed_ends)
        """Last entry of each trimmed ledger, as far as known."""
        self._ledgers: list[int] = []
        self._first: list[int] = []
        self._last: list[int] = []
        self.markers = PositionSet()
        self.messages = 0
        """Number of messages ever appended, trimmed ones included."""
        self.duplicates: DuplicateEntries | None = None
        """Entries that are the same message as others; None if the log has none."""
        self.parts: PartialBatches | None = None
        """Batches that lack messages because a link left them out; None if the log has none."""
        self.terminated = False
        """Whether producers append nothing more, for ever. Markers and what links bring may still come."""
        self.view = ViewIndex()
        """Compacted view. A new compaction replaces it as a whole."""

    @property
    def last(self) -> Position:
        """Highest durable position (the LAC), or BEFORE_ALL."""
        return Position(self._ledgers[-1], self._last[-1]) if self._ledgers else BEFORE_ALL

    @property
    def first(self) -> Position | None:
        return Position(self._ledgers[0], self._first[0]) if self._ledgers else None

    @property
    def entries(self) -> int:
        return sum(self._last) - sum(self._first) + len(self._ledgers)

    def ledgers(self) -> list[tuple[int, int]]:
        """Return the ledgers in order, each with the number of its entries in the log."""
        firsts_and_lasts = zip(self._first, self._last, strict=True)
        return [
            (ledger, last - first + 1) for ledger, (first, last) in zip(self._ledgers, firsts_and_lasts, strict=True)
        ]

    def append(self, first: Position, entries: int, *, marker: bool) -> None:
        """Add entries that were committed from ``first`` on. They must follow the last entry of the log."""
        ledger, entry = first
        assert entries > 0
        if self._ledgers and ledger == self._ledgers[-1]:
            assert entry == self._last[-1] + 1, f"{first} does not follow {self.last}"
            self._last[-1] += entries
        else:
            assert not self._ledgers or ledger > self._ledgers[-1], f"ledger {ledger} is not new"
            self._ledgers.append(ledger)
            self._first.append(entry)
            self._last.append(entry + entries - 1)
        if marker:
            self.markers.add_range(ledger, entry, entry + entries - 1)

    def trim(self, upto: Position) -> None:
        """Remove all entries up to ``upto``, which must be an entry of this log and not its last one."""
        assert upto in self, f"{upto} is not in the log"
        assert upto < self.last, "the last entry stays: it says which positions were used"
        at = bisect_left(self._ledgers, upto[0])
        whole = self._last[at] == upto[1]
        if not whole:
            self._first[at] = upto[1] + 1
        for gone in range(at):
            note_end(self.trimmed_ends, Position(self._ledgers[gone], self._last[gone]))
        note_end(self.trimmed_ends, upto)
        for column in (self._ledgers, self._first, self._last):
            del column[: at + whole]
        self.markers.discard_through(upto)
        if self.duplicates is not None:
            self.duplicates.trim(upto)
        self.trimmed = upto

    # Messages that came by two ways.

    @property
    def has_duplicates(self) -> bool:
        """Return whether any message is in the log twice, because it came by two ways."""
        return bool(self.duplicates)

    def link_duplicates(self, found: Iterable[tuple[Position, Position]]) -> list[tuple[Position, Position]]:
        """Record pairs of entries that have the same message. Each pair has the earlier entry first.

        Return the pairs that are recorded. A pair is left out if its earlier entry was trimmed.
        """
        pairs = [pair for pair in found if pair[0] > self.trimmed]  # else the later one is all that is left of it
        if pairs and self.duplicates is None:
            self.duplicates = DuplicateEntries()
        for earlier, later in pairs:
            assert self.duplicates is not None
            self.duplicates.link(earlier, later)
        return pairs

    def duplicate_of(self, position: Position) -> Position | None:
        """Return another entry with the message at ``position``: the duplicate before it, else the one after it.

        Return None if there is no duplicate.
        """
        return None if self.duplicates is None else self.duplicates.duplicate_of(position)

    def with_duplicates(self, positions: PositionSet) -> PositionSet:
        """Return ``positions`` and all their duplicates. The result may be ``positions`` itself, so do not change
        it."""
        return positions if self.duplicates is None else self.duplicates.with_duplicates(positions)

    # Where things are.

    def __contains__(self, position: Position) -> bool:
        at = bisect_left(self._ledgers, position[0])
        return (
            at < len(self._ledgers)
            and self._ledgers[at] == position[0]
            and self._first[at] <= position[1] <= self._last[at]
        )

    def entries_of(self, ledger: int) -> range:
        """Return the entries of ``ledger`` that are in the log."""
        at = bisect_left(self._ledgers, ledger)
        if at == len(self._ledgers) or self._ledgers[at] != ledger:
            return range(0)
        return range(self._first[at], self._last[at] + 1)

    def had(self, position: Position) -> bool:
        """Return whether ``position`` is in the log, or was trimmed from it.

        Below the trimmed place there can be ledgers that this log never had, as after a snapshot of the disk was put
        back. Only below the oldest known end of a trimmed ledger, every position counts as trimmed.
        """
        ends = self.trimmed_ends
        if position in self or any(end.ledger == position.ledger and position <= end for end in ends):
            return True
        return position <= self.trimmed and (not ends or position.ledger < ends[0].ledger)

    def last_known(self, position: Position) -> Position:
        """Return the highest position at or below ``position`` that is in the log, or is known to have been trimmed
        from it; BEFORE_ALL if there is none."""
        ends = [min(end, position) for end in self.trimmed_ends if (end.ledger, 0) <= position]
        found = self.clamp(position)
        return max([found if found in self else BEFORE_ALL, *ends])

    def has_ledger(self, ledger: int) -> bool:
        """Return whether ``ledger`` is, or is known to have been, a ledger of this log."""
        at = bisect_left(self._ledgers, ledger)
        if at < len(self._ledgers) and self._ledgers[at] == ledger:
            return True
        return ledger == self.trimmed.ledger or any(end.ledger == ledger for end in self.trimmed_ends)

    def next_after(self, position: Position) -> Position | None:
        """Return the lowest position of the log above ``position``, or None. ``position`` itself need not exist."""
        at = bisect_left(self._ledgers, position[0])
        if at < len(self._ledgers) and self._ledgers[at] == position[0]:
            if position[1] < self._last[at]:
                return Position(position[0], max(position[1] + 1, self._first[at]))
            at += 1
        return Position(self._ledgers[at], self._first[at]) if at < len(self._ledgers) else None

    def last_before(self, position: Position) -> Position | None:
        """Return the highest position of the log below ``position``, or None if there is none.

        Use this method to walk back. :meth:`clamp` returns the same position again and again at the log's start.
        """
        found = self.clamp(Position(position.ledger, position.entry - 1))
        return found if found > self.trimmed else None

    def ledgers_back(self) -> Iterator[tuple[int, int, int]]:
        """Yield each ledger with its first and its last entry in the log, both inclusive, from the newest ledger to
        the oldest."""
        for at in reversed(range(len(self._ledgers))):
            yield self._ledgers[at], self._first[at], self._last[at]

    def is_delivered(self, position: Position) -> bool:
        """Return whether consumers receive the entry at ``position``: it is neither a marker nor a hidden duplicate."""
        return position not in self.markers and (self.duplicates is None or position not in self.duplicates.hidden)

    def next_message(self, position: Position) -> Position | None:
        """Return the position of the first message above ``position`` that consumers receive, or None if there is
        none.

        Runs of markers and of hidden duplicates are skipped as a whole.
        """
        hidden = None if self.duplicates is None else self.duplicates.hidden
        while (candidate := self.next_after(position)) is not None:
            if candidate in self.markers:
                position = self.markers.run_end(candidate)
            elif hidden is not None and candidate in hidden:
                position = hidden.run_end(candidate)
            else:
                return candidate
        return None

    def clamp(self, position: Position) -> Position:
        """Return the highest position of the log at or below ``position``. If there is none, return the trimmed end of
        the log."""
        at = bisect_right(self._ledgers, position[0]) - 1
        if at < 0:
            return self.trimmed
        if self._ledgers[at] < position[0]:
            return Position(self._ledgers[at], self._last[at])
        if position[1] >= self._first[at]:
            return Position(self._ledgers[at], min(position[1], self._last[at]))
        return Position(self._ledgers[at - 1], self._last[at - 1]) if at else self.trimmed

    def entries_between(self, after: Position, upto: Position) -> int:
        """Return the number of entries in (``after``, ``upto``], markers included."""
        return sum(last - first + 1 for _, first, last in self.runs_between(after, upto))

    def runs_between(self, after: Position, upto: Position) -> Iterator[tuple[int, int, int]]:
        """Yield the entries in (``after``, ``upto``], markers included, by ledger: the ledger, and its first and last
        entry."""
        for at in range(bisect_left(self._ledgers, after[0]), len(self._ledgers)):
            ledger = self._ledgers[at]
            if ledger > upto[0]:
                break
            low = max(self._first[at], after[1] + 1) if ledger == after[0] else self._first[at]
            high = min(self._last[at], upto[1]) if ledger == upto[0] else self._last[at]
            if low <= high:
                yield ledger, low, high

    def stored_runs(self, through: Position) -> list[tuple[int, int, int]]:
        """Return the entries that the store still has if it has recorded that all up to ``through`` is trimmed.

        They are by ledger, as from :meth:`runs_between`. The first entry of a ledger that this index has trimmed is not
        known here: entry 0 is given for it.
        """
        hidden = [
            (end.ledger, through.entry + 1 if end.ledger == through.ledger else 0, end.entry)
            for end in self.trimmed_ends
            if through < end
        ]
        return [*hidden, *self.runs_between(max(through, self.trimmed), self.last)]

    def messages_after(self, after: Position, without: PositionSet) -> PositionSet:
        """Return all messages above ``after`` that are not in ``without``. For a cursor's state, these are the
        unconsumed messages."""
        found = PositionSet()
        for ledger, first, last in self.runs_between(after, self.last):
            found.add_range(ledger, first, last)
        found = self.messages_of(found)
        found.difference_update(without)
        return found

    def messages_of(self, positions: PositionSet) -> PositionSet:
        """Return the entries of ``positions`` that are in the log and are no markers."""
        bounds = PositionSet()
        for ledger in positions.ledgers():
            at = bisect_left(self._ledgers, ledger)
            if at < len(self._ledgers) and self._ledgers[at] == ledger:
                bounds.add_range(ledger, self._first[at], self._last[at])
        found = positions.common(bounds)
        found.difference_update(self.markers)
        return found
