"""How far the mark-delete position (MDP) goes: over what is consumed or trimmed, and over markers. Pure.

Invariants (DESIGN §3): 5, the MDP passes no message that is not consumed, unless it is trimmed; 7, markers are stepped
over, and never become part of the state.

0. The MDP is never below the place up to which the log is trimmed: what is gone can be delivered to nobody.
1. Take the position after the MDP.
2. If it is individually deleted, jump to the end of that run; if it is a marker, to the end of the run of
   markers; else stop.
3. Forget what is now at or below the MDP. (Upstream issue 14261: ranges left behind below the MDP block it.)

A subscription that reads compacted has only the positions of the compacted view as far as that reaches (the horizon),
and all of the log above it. It asked for the newest message of each key: what is compacted away is no message of it, so
for invariant 5 there is nothing to skip. Below the horizon

- rule 0 does not hold: the view outlives the log;
- the MDP is moved from one position of the view to the next, while they are individually deleted, and after the last
  of them to the horizon. Positions that the view lacks are neither looked at nor noted, however many they are;
- an acknowledgement of what is compacted away since it was sent is harmless, and late.

What the view once lacks it lacks for ever, and the horizon only grows, so invariant 6 holds.
"""

from __future__ import annotations

from typing import Final

from replicator.engine.log.log_index import LogIndex
from replicator.engine.subscriptions.cursor_state import CursorState
from snapshots.position import Position

_SINGLE_STEPS: Final = 3
"""Through the view, before it is searched: who acknowledges in order takes one, and a search costs as much as ten."""


def move_mark_delete(log: LogIndex, state: CursorState) -> bool:
    """Move the MDP as far as it goes. Returns whether it moved."""
    before = state.mark_delete
    passed = not state.read_compacted or _advance_in_view(log, state)
    if passed and state.mark_delete < log.trimmed:
        state.mark_delete = log.trimmed
    while passed and (candidate := log.next_after(state.mark_delete)) is not None:
        if candidate in state.individually_deleted:
            state.mark_delete = state.individually_deleted.run_end(candidate)
        elif candidate in log.markers:
            state.mark_delete = log.markers.run_end(candidate)
        else:
            break
    if state.mark_delete == before:
        return False
    state.individually_deleted.discard_through(state.mark_delete)
    state.batch_acks.discard_through(state.mark_delete)
    return True


def _advance_in_view(log: LogIndex, state: CursorState) -> bool:
    """Move the MDP over the consumed positions of the view; returns whether it has left the view behind."""
    view = log.view
    if state.mark_delete >= view.horizon:
        return True
    for _ in range(_SINGLE_STEPS):
        following = view.positions.next_after(state.mark_delete)
        if following is not None and following not in state.individually_deleted:
            return False
        if following is None:
            break
        state.mark_delete = following
    missing = view.positions.first_missing(state.individually_deleted, state.mark_delete)
    reached = log.clamp(view.horizon) if missing is None else view.clamp(place_before(missing))
    state.mark_delete = max(state.mark_delete, reached)
    return missing is None


def place_before(position: Position) -> Position:
    """The place before ``position`` in its ledger, whether there is an entry or not."""
    return Position(position.ledger, position.entry - 1)
