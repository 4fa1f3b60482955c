"""The cursor: the exact acknowledgement state of one subscription in one topic. Pure; no clock, no I/O.

Invariants (DESIGN §3): 5, a position counts as consumed only if it was acknowledged, merged from a cluster where it
was, or skipped by a reset; 6, within a generation the state only grows, and merging is commutative,
associative and idempotent; 7, markers are stepped over and never become part of the state.

The state is a mark-delete position (MDP: all up to it is consumed), the positions individually deleted beyond it, and
for partly acknowledged batches the bitmap of acknowledged indexes. Each change takes three steps:

1. The state changes, and notes what must be saved and announced (:mod:`.cursor_state`).
2. Duplicates of the changed entries change as well (:mod:`.duplicates`).
3. The MDP goes as far as it can (:mod:`.mark_delete`). When the topic is compacted anew, or trimmed, this step is done
   by itself, with :meth:`Cursor.advance`.

A link may leave out some messages of a batch (:mod:`replicator.engine.log.parts`). They count like acknowledged ones
when the cursor decides whether the batch is complete. They never become part of the state: it has only messages that
somebody acknowledged, here or elsewhere, and only these may be announced (invariant 5).

A start that moves back (:meth:`Cursor.uncover`) makes entries unconsumed that nobody acknowledged. Consumers may hold
later ones by then. So until they are delivered, a cumulative acknowledgement does not cover them.

Source: the managed cursor of the field's standard design, seed 002; the generation is DESIGN §4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from copy import copy

from pyroaring import BitMap

from replicator.engine.errors import InvalidAck
from replicator.engine.log.log_index import LogIndex
from replicator.engine.subscriptions.cursor_state import CursorState, DirtyChunks
from replicator.engine.subscriptions.duplicates import DuplicateTracking
from replicator.engine.subscriptions.mark_delete import move_mark_delete, place_before
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import Starts


class Cursor(DuplicateTracking):
    """Applies acknowledgements to a :class:`CursorState` over the positions of a :class:`LogIndex`."""

    __slots__ = ("_uncovered",)

    def __init__(self, log: LogIndex, state: CursorState) -> None:
        super().__init__(log, state)
        self._follow_all_duplicates()
        self.advance()
        self._uncovered: PositionSet | None = None
        """Entries that became unconsumed because the start moved back, and that no consumer has received since."""
        if state.rewound is not None:
            uncovered = log.messages_after(state.mark_delete, state.individually_deleted)
            uncovered.discard_above(state.rewound)
            self._keep_uncovered(uncovered)

    @property
    def state(self) -> CursorState:
        return self._state

    @property
    def mark_delete(self) -> Position:
        return self._state.mark_delete

    @property
    def generation(self) -> int:
        return self._state.generation

    def is_consumed(self, position: Position) -> bool:
        """Return whether the entry at ``position`` is consumed as a whole, or is compacted away for this
        subscription."""
        state = self._state
        if position <= state.mark_delete or position in state.individually_deleted:
            return True
        return state.read_compacted and self._log.view.lacks(position)

    def passes_over(self, position: Position) -> bool:
        """Return whether no message of the entry is to be delivered: it is consumed, or it is a hidden duplicate."""
        duplicates = self._log.duplicates
        return (duplicates is not None and position in duplicates.hidden) or self.is_consumed(position)

    def is_unconsumed_from(self, position: Position) -> bool:
        """Return True only if all messages from ``position`` on are to be delivered. After False, check each entry."""
        state, log = self._state, self._log
        if log.duplicates is not None or log.parts is not None or state.batch_acks or state.read_compacted:
            return False
        last = state.individually_deleted.last()
        return position > state.mark_delete and (last is None or last < position)

    def lacks(self, position: Position) -> bool:
        """Return whether the subscription reads the compacted view, and the view has no such entry."""
        return self._state.read_compacted and self._log.view.lacks(position)

    def needed_after(self) -> Position:
        """Return the position up to which this cursor does not need the log any more."""
        state = self._state
        return max(state.mark_delete, self._log.view.horizon) if state.read_compacted else state.mark_delete

    def clamp(self, position: Position) -> Position:
        """Return the highest position at or below ``position`` at which the cursor can stand."""
        if self._state.read_compacted and position < self._log.trimmed:
            return self._log.view.clamp(position)
        return self._log.clamp(position)

    def acked_indexes(self, position: Position) -> BitMap | None:
        """Return the indexes of a batch that are not delivered, because they are acknowledged or a link left them
        out.

        Return None if there are none.
        """
        batch_acks = self._state.batch_acks
        acked = batch_acks.get(position) if batch_acks else None  # asked for every entry that is sent
        return acked if self._log.parts is None else self._with_absent(position, acked)

    def _with_absent(self, position: Position, indexes: BitMap | None) -> BitMap | None:
        """Return ``indexes`` together with the indexes of messages that a link left out of the batch."""
        absent = None if self._log.parts is None else self._log.parts.absent(position)
        if absent is None:
            return indexes
        return absent if indexes is None else indexes | absent

    def _is_whole(self, position: Position, indexes: BitMap, batch_size: int) -> bool:
        """Return whether nothing of the batch remains unacknowledged once ``indexes`` are acknowledged."""
        done = self._with_absent(position, indexes)
        return done is not None and len(done) >= batch_size

    def acknowledge(self, position: Position, batch_indexes: Iterable[int] | None, batch_size: int) -> bool:
        """Acknowledge an entry, or some messages of its batch. Return whether the whole entry is now consumed.

        Repeated and late acknowledgements are harmless. Raises :class:`InvalidAck`, with the state unchanged, for a
        position that the topic does not have, a marker, or an index outside of the batch.
        """
        self._check(position)
        if self.is_consumed(position):
            return True
        if batch_indexes is not None:
            indexes = self._indexes(position, batch_indexes, batch_size)
            if (absent := self._with_absent(position, None)) is not None:
                indexes -= absent  # a cumulative acknowledgement names them; nobody here has seen them
            done = self._state.batch_acks.get(position)
            indexes = indexes if done is None else done | indexes
            if not self._is_whole(position, indexes, batch_size):
                if indexes:
                    self._state.put_batch(position, indexes, announce=True)
                    self._share_batch(position, batch_size)
                return False
        elif self.acknowledge_next(position):
            return True
        self._state.consume(position)
        if self._log.duplicates is not None:
            self._follow_duplicates((position,))
        self.advance()
        return True

    def acknowledge_next(self, position: Position) -> bool:
        """Acknowledge the message directly after mark-delete, and return whether ``position`` is that message.

        Return False, and change nothing, if an entry after mark-delete is acknowledged already, or if
        :meth:`acknowledge` has to decide for another reason.
        """
        state, log = self._state, self._log
        mark_delete = state.mark_delete
        if (
            position[1] != mark_delete[1] + 1
            or position[0] != mark_delete[0]
            or state.individually_deleted
            or state.batch_acks
            or state.read_compacted
            or log.duplicates is not None
            or position not in log
            or position in log.markers
        ):
            return False
        state.consume_next(position)
        if position != log.last:
            self.advance()  # over markers
        return True

    def acknowledge_all(self, positions: PositionSet) -> PositionSet | None:
        """Acknowledge whole entries, and return those that were not consumed before.

        Return None, and change nothing, if :meth:`acknowledge` has to decide about each: one of them is no message in
        the log, or the subscription reads the compacted view.
        """
        if self._state.read_compacted or len(self._log.messages_of(positions)) != len(positions):
            return None
        new = self._unconsumed(positions)
        if new:
            self._consume_all(new, announce=True)
            self.advance()
        return new

    def _consume_all(self, new: PositionSet, *, announce: bool) -> None:
        self._state.consume_all(new, announce=announce)
        if self._log.duplicates is not None:
            self._follow_duplicates(self._log.duplicates.among(new))

    def acknowledge_cumulative(self, position: Position, batch_index: int | None, batch_size: int) -> None:
        """Acknowledge all up to ``position``. With ``batch_index``, acknowledge its batch only up to that index.

        Raises :class:`InvalidAck` as :meth:`acknowledge` does.
        """
        self._check(position)
        if position <= self._state.mark_delete:
            return
        if batch_index is None or batch_index == batch_size - 1:
            self._consume_through(position, but=position)
            return
        prefix = self._indexes(position, range(batch_index + 1), batch_size)
        if not prefix:
            raise InvalidAck(f"batch index {batch_index} of {position} is negative: give one from 0 on")
        self._consume_through(self.clamp(place_before(position)), but=position)
        self.acknowledge(position, prefix, batch_size)

    def _consume_through(self, position: Position, *, but: Position) -> None:
        """Consume all entries up to ``position``, inclusive, except uncovered entries that no consumer has received
        yet.

        The entry at ``but`` is consumed even if it is uncovered.
        """
        uncovered, state = self._uncovered, self._state
        if uncovered is not None:
            uncovered.discard(but)
            uncovered.discard_through(state.mark_delete)
            self._keep_uncovered(uncovered)
            first = uncovered.first()
            if first is not None and first <= position:
                found = self._log.messages_after(state.mark_delete, state.individually_deleted)
                found.discard_above(position)
                found.difference_update(uncovered)
                self._consume_all(found, announce=True)
                self.advance()
                return
        self._move(position, announce=True)

    def uncover(self, positions: PositionSet) -> PositionSet:
        """Count the entries at ``positions`` as unconsumed, because the start moved back. Return those that counted as
        consumed.

        The caller must know that nobody acknowledged these entries. Trimmed entries are left out, because they cannot
        be delivered.
        """
        log, state = self._log, self._state
        found = log.messages_of(positions if log.duplicates is None else log.duplicates.with_duplicates(positions))
        beyond = found.after(state.mark_delete)
        found.discard_after(state.mark_delete)
        found.update(beyond.common(state.individually_deleted))
        first = found.first()
        if first is None:
            return found
        mark_delete = min(log.clamp(place_before(first)), state.mark_delete)
        passed = PositionSet()
        for ledger, lowest, highest in log.runs_between(mark_delete, state.mark_delete):
            passed.add_range(ledger, lowest, highest)
        state.uncover(found, mark_delete, log.messages_of(passed))
        self.advance()
        uncovered = found.copy()
        if self._uncovered is not None:
            uncovered.update(self._uncovered)
        self._keep_uncovered(uncovered)
        return found

    @property
    def has_uncovered(self) -> bool:
        """Whether the start moved back and made entries unconsumed that no consumer has received since."""
        return self._uncovered is not None

    def is_uncovered(self, position: Position) -> bool:
        """Return whether the entry became unconsumed because the start moved back, and no consumer has received it
        since."""
        return self._uncovered is not None and position in self._uncovered

    def delivered_through(self, position: Position) -> None:
        """Note that a consumer received all entries up to ``position``, so that none of them is uncovered any more."""
        if self._uncovered is not None:
            self._uncovered.discard_through(position)
            self._keep_uncovered(self._uncovered)

    def delivered(self, positions: Iterable[Position]) -> None:
        """Note that consumers received the entries at ``positions``, so that none of them is uncovered any more."""
        if self._uncovered is not None:
            for position in positions:
                self._uncovered.discard(position)
            self._keep_uncovered(self._uncovered)

    def _keep_uncovered(self, uncovered: PositionSet) -> None:
        self._uncovered = uncovered or None
        if not uncovered:
            self._state.rewound = None

    def merge_mark_delete(self, position: Position, generation: int, *, announce: bool = False) -> bool:
        """Merge another cluster's announcement that all entries up to ``position`` are consumed. Return whether the
        state changed.

        A lower generation is ignored, and a higher one replaces the state. No entry need exist at ``position``. With
        ``announce``, the change is noted as unannounced, because it was made in this cluster.
        """
        if generation < self._state.generation:
            return False
        changed = False
        if generation > self._state.generation:
            self.restart(position, generation)
            changed = True
        elif position > self._state.mark_delete:
            before = self._state.mark_delete
            self._move(self.clamp(position), announce=announce)
            changed = self._state.mark_delete != before
        return changed

    def merge_acks(
        self,
        positions: PositionSet,
        batches: Mapping[Position, BitMap],
        batch_size: Callable[[Position], int],
        *,
        announce: bool,
    ) -> PositionSet | None:
        """Merge acknowledgements of other clusters in this generation. Return the entries that became consumed, but
        not their duplicates; None if the state did not change.

        ``positions`` are whole entries. ``batches`` has the acknowledged indexes of partly acknowledged batches.
        Markers, and entries that are not here (yet, or any more), are skipped. ``batch_size`` is called for batches
        with new indexes; if it returns 0, the batch is skipped. With ``announce``, changes are noted as unannounced.

        1. A few operations on whole bitmaps find the new positions, however many there are.
        2. New indexes are united with those here. A batch that becomes complete counts as one more position.
        3. The rest is as if each had been acknowledged here: chunks are noted to be saved, and the MDP moves.
        """
        state = self._state
        new = self._unconsumed(positions)
        opened: dict[Position, BitMap] = {}
        for position, indexes in batches.items():
            if position in new or not self._open(position):
                continue
            done = state.batch_acks.get(position, BitMap())
            if indexes <= done:
                continue
            size = batch_size(position)
            united = (indexes & BitMap(range(size))) | done
            if size and self._is_whole(position, united, size):
                new.add(position)
            elif len(united) > len(done):
                opened[position] = united
        if not new and not opened:
            return None
        for position, united in opened.items():
            state.put_batch(position, united, announce=announce)
        self._consume_all(new, announce=announce)
        if self._log.duplicates is not None:
            for position in opened:
                self._share_batch(position, batch_size(position))
        self.advance()
        return new

    def adopt_generation(
        self, generation: int, *, through: Position = BEFORE_ALL, unclaimed: Mapping[str, Position] | None = None
    ) -> None:
        """Start over in the higher ``generation`` of another cluster, with all up to ``through`` consumed."""
        self.restart(through, generation)
        self._state.unclaimed = unclaimed or None
        self._state.unheard = self._state.made_here = False

    def restart(self, position: Position, generation: int | None = None, *, starts: Starts | None = None) -> None:
        """Start a new generation in which all up to ``position`` is consumed and nothing else is (seek, reset).

        See :class:`CursorState` for ``starts``."""
        state = self._state
        assert generation is None or generation > state.generation
        following = state.generation + 1 if generation is None else generation
        state.begin(following, self.clamp(position), announce=generation is None)
        state.starts = starts or {}
        self._uncovered = None
        self._follow_all_duplicates()
        self.advance()

    def restarted(self, position: Position, starts: Starts) -> CursorState:
        """Return the state that :meth:`restart` makes, without changing the present one."""
        state = copy(self._state)
        state.dirty = DirtyChunks()
        state.begin(state.generation + 1, self.clamp(position), announce=True)
        state.starts = starts
        return Cursor(self._log, state).state

    def advance(self) -> bool:
        """Move the mark-delete position as far as possible. Return whether it moved."""
        log, state = self._log, self._state
        before = state.mark_delete
        if not move_mark_delete(log, state):
            return False
        if log.duplicates is not None and self._follow_duplicates(log.duplicates.between(before, state.mark_delete)):
            self.advance()
        return True

    def backlog_entries(self) -> int:
        """Return the number of unconsumed entries, without markers and entries that compaction removed."""
        log, state = self._log, self._state
        start, deleted = state.mark_delete, len(state.individually_deleted)
        if state.read_compacted and start < log.view.horizon:
            start = log.view.horizon
            deleted = state.individually_deleted.count_between(start, log.last)
        markers = log.markers.count_between(start, log.last)
        return self.backlog_entries_of_view() + log.entries_between(start, log.last) - markers - deleted

    def backlog_entries_of_view(self) -> int:
        """Return the number of unconsumed entries of the compacted view; 0 for a subscription that does not read the
        view."""
        state, view = self._state, self._log.view
        if not state.read_compacted or state.mark_delete >= view.horizon:
            return 0
        left = view.positions.count_between(state.mark_delete, view.horizon)
        return left - view.positions.count_common(state.individually_deleted)

    def _move(self, position: Position, *, announce: bool) -> None:
        state = self._state
        if position <= state.mark_delete:
            return
        if announce and (unannounced := state.note_unannounced()) is not None:
            unannounced.note_runs(self._log.runs_between(state.mark_delete, position))
            if state.read_compacted and state.mark_delete < self._log.trimmed:
                of_view = self._log.view.positions.copy()
                of_view.discard_through(state.mark_delete)
                of_view.discard_after(min(position, self._log.trimmed))
                unannounced.note_set(of_view)
        before, state.mark_delete = state.mark_delete, position
        state.individually_deleted.discard_through(position)
        state.batch_acks.discard_through(position)
        if self._log.duplicates is not None:
            self._follow_duplicates(self._log.duplicates.between(before, position))
        self.advance()

    # Filters of positions.

    def _unconsumed(self, positions: PositionSet) -> PositionSet:
        """Return those of ``positions`` that are unconsumed messages of this log."""
        state, log = self._state, self._log
        found = log.messages_of(positions)
        if state.read_compacted and log.view.horizon > state.mark_delete:
            found.discard_through(log.view.horizon)
            found.update(log.view.positions.common(positions))
        found.discard_through(state.mark_delete)
        found.difference_update(state.individually_deleted)
        return found

    def _open(self, position: Position) -> bool:
        """Return whether ``position`` is an unconsumed message of this log."""
        log = self._log
        there = position in log or (self._state.read_compacted and position in log.view.positions)
        return there and position not in log.markers and not self.is_consumed(position)

    def _check(self, position: Position) -> None:
        if position not in self._log:
            if BEFORE_ALL < position <= self._log.trimmed:
                return  # late: the entry was consumed, or expired, and is trimmed
            raise InvalidAck(
                f"position {position} does not exist in this topic (its last is {self._log.last}): see that it is of "
                "this topic and this cluster"
            )
        if position in self._log.markers:
            raise InvalidAck(
                f"position {position} is a marker, which consumers do not receive and cannot acknowledge: acknowledge "
                "messages only"
            )

    @staticmethod
    def _indexes(position: Position, batch_indexes: Iterable[int], batch_size: int) -> BitMap:
        indexes = list(batch_indexes)
        wrong = [index for index in indexes if not 0 <= index < batch_size]
        if wrong:
            raise InvalidAck(
                f"batch index {wrong[0]} is not in the batch at {position}, which has {batch_size} messages from index "
                "0 on: acknowledge one of these"
            )
        return BitMap(indexes)
