"""Positions of other clusters' logs, which clients bring along after a failover, and their translation to local ones.

Invariant 5 (DESIGN §3): a number alone says nothing. A position of another cluster's log is above or below those of
this log by chance, so the two are never compared:

1. A position whose ledger is (or was) one of this log belongs to this log.
2. Otherwise it belongs to the origin that has a ledger with that id, as the extents say. If that origin published the
   entry, the extents also give its local position. If that cluster had copied the entry, its message cannot be found.
3. Ledger ids come from clocks. Two clusters have the same id for a topic if they begin the ledger in the same
   millisecond and draw the same salt. A position that both clusters have is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from replicator.engine.errors import MessageIdUnknown, MessageNotHereYet
from replicator.engine.log.extent_rows import extent_keys, read_extents, read_extents_down
from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.origins import Origins
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import TopicRecord
from snapshots.extents import Extent
from snapshots.position import Position
from snapshots.position_set import PositionSet


@dataclass(frozen=True, slots=True)
class ForeignPosition:
    """Position of the log of ``origin``. ``here`` is the local position of its message, or None if the message is not
    here."""

    origin: str
    incarnation: int
    position: Position
    here: Position | None


class ForeignPositions:
    """Looks up positions of other clusters' logs, for one topic."""

    __slots__ = ("_log", "_name", "_origins", "_shared", "_shared_at", "_store", "_topic_id")

    def __init__(self, record: TopicRecord, log: LogIndex, origins: Origins, store: Store) -> None:
        self._name = record.name
        self._topic_id = record.topic_id
        self._log = log
        self._origins = origins
        self._store = store
        self._shared: frozenset[int] = frozenset()
        """Ledger ids of this log that another origin has, too."""
        self._shared_at = -1

    def find(self, position: Position) -> ForeignPosition | None:
        """Return the position in its origin's log, or None for a position of this log. Raise :class:`MessageIdUnknown`
        if its log cannot be determined."""
        if self._origins.ledgers_begun != self._shared_at:
            self._look_for_shared()
        own = position in self._log
        if own and position.ledger not in self._shared:
            return None
        foreign = self._foreign(position)
        if own:
            if foreign is None or foreign.here is None:
                return None
            raise MessageIdUnknown(
                f"position {position} of {self._name} can be of two messages, one that this cluster published and one "
                f"of {foreign.origin}. For that of {foreign.origin}, give the position that it has in this cluster"
            )
        if foreign is None and not self._log.has_ledger(position.ledger):
            raise MessageIdUnknown(
                f"position {position} is in a ledger that {self._name} does not have here, neither of this cluster nor "
                "of one whose messages were copied: see that the position is of this topic"
            )
        return foreign

    def own_entries(self, ledger: int) -> range:
        """Return the entries of ``ledger`` in this log; none if another origin has a ledger of that number as well.

        A position with one of these entries is certainly one of this log, as :meth:`find` would say of each.
        """
        if self._origins.ledgers_begun != self._shared_at:
            self._look_for_shared()
        return range(0) if ledger in self._shared else self._log.entries_of(ledger)

    def message(self, position: Position) -> Position:
        """Return the local position of the message at ``position``, which can be of another cluster's log.

        Raises :class:`MessageIdUnknown`, :class:`MessageNotHereYet`.
        """
        foreign = self.find(position)
        return position if foreign is None else self.here(foreign)

    def here(self, foreign: ForeignPosition) -> Position:
        """Return the local position of ``foreign``. Raises the errors of :meth:`message`."""
        if foreign.here is not None:
            return foreign.here
        self.check_arrived(foreign)
        raise MessageIdUnknown(
            f"position {foreign.position} of {self._name} in {foreign.origin} is not of a message that "
            f"{foreign.origin} published and that is here: another cluster published it, a link left it out, or it was "
            "trimmed here. Give the position of a message that is here"
        )

    def check_arrived(self, foreign: ForeignPosition) -> None:
        """Raise :class:`MessageNotHereYet` if the origin's messages up to ``foreign`` have not all come."""
        reached = self._origins.high_water(foreign.origin)
        if reached is not None and reached.incarnation == foreign.incarnation and reached.position < foreign.position:
            raise MessageNotHereYet(
                f"{foreign.position} of {self._name} at {foreign.origin} is not here yet: its messages are here up "
                f"to {reached.position}; wait until the link has caught up"
            )

    def through(self, foreign: ForeignPosition, *, above: Position) -> PositionSet:
        """Return the local positions, above ``above``, of messages that the origin published up to and including
        ``foreign``."""
        found = PositionSet()
        origin, incarnation, upto = foreign.origin, foreign.incarnation, foreign.position
        for extent in read_extents_down(self._store, self._topic_id, origin, incarnation, upto=upto, above=above):
            first, last = extent.local_first.entry, extent.local_last.entry
            if extent.origin_last > upto:
                last = first + upto.entry - extent.origin_first.entry
            if extent.local_first <= above:
                first = above.entry + 1
            if first <= last:
                found.add_range(extent.local_first.ledger, first, last)
        return found

    def _foreign(self, position: Position) -> ForeignPosition | None:
        found: ForeignPosition | None = None
        for origin, incarnation in extent_keys(self._store, self._topic_id):
            if self._first_of_ledger(origin, incarnation, position.ledger) is None:
                continue
            if found is not None:
                raise MessageIdUnknown(
                    f"position {position} of {self._name} can be of a message of {found.origin} or of {origin}, which "
                    "both have a ledger of that number: give the position that the message has in this cluster"
                )
            here = self._store.translate(self._topic_id, origin, incarnation, position)
            found = ForeignPosition(origin, incarnation, position, here)
        return found

    def _look_for_shared(self) -> None:
        self._shared_at = self._origins.ledgers_begun
        origins = extent_keys(self._store, self._topic_id)
        self._shared = frozenset(
            ledger
            for ledger, _ in self._log.ledgers()
            if any(self._first_of_ledger(origin, incarnation, ledger) is not None for origin, incarnation in origins)
        )

    def _first_of_ledger(self, origin: str, incarnation: int, ledger: int) -> Extent | None:
        at = Position(ledger, 0)
        found = read_extents(self._store, self._topic_id, origin, incarnation, at=at, runs_max=1)
        return found[0] if found and found[0].origin_first.ledger == ledger else None
