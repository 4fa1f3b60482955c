"""Places of one origin's entries at the brokers, including entries that stand behind later ones. Pure.

Invariant (DESIGN §3): 3, entries of one origin have the same order everywhere. A broker breaks this if it refuses an
entry, and takes others that were under way behind it. The refused entry is published later, and must be found all the
same.

1. A run has entries that follow each other both at the origin and at the brokers (:class:`snapshots.extents.Extent`).
2. A layer is a table of runs, in which both the origin positions and the places at the brokers ascend. The first layer
   has nearly all runs.
3. A run is added to the first layer whose origin positions all lie below it. So an entry that stands behind a later one
   of its origin gets into another layer than the first.
4. Runs are added in the order of the brokers. So the layers follow from the runs alone, and only the runs are stored.
"""

from __future__ import annotations

from bisect import bisect_right

from snapshots.extents import Extent, ExtentTable
from snapshots.position import Position
from snapshots.position_set import PositionSet


class PublishedRuns:
    """The runs of one origin's entries. They map origin positions to the places of the entries at the brokers."""

    __slots__ = ("_layers", "lives")

    def __init__(self) -> None:
        self._layers = [ExtentTable()]
        self.lives: list[tuple[Position, int]] = []
        """Lives of the origin's topic, in order: the first position that was seen of each, and its incarnation."""

    @property
    def main(self) -> ExtentTable:
        """Return the first layer, which has all runs except those that stand behind later entries of the origin."""
        return self._layers[0]

    @property
    def last_local(self) -> Position | None:
        """Return the last place at the brokers that has an entry of the origin; None if none has."""
        return max((table.last.local_last for table in self._layers if table.last), default=None)

    def add(self, run: Extent) -> Extent:
        """Add ``run``, which stands behind all earlier runs at the brokers. Return the run that now has its entries."""
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

    def note_life(self, position: Position, incarnation: int) -> None:
        """Note that the entry at ``position`` was published in the life of the topic that ``incarnation`` names."""
        lives = self.lives
        at = bisect_right(lives, position, key=lambda life: life[0])
        if at and lives[at - 1][1] == incarnation:
            return
        if at < len(lives) and lives[at][1] == incarnation:
            lives[at] = (position, incarnation)
        else:
            lives.insert(at, (position, incarnation))

    def life_at(self, position: Position) -> int:
        """Return the incarnation, which names the topic's life in which the entry at ``position`` was published."""
        return self.lives[max(bisect_right(self.lives, position, key=lambda life: life[0]) - 1, 0)][1]

    def place_of(self, position: Position) -> Position | None:
        """Return where the entry at an origin's position stands at the brokers; None if it is not there."""
        return next((at for table in self._layers if (at := table.to_local(position)) is not None), None)

    def run_of(self, position: Position) -> Extent:
        """Return the run that has the entry at an origin's position, which must be there."""
        (table,) = (each for each in self._layers if each.to_local(position) is not None)
        runs = (table[index] for index in range(len(table) - 1, -1, -1))
        return next(run for run in runs if run.origin_first <= position)

    def all(self) -> list[Extent]:
        """Return all runs."""
        return [run for table in self._layers for run in table]

    def late(self) -> list[Extent]:
        """Return the runs that stand behind later entries of their origin."""
        return [run for table in self._layers[1:] for run in table]

    def places(self, positions: PositionSet) -> PositionSet:
        """Return the places at the brokers of the origin's ``positions``. Leave out positions that are not there."""
        found = self.main.to_local_set(positions)
        for table in self._layers[1:]:
            found.update(table.to_local_set(positions))
        return found

    def origins(self, places: PositionSet) -> PositionSet:
        """Return the origin positions of the brokers' ``places``. Leave out places with entries of other origins."""
        found = self.main.to_origin_set(places)
        for table in self._layers[1:]:
            found.update(table.to_origin_set(places))
        return found

    def after(self, place: Position) -> PositionSet:
        """Return all places after ``place`` that have entries of the origin. Some places before it may be included."""
        found = PositionSet()
        for table in self._layers:
            for index in range(len(table) - 1, -1, -1):
                run = table[index]
                if run.local_last <= place:
                    break
                found.add_range(run.local_first.ledger, run.local_first.entry, run.local_last.entry)
        return found

    def through(self, place: Position) -> Position | None:
        """Return an origin position such that all entries up to it that the brokers have stand at or before ``place``.

        Return None if the brokers have no entry of the origin, or their first one stands after ``place``.
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
        """Remove the runs whose entries all lie below the origin position ``first``, and return these runs.

        If ``first`` is None, remove all runs. The last run of the first layer always stays, because it says how far
        publishing has got.
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
