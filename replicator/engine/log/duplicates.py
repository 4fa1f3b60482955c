"""Duplicates across origins: entries of a topic's log that are one message, which came by two ways. Pure.

A producer that got no confirmation from cluster A sends its message again to cluster B. Later the links copy A's entry
to B and B's to A, and each log has both: copies are exact (invariants 2 and 3 of DESIGN §3). Both have the same
(producer name, sequence id), and are one message. :mod:`replicator.engine.producing.sequence_index` finds duplicates
when the later entry is committed. This module keeps them for the subscriptions of the topic.

1. The entries of one message are a chain in the order of the local log, each of another origin.
2. Subscriptions deliver the first entry of a chain. All after it are hidden.
3. Trimmed entries leave their chain. The next entry becomes the first, so later subscriptions find the message there.

The table of the store and the HTTP route still have the older name ``twins``. Everywhere else a twin is another live
copy of a worker's store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from snapshots.position import Position
from snapshots.position_set import PositionSet

DUPLICATES_MAX: Final = 100_000
"""Limit of entries of one topic that are or have duplicates, some 400 bytes each. A producer sends again at most what
it had pending when it lost its cluster. Past the limit duplicates are not recognised, and such a message is delivered
twice."""


class DuplicateEntries:
    """Chains of duplicate entries of one topic."""

    __slots__ = ("_earlier", "_later", "hidden", "members")

    def __init__(self, pairs: Iterable[tuple[Position, Position]] = ()) -> None:
        self._earlier: dict[Position, Position] = {}
        self._later: dict[Position, Position] = {}
        self.members = PositionSet()
        """Positions of all entries that have a duplicate."""
        self.hidden = PositionSet()
        """Positions of entries that are not delivered, because an earlier entry of the same message is here."""
        for earlier, later in pairs:
            self.link(earlier, later)

    def __bool__(self) -> bool:
        return bool(self._later)

    def link(self, earlier: Position, later: Position) -> None:
        """Record that the entry at ``later`` duplicates the one at ``earlier``, so far the last of its chain."""
        assert earlier < later
        assert earlier not in self._later, f"{earlier} is not the last of its chain"
        self._later[earlier] = later
        self._earlier[later] = earlier
        self.members.add(earlier)
        self.members.add(later)
        self.hidden.add(later)

    def duplicate_of(self, position: Position) -> Position | None:
        """Return the entry before ``position`` in its chain, or else the one after it."""
        return self._earlier.get(position) or self._later.get(position)

    def others(self, position: Position) -> Iterator[Position]:
        """Yield all other entries of the same message."""
        for links in (self._earlier, self._later):
            at = links.get(position)
            while at is not None:
                yield at
                at = links.get(at)

    def between(self, after: Position, upto: Position) -> Iterator[Position]:
        """Yield the entries in (``after``, ``upto``] that have a duplicate, in order."""
        at = self.members.next_after(after)
        while at is not None and at <= upto:
            yield at
            at = self.members.next_after(at)

    def among(self, positions: PositionSet) -> Iterator[Position]:
        """Yield the entries of ``positions`` that have a duplicate, in order."""
        return iter(self.members.common(positions))

    def with_duplicates(self, positions: PositionSet) -> PositionSet:
        """Return ``positions`` and all duplicates of them."""
        found = positions.copy()
        for position in self.among(positions):
            for other in self.others(position):
                found.add(other)
        return found

    def trim(self, upto: Position) -> None:
        """Forget all entries up to ``upto``: they were trimmed."""
        for position in list(self.between(Position(0, -1), upto)):
            self._earlier.pop(position, None)
            later = self._later.pop(position, None)
            if later is not None:
                del self._earlier[later]
                self.hidden.discard(later)
                if later not in self._later:
                    self.members.discard(later)
        self.members.discard_through(upto)
        self.hidden.discard_through(upto)
