"""The positions of one topic's entries at the brokers and in the engine's log. Pure.

Invariant (DESIGN §3): 3, entries of one origin have the same order on both sides. So each origin has one ascending
table on each side.

1. Entries that producers published at the brokers have the brokers' own origin. Their origin positions are the
   positions at the brokers. The extents of the engine's log have their local positions.
2. Entries that links brought, and the bridge published, have another origin. The extents have their positions in the
   engine's log, and ``published`` has their positions at the brokers.
3. An entry that both tables know is translated one to one, in both directions.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import NamedTuple

from replicator.apache.stamps import Identity
from snapshots.extents import Extent, ExtentTable
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet


class _Both(NamedTuple):
    """Cache of the entries that both the engine and the brokers have, after a position of the brokers.

    All subscriptions of a topic share it.
    """

    changes: int
    beyond: Position
    at_brokers: PositionSet


class EntryMap:
    """Positions of one topic's entries at the brokers and in the engine's log.

    ``broker_origin`` names the origin of messages that were published at the brokers.
    """

    def __init__(self, broker_origin: str) -> None:
        self.broker_origin = broker_origin
        self._copied: dict[str, ExtentTable] = {}
        """By origin: origin position to position in the engine's log."""
        self._published: dict[str, ExtentTable] = {}
        """By origin: origin position to position at the brokers."""
        self._lives: dict[str, list[tuple[Position, int]]] = {}
        """By origin in ``_published``: the lives of its topic, in order, each with the first position seen and its
        incarnation."""
        self.changes = 0
        """Number that changes whenever the set of entries that both sides have may change."""
        self._both = _Both(0, BEFORE_ALL, PositionSet())
        self.doubled = 0
        """Entries that stand at the brokers although they did before. Nobody's acknowledgements of them travel."""

    # What happens.

    def copied(
        self, origin: str, origin_first: Position, local_first: Position, entries: int, *, messages: bool = True
    ) -> None:
        """Entries of an origin were appended to the engine's log; others than messages are never at the brokers."""
        self.changes += messages
        table = self._copied.setdefault(origin, ExtentTable())
        last = table.last
        if last is None or origin_first > last.origin_last:
            table.append(origin_first, local_first, entries)

    def published(self, identity: Identity, run: Extent) -> None:
        """As it was stored: entries of an origin, from this one on, lie at the brokers from ``run.local_first`` on."""
        self.changes += 1
        self._note_life(identity)
        self._published.setdefault(identity.origin, ExtentTable()).append(*run)

    def seen_at_broker(self, identity: Identity, position: Position) -> Extent | None:
        """An entry with a stamp lies at the brokers. Returns the run that it belongs to now, as it is to be stored,
        also where it is seen there again; None if it, or a later one of its origin, was at another place before, or
        the run is forgotten."""
        table = self._published.setdefault(identity.origin, ExtentTable())
        last = table.last
        if last is not None and identity.position <= last.origin_last:
            if table.first is None or position < table.first.local_first:
                return None  # it was trimmed
            if table.to_local(identity.position) != position:
                self.doubled += 1
                return None
            runs = (table[index] for index in range(len(table) - 1, -1, -1))
            return next(run for run in runs if run.origin_first <= identity.position)
        self.changes += 1
        self._note_life(identity)
        table.append(identity.position, position, 1)
        return table.last

    def trim(self, through: Position) -> list[tuple[Identity, Extent]]:
        """The engine's log was trimmed up to there. Returns the runs at the brokers that are forgotten by that; the
        last of each origin stays, as it says how far publishing is."""
        self.changes += 1
        gone: list[tuple[Identity, Extent]] = []
        for table in self._copied.values():
            table.trim(through)
        for origin, published in self._published.items():
            copied = self._copied.get(origin)
            first = None if copied is None else copied.first
            runs = [published[index] for index in range(len(published) - 1)]
            runs = [run for run in runs if first is None or run.origin_last < first.origin_first]
            if runs:
                gone += [(Identity(origin, self._life_of(origin, run), run.origin_first), run) for run in runs]
                published.trim(runs[-1].local_last)
        return gone

    # Questions.

    def published_through(self, origin: str) -> Position:
        """All of an origin up to there is at the brokers, as far as it was to be."""
        table = self._published.get(origin)
        return BEFORE_ALL if table is None or table.last is None else table.last.origin_last

    def last_published(self) -> Position:
        """The last position of the brokers at which an entry of the bridge's own was found."""
        return max((table.last.local_last for table in self._published.values() if table.last), default=BEFORE_ALL)

    def published_ends(self) -> dict[str, tuple[int, Extent, Extent]]:
        """By origin: its incarnation, and the first and the last run of it that is known to lie at the brokers."""
        return {
            origin: (self._life_of(origin, table.last), table.first, table.last)
            for origin, table in self._published.items()
            if table.first is not None and table.last is not None
        }

    def publish_from(self, origin: str) -> Position:
        """A position in the engine's log up to which nothing of an origin is left to be published."""
        return self.copied_to(origin, self.published_through(origin))

    def copied_to(self, origin: str, position: Position) -> Position:
        """Return the position of an origin's entry in the engine's log, or BEFORE_ALL if the entry is not there."""
        copied = self._copied.get(origin)
        local = None if copied is None else copied.to_local(position)
        return BEFORE_ALL if local is None else local

    def to_broker(self, local: PositionSet) -> PositionSet:
        """Return the broker's positions of entries of the engine's log. Entries that the brokers lack are left out."""
        found = PositionSet()
        for origin, copied in self._copied.items():
            there = copied.to_origin_set(local)
            if origin == self.broker_origin:
                found.update(there)
            elif (published := self._published.get(origin)) is not None:
                found.update(published.to_local_set(there))
        return found

    def to_local(self, at_broker: PositionSet) -> PositionSet:
        """Return the positions in the engine's log of entries at the brokers. Entries that the log lacks are left
        out."""
        found = PositionSet()
        for origin, copied in self._copied.items():
            if origin == self.broker_origin:
                found.update(copied.to_local_set(at_broker))
            elif (published := self._published.get(origin)) is not None:
                found.update(copied.to_local_set(published.to_origin_set(at_broker)))
        return found

    def ends_at(self, position: Position) -> dict[str, Position]:
        """Find each origin's last entry at or below the brokers' ``position``; return its origin position, by origin.

        An origin without such an entry is left out. For the brokers' own origin the result is ``position`` itself.
        """
        ends: dict[str, Position] = {}
        own = self._copied.get(self.broker_origin)
        if own is not None and own.first is not None and own.first.origin_first <= position:
            ends[self.broker_origin] = position
        for origin, table in self._published.items():
            if table.first is not None and table.first.local_first <= position:
                through = table.origin_through(position)
                assert through is not None
                ends[origin] = through
        return ends

    def up_to(self, at_brokers: PositionSet, ends: Mapping[str, Position]) -> PositionSet:
        """Return the entries of ``at_brokers`` whose origin position is at or below the end of their origin in
        ``ends``.

        Entries of an origin that ``ends`` lacks are left out. The result has positions of the brokers.
        """
        found = PositionSet()
        own = at_brokers.copy() if self.broker_origin in ends else PositionSet()
        for origin, table in self._published.items():
            if own:
                own.difference_update(table.of_origin(own))
            if origin in ends and (theirs := table.to_origin_set(at_brokers)):
                theirs.discard_after(ends[origin])
                found.update(table.to_local_set(theirs))
        if own:
            own.discard_after(ends[self.broker_origin])
            found.update(own)
        return found

    def beyond(self, mark_delete: Position) -> PositionSet:
        """Return all entries after ``mark_delete`` that lie on both sides; all positions are those of the brokers."""
        if self._both.changes != self.changes or mark_delete < self._both.beyond:
            self._both = _Both(self.changes, mark_delete, self._on_both_sides(mark_delete))
        return self._both.at_brokers.after(mark_delete)

    def _on_both_sides(self, mark_delete: Position) -> PositionSet:
        found = PositionSet()
        own = self._copied.get(self.broker_origin)
        if own is not None:
            for index in range(len(own) - 1, -1, -1):
                run = own[index]
                if run.origin_last <= mark_delete:
                    break
                found.add_range(run.origin_first.ledger, run.origin_first.entry, run.origin_last.entry)
        for origin, published in self._published.items():
            copied = self._copied.get(origin)
            if copied is None:
                continue
            theirs = PositionSet()
            for index in range(len(published) - 1, -1, -1):
                run = published[index]
                if run.local_last <= mark_delete:
                    break
                theirs.add_range(run.local_first.ledger, run.local_first.entry, run.local_last.entry)
            here = copied.to_local_set(published.to_origin_set(theirs))
            found.update(published.to_local_set(copied.to_origin_set(here)))
        found.discard_through(mark_delete)
        return found

    def _note_life(self, identity: Identity) -> None:
        seen = self._lives.setdefault(identity.origin, [])
        if not seen or seen[-1][1] != identity.incarnation:
            seen.append((identity.position, identity.incarnation))

    def _life_of(self, origin: str, run: Extent) -> int:
        """Return the incarnation of the origin's topic that published the entries of ``run``."""
        lives = self._lives[origin]
        at = bisect_right(lives, run.origin_first, key=lambda life: life[0])
        return lives[max(at - 1, 0)][1]
