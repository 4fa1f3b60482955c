"""What a consumer that moves from one cluster to another knows of messages by their identity. Sans-IO.

A position means something in one cluster only. What the application acknowledged in the former cluster and that was
not confirmed there, and what it acknowledges later of what it got there, is kept by identity (origin and origin
position, the same everywhere), and counts as soon as the new cluster delivers the same message.

Invariant 5 (DESIGN §3), from the client's side: a position of the former cluster is never sent to the new one, where it
could be another message's.

1. :meth:`Moves.delivered`: an entry came. What of it was acknowledged before the move is returned, to be
   acknowledged here at once: it is not shown again.
2. :meth:`Moves.place`: the application acknowledges. A position that was delivered here is itself; one from before is
   where the same entry lies here, or None while it has not come: then it is remembered. One that is not known any
   more after a move is dropped: its message may be shown again.
3. :meth:`Moves.settled`: what was acknowledged by its position from before may have come here meanwhile, and wait to be
   shown. It is not shown.
4. :meth:`Moves.moved`: all that was delivered so far is from before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice, takewhile
from typing import Final

from pyroaring import BitMap

from snapshots.position import Position

REMEMBERED_MAX: Final = 100_000
"""Entries from before a move: tens of megabytes. Past it the oldest are forgotten, and may be shown again."""

Identity = tuple[str, Position]


class Moves:
    """The identities of one consumer's entries."""

    __slots__ = ("_acknowledged", "_before", "_here", "_moved", "_places", "_settled")

    def __init__(self) -> None:
        self._here: dict[Position, Identity] = {}
        """Delivered by this cluster, and not confirmed; in the order of delivery."""
        self._places: dict[Identity, Position] = {}
        """The same the other way round, for what may be asked for by a position from before."""
        self._before: dict[Position, Identity] = {}
        """Delivered by former clusters, and not confirmed."""
        self._moved = False
        self._acknowledged: dict[Identity, BitMap | None] = {}
        """Acknowledged and not confirmed by a former cluster: indexes of a batch, or None for the whole entry."""
        self._settled: dict[Position, BitMap | None] = {}
        """Delivered here, and acknowledged by a position from before: indexes of a batch, or None for all of it."""

    def delivered(self, position: Position, identity: Identity) -> BitMap | bool:
        """What of this entry was acknowledged before the move: all, nothing, or some indexes."""
        self._here[position] = identity
        if len(self._here) > REMEMBERED_MAX:
            self._forget(next(iter(self._here)))
        if not self._moved:
            return False
        self._places[identity] = position
        if identity not in self._acknowledged:
            return False
        indexes = self._acknowledged.pop(identity)
        return True if indexes is None else indexes

    def place(self, position: Position, batch_index: int, batch_size: int) -> Position | None:
        """Where an entry that is being acknowledged lies here; None if it is not here (yet)."""
        if not self._moved or position in self._here:
            return position
        identity = self._before.get(position)
        if identity is None:  # it was confirmed, here or before, or is forgotten: it must not be taken for another's
            return None
        if (place := self._places.get(identity)) is not None:
            known = self._settled.get(place, BitMap())
            whole = batch_index < 0 or batch_size <= 1 or known is None
            self._settled[place] = None if whole or known is None else known | BitMap([batch_index])
            return place
        self._note(identity, None if batch_index < 0 or batch_size <= 1 else BitMap([batch_index]), batch_size)
        return None

    def settled(self, position: Position, batch_index: int) -> bool:
        """Whether a message that was delivered here was acknowledged since, by its position from before."""
        if not self._settled or position not in self._settled:
            return False
        indexes = self._settled[position]
        return indexes is None or batch_index in indexes

    def before_through(self, position: Position) -> list[Position] | None:
        """The entries that a cumulative acknowledgement of a position from before covers; None if it is not from
        before."""
        if not self._moved or position in self._here:
            return None
        return [each for each in self._before if each <= position]

    def confirmed(self, positions: Iterable[Position], through: Position | None) -> None:
        """The cluster has these acknowledgements: they need no identity any more."""
        for position in positions:
            self._forget(position)
        if through is not None:
            for position in list(takewhile(lambda each: each <= through, self._here)):
                self._forget(position)

    def moved(
        self, entries: Iterable[Position], batches: Mapping[Position, BitMap], through: Iterable[Position]
    ) -> None:
        """The next delivery is of another cluster. What is given was acknowledged and not confirmed: whole entries,
        indexes of batches, and everything up to positions."""
        for position in entries:
            if (identity := self._here.get(position)) is not None:
                self._acknowledged[identity] = None
        for position, indexes in batches.items():
            if (identity := self._here.get(position)) is not None:
                self._note(identity, indexes, 0)
        for last in through:
            for position, identity in self._here.items():
                if position <= last:
                    self._acknowledged[identity] = None
        self._moved = True
        self._before.update(self._here)
        self._here = {}
        self._places = {}
        self._settled = {}
        for table in (self._before, self._acknowledged):
            for oldest in list(islice(table, max(0, len(table) - REMEMBERED_MAX))):
                del table[oldest]  # type: ignore[arg-type]

    def _note(self, identity: Identity, indexes: BitMap | None, batch_size: int) -> None:
        known = self._acknowledged.get(identity, BitMap())
        if known is None:
            return
        if indexes is None:
            self._acknowledged[identity] = None
            return
        together = known | indexes
        self._acknowledged[identity] = None if batch_size and len(together) >= batch_size else together

    def _forget(self, position: Position) -> None:
        identity = self._here.pop(position, None)
        if identity is not None:
            self._places.pop(identity, None)
