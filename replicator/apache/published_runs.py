"""The runs of one origin's entries at the brokers, also of those that stand behind later ones. Pure.

Invariant (DESIGN §3): 3, entries of one origin have the same order everywhere. A broker that refuses an entry, and
takes others that were under way behind it, breaks that. The refused entry follows later, and must be found all the
same.

1. A layer is a table of extents, which ascends on both sides. The first layer has nearly everything.
2. An entry is added to the first layer that ends below it. So an entry that stands behind a later one of its origin
   lies in a layer of its own, with others like it.
3. Entries are added in the order of the brokers. So the layers follow from the runs alone, and only runs are stored.
"""

from __future__ import annotations

from snapshots.extents import Extent, ExtentTable
from snapshots.position import Position
from snapshots.position_set import PositionSet


class PublishedRuns:
    """Runs of one origin at the brokers: origin position to position at the brokers."""

    __slots__ = ("_layers",)

    def __init__(self) -> None:
        self._layers = [ExtentTable()]

    @property
    def main(self) -> ExtentTable:
        """Return the runs that ascend, without those that stand behind later ones."""
        return self._layers[0]

    @property
    def last_local(self) -> Position | None:
        """Return the last place at the brokers that has an entry of the origin; None if none has."""
        return max((table.last.local_last for table in self._layers if table.last), default=None)

    def add(self, run: Extent) -> Extent:
        """Add ``run``, which stands behind everything that was added before, and return the run that it belongs to."""
        for table in self._layers:
            if table.last is None or table.last.origin_last < run.origin_first:
                break
        else:
            table = ExtentTable()
            self._layers.append(table)
        table.append(*run)
        added = table.last
        assert added is not None
        return added

    def place_of(self, position: Position) -> Position | None:
        """Return where the entry at an origin's position stands at the brokers; None if it is not there."""
        return next((at for table in self._layers if (at := table.to_local(position)) is not None), None)

    def run_of(self, position: Position) -> Extent:
        """Return the run that has the entry at an origin's position, which must be there."""
        (table,) = (each for each in self._layers if each.to_local(position) is not None)
        runs = (table[index] for index in range(len(table) - 1, -1, -1))
        return next(run for run in runs if run.origin_first <= position)

    def late(self) -> list[Extent]:
        """Return the runs that stand behind later entries of their origin."""
        return [run for table in self._layers[1:] for run in table]

    def places(self, positions: PositionSet) -> PositionSet:
        """Return where those of the origin's ``positions`` stand that are at the brokers."""
        found = self.main.to_local_set(positions)
        for table in self._layers[1:]:
            found.update(table.to_local_set(positions))
        return found

    def origins(self, places: PositionSet) -> PositionSet:
        """Return the origin positions of those of the brokers' ``places`` that have entries of this origin."""
        found = self.main.to_origin_set(places)
        for table in self._layers[1:]:
            found.update(table.to_origin_set(places))
        return found

    def after(self, place: Position) -> PositionSet:
        """Return all places at the brokers after ``place`` that have entries of the origin, and maybe some before."""
        found = PositionSet()
        for table in self._layers:
            for index in range(len(table) - 1, -1, -1):
                run = table[index]
                if run.local_last <= place:
                    break
                found.add_range(run.local_first.ledger, run.local_first.entry, run.local_last.entry)
        return found

    def through(self, place: Position) -> Position | None:
        """Return an origin position up to which everything at the brokers stands at or before ``place``.

        Return None if nothing of the origin stands there.
        """
        first = self.main.first
        if first is None or first.local_first > place:
            return None  # the first layer has the first entry
        end = self.main.origin_through(place)
        assert end is not None
        for run in self.late():
            if run.local_last <= place:
                continue
            passed = place.entry - run.local_first.entry + 1 if place.ledger == run.local_first.ledger else 0
            end = min(end, Position(run.origin_first.ledger, run.origin_first.entry + max(passed, 0) - 1))
        return end

    def trim(self, first: Position | None) -> list[Extent]:
        """Forget the runs that lie wholly below ``first``, a position of the origin, and return them; with None, all.

        The last run of the first layer stays: it says how far publishing is.
        """
        gone: list[Extent] = []
        for number, table in enumerate(self._layers):
            runs = [table[index] for index in range(len(table) - (number == 0))]
            runs = [run for run in runs if first is None or run.origin_last < first]
            if runs:
                gone += runs
                table.trim(runs[-1].local_last)
        self._layers[1:] = [table for table in self._layers[1:] if len(table)]
        return gone
