"""Cursors of a topic whose log got lost messages back below its end. Pure.

Invariant (DESIGN §3): 5. A mark-delete position says nothing about entries that were put back below it: nobody knows
here whether they were consumed.

1. Other clusters tell the subscription's acknowledgements and its start. A message that was put back is consumed if
   somebody acknowledged it, or if it lies before the start.
2. If messages are left, mark-delete goes back before the first of them. What it had passed otherwise becomes
   individually deleted.
3. The earlier start counts, as always (:mod:`snapshots.starts`). Messages of the cluster's own between the two become
   unconsumed: nobody acknowledged them.
4. A subscription that nobody tells, or only in an older generation, begins after what was put back: its start does.
   An exception is a subscription with unconsumed messages below that: it gets what was put back.
"""

from __future__ import annotations

from dataclasses import dataclass

from replicator.engine.subscriptions.cursor_state import CursorState
from replicator.engine.subscriptions.mark_delete import place_before
from snapshots.ack_vector import OriginAcks
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import FROM_THE_FIRST, Start, by_position


@dataclass(frozen=True, slots=True)
class PutBackLog:
    """A log that got lost messages back."""

    cluster: str
    incarnation: int
    """The newest life."""
    messages: PositionSet
    """All messages of the log."""
    own: PositionSet
    """Messages that this cluster published."""
    put_back: PositionSet
    """Messages that were put back."""
    last: Position
    """The last position that was put back."""


@dataclass(frozen=True, slots=True)
class Told:
    """State of a subscription as other clusters tell it, as far as it is about this cluster's messages."""

    generation: int
    acks: OriginAcks
    start: Start = FROM_THE_FIRST

    def merged(self, other: Told) -> Told:
        """Return the union of both. The newer generation counts."""
        if self.generation != other.generation:
            return max(self, other, key=lambda told: told.generation)
        acks = self.acks.copy()
        acks.merge(OriginAcks(acks.incarnation, other.acks.ranges, other.acks.positions, other.acks.batches))
        return Told(self.generation, acks, min(self.start, other.start, key=by_position))


def follow_put_back(state: CursorState, log: PutBackLog, told: Told | None) -> None:
    """Change ``state`` so that it fits ``log``. ``told`` is None if no other cluster knows the subscription."""
    if told is None or told.generation < state.generation:
        _begin_after(state, log)
    else:
        _take_over(state, log, told)
    if state.replicated:
        state.to_announce = True


def _begin_after(state: CursorState, log: PutBackLog) -> None:
    first = log.put_back.first()
    if first is None or _is_behind(state, log, first):
        return
    start = state.starts.get(log.cluster, FROM_THE_FIRST)
    state.starts = {**state.starts, log.cluster: max(start, Start(log.incarnation, log.last), key=by_position)}
    if state.mark_delete < log.last:
        state.mark_delete = log.last
        state.individually_deleted.discard_through(log.last)
        state.batch_acks.discard_through(log.last)


def _is_behind(state: CursorState, log: PutBackLog, first: Position) -> bool:
    """Return whether messages are unconsumed that lie below ``first``."""
    below = log.messages.after(state.mark_delete)
    below.discard_above(place_before(first))
    below.difference_update(state.individually_deleted)
    return bool(below)


def _take_over(state: CursorState, log: PutBackLog, told: Told) -> None:
    consumed = _consumed(log.put_back, told)
    left = log.put_back.copy()
    left.difference_update(consumed)
    for position, indexes in told.acks.batches.items():
        if position in left:
            mine = state.batch_acks.get(position)
            state.batch_acks[position] = indexes if mine is None else mine | indexes
    before = state.starts.get(log.cluster, FROM_THE_FIRST)
    left.update(_uncovered(log, told.start, before))
    highest, first, mark = left.last(), left.first(), state.mark_delete
    if first is not None and highest is not None:
        state.rewound = max(highest, mark, state.rewound or BEFORE_ALL)
        state.mark_delete = min(mark, place_before(first))
    passed = log.messages.after(state.mark_delete)
    passed.discard_above(mark)
    passed.update(consumed)
    passed.difference_update(left)
    state.individually_deleted.update(passed)
    state.individually_deleted.difference_update(left)
    state.individually_deleted.discard_through(state.mark_delete)
    if log.cluster in state.starts or told.start != FROM_THE_FIRST:
        start = min(before, told.start, key=by_position) if log.cluster in state.starts else told.start
        state.starts = {**state.starts, log.cluster: start}


def _consumed(put_back: PositionSet, told: Told) -> PositionSet:
    """Return the messages of ``put_back`` that somebody acknowledged, or that lie before the start."""
    found = put_back.common(told.acks.positions)
    for after, upto in [(BEFORE_ALL, told.start.position), *told.acks.ranges]:
        part = put_back.after(after)
        part.discard_above(upto)
        found.update(part)
    return found


def _uncovered(log: PutBackLog, start: Start, before: Start) -> PositionSet:
    """Return the cluster's own messages that lie before the start ``before``, and after the earlier start ``start``."""
    if by_position(before) <= by_position(start):
        return PositionSet()
    found = log.own.after(start.position)
    found.discard_above(before.position)
    found.difference_update(log.put_back)
    return found
