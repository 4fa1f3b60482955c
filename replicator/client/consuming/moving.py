"""Identities of messages of a consumer that moves from one cluster to another. Sans-IO.

A position means something in one cluster only. An acknowledgement that the former cluster did not confirm is kept by
identity (origin and origin position, the same everywhere), like later ones of messages from there. It counts when the
new cluster delivers the same message.

Invariant 5 (DESIGN §3), on the client's side: a position of the former cluster is never sent to the new one, where it
could be another message's.

1. :meth:`EntryIdentities.delivered`: an entry arrived. It returns the parts acknowledged before the move, which are
   acknowledged here at once and not shown again.
2. :meth:`EntryIdentities.place`: the application acknowledges. A position that was delivered here stays as it is. One
   from before the move becomes the position of the same entry here, or None while it has not arrived: then it is
   remembered. One that was forgotten is dropped: its message may be shown again.
3. :meth:`EntryIdentities.settled`: a message that was acknowledged by its former position may have arrived here
   meanwhile, and wait to be shown. It is not shown.
4. :meth:`EntryIdentities.moved`: everything delivered so far counts as from before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice, takewhile
from typing import Final

from pyroaring import BitMap

from snapshots.position import Position

REMEMBERED_MAX: Final = 100_000
"""Limit of remembered entries from before a move: tens of megabytes. Past it the oldest are forgotten, and may be shown
again."""

Identity = tuple[str, Position]


class EntryIdentities:
    """Identities of one consumer's entries."""

    __slots__ = ("_acknowledged", "_before", "_here", "_moved", "_places", "_settled")

    def __init__(self) -> None:
        self._here: dict[Position, Identity] = {}
        """Identities of unconfirmed entries that this cluster delivered, in the order of delivery."""
        self._places: dict[Identity, Position] = {}
        """Positions in this cluster by identity, to translate positions from before a move."""
        self._before: dict[Position, Identity] = {}
        """Identities of unconfirmed entries that former clusters delivered."""
        self._moved = False
        self._acknowledged: dict[Identity, BitMap | None] = {}
        """Acknowledgements that a former cluster did not confirm: indexes of a batch, or None for the whole entry."""
        self._settled: dict[Position, BitMap | None] = {}
        """Entries delivered here and acknowledged by a former position: indexes of a batch, or None for all of it."""

    def delivered(self, position: Position, identity: Identity) -> BitMap | bool:
        """Record a delivered entry; return which part was acknowledged before the move: all, nothing, or some
        indexes."""
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
        """Return the position here of an entry that is being acknowledged; None if it is not here (yet)."""
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
        """Return whether a message delivered here was acknowledged since, by its former position."""
        if not self._settled or position not in self._settled:
            return False
        indexes = self._settled[position]
        return indexes is None or batch_index in indexes

    def before_through(self, position: Position) -> list[Position] | None:
        """Return the entries that a cumulative acknowledgement of a former position covers; None if it is a position of
        this cluster."""
        if not self._moved or position in self._here:
            return None
        return [each for each in self._before if each <= position]

    def confirmed(self, positions: Iterable[Position], through: Position | None) -> None:
        """Forget the identities of acknowledged entries that the cluster has confirmed."""
        for position in positions:
            self._forget(position)
        if through is not None:
            for position in list(takewhile(lambda each: each <= through, self._here)):
                self._forget(position)

    def moved(
        self, entries: Iterable[Position], batches: Mapping[Position, BitMap], through: Iterable[Position]
    ) -> None:
        """Take note that the next delivery comes from another cluster.

        The arguments are acknowledgements that the former one did not confirm: whole entries, indexes of batches, and
        positions up to which everything is acknowledged."""
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
