"""Change of a cursor after lost messages were put back below the end of its topic's log. Pure.

Invariant (DESIGN §3): 5. A mark-delete position says nothing about messages that were put back below it. This cluster
does not know whether they were consumed.

1. Other clusters are asked for the subscription's acknowledgements and its start. A message that was put back is
   consumed if somebody acknowledged it, or if it lies before the start.
2. If unconsumed messages are left among those put back, mark-delete moves to right before the first of them. All other
   messages that it had passed are recorded as individually deleted.
3. The start here and the start in the other clusters are merged: the earlier one counts (:mod:`snapshots.starts`).
   Messages of this cluster that lie between the two starts become unconsumed, because nobody acknowledged them.
4. If no other cluster knows the subscription, or only in an older generation, it was made after the earlier lives that
   were put back. Its start moves behind them, so it never receives their messages. There is one exception: if it has
   unconsumed messages before the first message that was put back, nothing changes, and it receives them.
5. Messages of the life that goes on can be put back between its ledgers. A subscription of rule 4 receives those behind
   its start: nobody says that they were consumed.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from replicator.engine.subscriptions.cursor_state import CursorState
from replicator.engine.subscriptions.mark_delete import place_before
from snapshots.ack_vector import OriginAcks
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import FROM_THE_FIRST, Start, by_position


@dataclass(frozen=True, slots=True)
class PutBackLog:
    """Topic's log after lost messages were put back."""

    cluster: str
    incarnation: int
    """The topic's newest life."""
    messages: PositionSet
    """All messages of the log."""
    own: PositionSet
    """Messages that this cluster published."""
    put_back: PositionSet
    """Messages that were put back."""
    last: Position
    """Last position of other lives that was put back; BEFORE_ALL if there is none."""
    between: PositionSet = field(default_factory=PositionSet)
    """Positions of ``put_back`` that belong to the life that goes on."""


@dataclass(frozen=True, slots=True)
class PeerState:
    """State of a subscription in other clusters, restricted to this cluster's messages."""

    generation: int
    acks: OriginAcks
    start: Start = FROM_THE_FIRST

    def merged(self, other: PeerState) -> PeerState:
        """Return the state with the newer generation. If both generations are equal, merge the two states."""
        if self.generation != other.generation:
            return max(self, other, key=lambda told: told.generation)
        acks = self.acks.copy()
        acks.merge(OriginAcks(acks.incarnation, other.acks.ranges, other.acks.positions, other.acks.batches))
        return PeerState(self.generation, acks, min(self.start, other.start, key=by_position))


def follow_put_back(state: CursorState, log: PutBackLog, told: PeerState | None) -> None:
    """Change the cursor ``state`` to fit ``log``, after messages were put back.

    ``told`` is the subscription's state in other clusters; None if no other cluster knows the subscription.
    """
    if told is None or told.generation < state.generation:
        _begin_after(state, log)
        start = state.starts.get(log.cluster, FROM_THE_FIRST)
        _take_over(
            state, replace(log, put_back=log.between), PeerState(state.generation, OriginAcks(log.incarnation), start)
        )
    else:
        _take_over(state, log, told)
    if state.replicated:
        state.to_announce = True


def _begin_after(state: CursorState, log: PutBackLog) -> None:
    earlier = log.put_back.copy()
    earlier.difference_update(log.between)
    first = earlier.first()
    if first is None or _is_behind(state, log, first):
        return
    start = state.starts.get(log.cluster, FROM_THE_FIRST)
    state.starts = {**state.starts, log.cluster: max(start, Start(log.incarnation, log.last), key=by_position)}
    if state.mark_delete < log.last:
        state.mark_delete = log.last
        state.individually_deleted.discard_through(log.last)
        state.batch_acks.discard_through(log.last)


def _is_behind(state: CursorState, log: PutBackLog, first: Position) -> bool:
    """Return whether the subscription has unconsumed messages before ``first``."""
    below = log.messages.after(state.mark_delete)
    below.discard_above(place_before(first))
    below.difference_update(state.individually_deleted)
    return bool(below)


def _take_over(state: CursorState, log: PutBackLog, told: PeerState) -> None:
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


def _consumed(put_back: PositionSet, told: PeerState) -> PositionSet:
    """Return those messages of ``put_back`` that somebody acknowledged, or that lie before the start in other
    clusters."""
    found = put_back.common(told.acks.positions)
    for after, upto in [(BEFORE_ALL, told.start.position), *told.acks.ranges]:
        part = put_back.after(after)
        part.discard_above(upto)
        found.update(part)
    return found


def _uncovered(log: PutBackLog, start: Start, before: Start) -> PositionSet:
    """Return this cluster's messages between the earlier start ``start`` and the start ``before``, except those put
    back."""
    if by_position(before) <= by_position(start):
        return PositionSet()
    found = log.own.after(start.position)
    found.discard_above(before.position)
    found.difference_update(log.put_back)
    return found
