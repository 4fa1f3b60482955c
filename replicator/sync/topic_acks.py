"""Translation between a subscription's cursor and ack vectors, by the extents of one topic (DESIGN 4.4). Pure.

A cursor has local positions. An ack vector names messages by identity: origin and origin position. Invariant 5 (no
skip): a vector that is made here claims only messages that are or were in this log, and positions that have no message.

From the cursor to a vector:

1. Own messages: their local position is their origin position. All of a ledger up to the mark-delete position is
   claimed as one range. Copied entries inside the range do no harm: their local positions identify no message of this
   cluster. Positions between two ledgers are not claimed, even if trimmed: a log that was restored from an old copy has
   lost the end of a ledger, and other clusters may have that end.
2. Messages of another origin are also claimed ledger by ledger, because that origin may have been restored, too. Each
   range ends at the last entry of the ledger that is or was here. The last range ends at the last entry at or below the
   mark-delete position. Four things are not claimed. Ranges that a link left out: nobody consumed those messages here.
   Batches with messages that a link left out: only their messages that are here are claimed
   (:mod:`replicator.sync.partly_announced`). Entries of any origin that were trimmed when the generation began here:
   they count as consumed only because this cluster cannot deliver them. Trimmed entries of which nobody knows whether
   they lie at or below the mark-delete position: a subscription that reads compacted may stand below them.
3. Acknowledged positions after the mark-delete position, and parts of batches, are translated by the extents.
4. Nothing before the start of the subscription is claimed, because nobody consumed it (:mod:`snapshots.starts`).

From a vector to the cursor:

5. A range of own messages is restricted to entries that are not copies.
6. Claims about another origin after its last entry here are returned to the caller, which places them when the entries
   come. An entry before that last entry, and not here, never comes: it was left out, or trimmed. A claim about it is
   accepted and has no effect.
7. Positions of an origin ascend from one life of its topic to the next (docs/adr/0080). So one table of extents serves
   all lives. A claim about a life that has not come yet waits (6).

Extents are forgotten one checkpoint after the log was trimmed, because what was consumed just before may still be
unannounced.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyroaring import BitMap

from replicator.engine.log.log_index import LogIndex
from replicator.engine.log.store_tables import HighWater
from replicator.engine.subscriptions.cursor_state import CursorState
from replicator.engine.subscriptions.unannounced import Unannounced
from replicator.sync.partly_announced import announce_around, announce_parts, of_missing
from snapshots import starts
from snapshots.ack_vector import AckVector, OriginAcks, Range, merged_ranges, without
from snapshots.extents import ExtentTable
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet


@dataclass(slots=True)
class Placed:
    """Acknowledgements translated to local positions. ``rest`` has those of messages that have not come yet, as
    identities."""

    positions: PositionSet = field(default_factory=PositionSet)
    batches: dict[Position, BitMap] = field(default_factory=dict)
    rest: AckVector = field(default_factory=AckVector)


class TopicAcks:
    """Translation of one topic's acknowledgements between local positions in ``cluster`` and identities, by extents.

    ``high_water`` returns the high-water mark of an origin. ``left_out`` returns the ranges of an origin that its link
    left out. ``trimmed_ends`` returns, by origin, the last entry of each trimmed ledger.
    """

    def __init__(
        self,
        cluster: str,
        incarnation: int,
        log: LogIndex,
        high_water: Callable[[str], HighWater | None],
        left_out: Callable[[str], list[Range]],
        trimmed_ends: Callable[[], Mapping[str, Sequence[Position]]],
    ) -> None:
        self._cluster = cluster
        self._incarnation = incarnation
        self._log = log
        self._high_water = high_water
        self._left_out = left_out
        self._trimmed_ends = trimmed_ends
        self._tables: dict[str, ExtentTable] = {}
        self._incarnations: dict[str, int] = {}

    def copied(
        self, origin: str, incarnation: int, origin_first: Position, local_first: Position, entries: int
    ) -> None:
        """Record that entries of another origin were appended to the log."""
        table = self._tables.get(origin)
        if table is None:
            table = self._tables[origin] = ExtentTable()
        self._incarnations[origin] = max(incarnation, self._incarnations.get(origin, incarnation))
        last = table.last
        if last is None or origin_first > last.origin_last:  # else it was loaded before this worker was told of it
            table.append(origin_first, local_first, entries)

    def trim(self, through: Position) -> None:
        """Forget the extents up to ``through``, which were trimmed from the log some time ago."""
        for table in self._tables.values():
            table.trim(through)

    def holds(self, origin: str, position: Position) -> bool:
        """Return whether an entry of ``origin``, at or below its high-water mark, is or was in the log."""
        if origin == self._cluster:
            return position in self._log or _ended_at(self._log.trimmed_ends, position)
        table = self._tables.get(origin)
        is_here = table is not None and table.to_local(position) is not None
        return is_here or _ended_at(self._trimmed_ends().get(origin, ()), position)

    def origins(self) -> list[str]:
        """Return the other clusters whose entries the log has."""
        return [origin for origin in self._tables if self._high_water(origin) is not None]

    # ---- out of the cursor ------------------------------------------------------------------------------

    def vector_of(self, state: CursorState, origins: Mapping[str, HighWater]) -> AckVector:
        """Return the whole state of a subscription as identities, as far as this log proves it.

        ``origins`` names every origin whose entries the log has or had.
        """
        trimmed_ends = self._trimmed_ends()
        upto = state.mark_delete
        own = without(self._own_ranges(upto), self._left_out(self._cluster))  # what a restore lost, and nobody had left
        vector = AckVector({self._cluster: OriginAcks(self._incarnation, own)})
        for origin, high_water in origins.items():
            if origin == self._cluster:
                continue
            acks = vector.origins[origin] = OriginAcks(high_water.incarnation)
            reached = self._reached(origin, high_water, upto)
            if reached > BEFORE_ALL:
                ends = [*trimmed_ends.get(origin, ()), *self._ledgers(origin)]
                acks.ranges = without(_through(ends, reached), self._left_out(origin))
        for origin, upto in (state.unclaimed or {}).items():
            if (unclaimed := vector.origins.get(origin)) is not None:
                unclaimed.ranges = without(unclaimed.ranges, [(BEFORE_ALL, upto)])
        positions = state.individually_deleted
        batches: Mapping[Position, BitMap] = state.batch_acks
        if (parts := self._log.parts) is not None:
            for origin, partly in parts.origins.items():
                if origin in vector.origins:
                    announce_around(vector.origins[origin], partly)
            consumed = parts.local.copy()
            consumed.discard_after(state.mark_delete)
            consumed.update(positions)
            positions, batches, _ = announce_parts(parts, consumed, batches)
        self._add(vector, positions, batches)
        starts.cut(vector, state.starts)
        return vector

    def trimmed_through(self, origins: Mapping[str, HighWater]) -> dict[str, Position]:
        """Return, by origin, the position up to which its entries are trimmed in this cluster. See
        :attr:`CursorState.unclaimed`."""
        trimmed = self._log.trimmed
        if trimmed == BEFORE_ALL:
            return {}
        others = ((origin, each) for origin, each in origins.items() if origin != self._cluster)
        return {self._cluster: trimmed, **{origin: self._reached(origin, each, trimmed) for origin, each in others}}

    def delta_of(self, unannounced: Unannounced, state: CursorState) -> tuple[AckVector, PositionSet]:
        """Return the unannounced acknowledgements as identities, and the positions of batches that must wait.

        Those batches are here in part, and are too many for one announcement. They wait for a later one.
        """
        vector = AckVector()
        batches = {
            position: indexes
            for position in unannounced.batches
            if (indexes := state.batch_acks.get(position)) is not None
        }
        announced: Mapping[Position, BitMap] = batches
        positions, later = unannounced.positions, PositionSet()
        if self._log.parts is not None:
            positions, announced, later = announce_parts(self._log.parts, positions, announced)
        self._add(vector, positions, announced)
        starts.cut(vector, state.starts)
        return AckVector({origin: acks for origin, acks in vector.origins.items() if acks}), later

    def _own_ranges(self, upto: Position) -> list[Range]:
        trimmed = min(upto, self._log.trimmed)
        runs = self._log.runs_between(trimmed, upto)
        return merged_ranges(
            [
                *_through(self._log.trimmed_ends, trimmed),
                *((Position(ledger, first - 1), Position(ledger, last)) for ledger, first, last in runs),
            ]
        )

    def unconsumed(self, state: CursorState, origins: Mapping[str, HighWater]) -> AckVector:
        """Return the identities of unconsumed entries in the log, and for partly acknowledged batches the
        *acknowledged* indexes.

        For two clusters with the same messages of an origin, the results are equal exactly if their subscriptions agree
        on that origin.
        """
        left = self._log.messages_after(state.mark_delete, state.individually_deleted)
        vector = AckVector(
            {origin: OriginAcks(each.incarnation) for origin, each in origins.items() if origin != self._cluster}
        )
        vector.origins[self._cluster] = OriginAcks(self._incarnation)
        self._add(vector, left, state.batch_acks)
        return vector

    def _reached(self, origin: str, high_water: HighWater, upto: Position) -> Position:
        """Return the highest origin position of ``origin`` that is known to lie at or below the local position
        ``upto``; BEFORE_ALL if none is."""
        table = self._tables.get(origin)
        first = None if table is None else table.first
        if upto < self._log.trimmed and (first is None or first.local_first > upto):
            return BEFORE_ALL  # trimmed entries of the origin may lie above, and a compacted view may have them
        reached = None if table is None else table.origin_through(upto)
        return high_water.position if reached is None else reached  # all of it is trimmed, so it lies below

    def _add(self, vector: AckVector, positions: PositionSet, batches: Mapping[Position, BitMap]) -> None:
        own = positions.copy()
        for origin, table in self._tables.items():
            foreign = table.of_origin(positions)
            if not foreign:
                continue
            own.difference_update(foreign)
            self._acks(vector, origin).positions.update(table.to_origin_set(foreign))
        if own:
            self._acks(vector, self._cluster).positions.update(own)
        for position, indexes in batches.items():
            origin, at = self._identity(position)
            self._acks(vector, origin).batches[at] = indexes

    def _acks(self, vector: AckVector, origin: str) -> OriginAcks:
        acks = vector.origins.get(origin)
        if acks is None:
            acks = vector.origins[origin] = OriginAcks(self._incarnation_of(origin))
        return acks

    def _identity(self, position: Position) -> tuple[str, Position]:
        for origin, table in self._tables.items():
            if (at := table.to_origin(position)) is not None:
                return origin, at
        return self._cluster, position

    def _ledgers(self, origin: str) -> list[Position]:
        table = self._tables.get(origin)
        return [] if table is None else table.origin_ledgers()

    # ---- into the cursor --------------------------------------------------------------------------------

    def place(self, vector: AckVector, above: Position) -> Placed:
        """Return the local positions of the messages in ``vector``, and as a rest the identities of messages that have
        not come yet.

        Ranges are restricted to positions above ``above``, because everything below is consumed.
        """
        placed = Placed()
        for origin, acks in vector.origins.items():
            if origin == self._cluster:
                self._place_own(acks, above, placed)
                continue
            high_water = self._high_water(origin)
            self._place_copied(acks, self._tables.get(origin), above, placed)
            rest = acks.copy()
            if high_water is not None:
                rest.discard_through(high_water.position)
            if rest:
                placed.rest.origins[origin] = rest
        return placed

    def before(self, ends: Mapping[str, Position], above: Position) -> PositionSet:
        """Return the local positions above ``above`` of entries before a start.

        ``ends`` has, by origin, the last entry before the start. An entry is left out if another entry of the same
        message lies after the start.
        """
        found = PositionSet()
        for origin, end in ends.items():
            found.update(self.between(origin, BEFORE_ALL, end, above=above))
        if (duplicates := self._log.duplicates) is not None:
            for position in list(duplicates.among(found)):
                if any(other > above and other not in found for other in duplicates.others(position)):
                    found.discard(position)
        return found

    def between(self, origin: str, after: Position, upto: Position, *, above: Position) -> PositionSet:
        """Return the local positions of the entries of ``origin`` in ``(after, upto]``, restricted to those above
        ``above``."""
        if origin != self._cluster:
            table = self._tables.get(origin)
            return PositionSet() if table is None else table.local_between(after, upto, above=above)
        found = PositionSet()
        for ledger, first, last in self._log.runs_between(max(after, above), upto):
            found.add_range(ledger, first, last)
        for table in self._tables.values():
            found.difference_update(table.of_origin(found))
        return found

    def beyond_start(self, entries: Collection[Position], said: starts.Starts, heard: AckVector) -> PositionSet:
        """Return those of ``entries`` that lie after a start although every other entry of the same message lies before
        it.

        An entry is left out if ``heard`` has another entry of its message: then somebody acknowledged the message.
        """
        found = PositionSet()
        if (duplicates := self._log.duplicates) is None:
            return found
        for position in entries:
            if position not in duplicates.members or self._lies_before(position, said):
                continue
            others = [other for other in duplicates.others(position) if other not in entries]
            if others and all(self._lies_before(other, said) and not self._is_in(heard, other) for other in others):
                found.add(position)
        return found

    def discard_acknowledged_duplicates(
        self, positions: PositionSet, said: starts.Starts, heard: AckVector, is_consumed: Callable[[Position], bool]
    ) -> None:
        """Remove from ``positions`` entries whose message was acknowledged under another of its entries.

        An entry before the start is consumed without an acknowledgement, unless ``heard`` has it.
        """
        if (duplicates := self._log.duplicates) is None:
            return
        acknowledged = [
            position
            for position in duplicates.among(positions)
            if any(
                other not in positions
                and is_consumed(other)
                and (not self._lies_before(other, said) or self._is_in(heard, other))
                for other in duplicates.others(position)
            )
        ]
        for position in acknowledged:
            positions.discard(position)

    def _lies_before(self, position: Position, said: starts.Starts) -> bool:
        origin, at = self._identity(position)
        return at <= starts.end_before(said, origin)

    def _is_in(self, vector: AckVector, position: Position) -> bool:
        origin, at = self._identity(position)
        acks = vector.origins.get(origin)
        return acks is not None and acks.covers(at)

    def known(self, origins: Mapping[str, HighWater]) -> frozenset[str]:
        """Return ``origins`` and this cluster."""
        return frozenset({self._cluster, *origins})

    def up_to(self, vector: AckVector, ends: Mapping[str, Position]) -> AckVector:
        """Return the acknowledgements in ``vector`` up to the origin's position in ``ends``, inclusive."""
        found = AckVector()
        for origin, end in ends.items():
            acks = vector.origins.get(origin)
            if acks is None:
                continue
            below = acks.copy()
            below.discard_above(end)
            if below:
                found.origins[origin] = below
        return found

    def of_missing(self, vector: AckVector) -> AckVector:
        """Return the acknowledgements in ``vector`` of messages that the links to this cluster left out."""
        found = AckVector()
        for origin, acks in vector.origins.items():
            partly = PositionSet() if self._log.parts is None else self._log.parts.origins.get(origin, PositionSet())
            holes = self._left_out(origin)
            if holes or partly:
                missing = of_missing(acks, holes, partly)
                if missing:
                    found.origins[origin] = missing
        return found

    def _incarnation_of(self, origin: str) -> int:
        """Return the newest incarnation of ``origin``'s topic that is known here; some entry of ``origin`` must be
        here."""
        if origin == self._cluster:
            return self._incarnation
        high_water = self._high_water(origin)
        return self._incarnations[origin] if high_water is None else high_water.incarnation

    def _place_own(self, acks: OriginAcks, above: Position, placed: Placed) -> None:
        mine = acks.positions.copy()
        for after, upto in acks.ranges:
            for ledger, first, last in self._log.runs_between(max(after, above), upto):
                mine.add_range(ledger, first, last)
        for table in self._tables.values():
            mine.difference_update(table.of_origin(mine))
        placed.positions.update(mine)
        for position, indexes in acks.batches.items():
            if position in self._log and self._identity(position)[0] == self._cluster:
                placed.batches[position] = indexes

    def _place_copied(self, acks: OriginAcks, table: ExtentTable | None, above: Position, placed: Placed) -> None:
        if table is None:
            return
        for after, upto in acks.ranges:
            placed.positions.update(table.local_between(after, upto, above=above))
        placed.positions.update(table.to_local_set(acks.positions))
        for position, indexes in acks.batches.items():
            if (local := table.to_local(position)) is not None:
                placed.batches[local] = indexes


def _through(ends: Iterable[Position], reached: Position) -> list[Range]:
    """Return the ranges of the ledgers that end at ``ends``, each from its first entry, up to ``reached``."""
    return [(Position(end.ledger, -1), min(end, reached)) for end in ends if Position(end.ledger, -1) < reached]


def _ended_at(ends: Iterable[Position], position: Position) -> bool:
    return any(end.ledger == position.ledger and position <= end for end in ends)
