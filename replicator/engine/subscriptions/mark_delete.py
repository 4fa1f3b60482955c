"""Moving the mark-delete position (MDP) over consumed and trimmed entries, and over markers. Pure.

Invariants (DESIGN §3): 5, the MDP passes no message that is not consumed, unless it is trimmed; 7, markers are stepped
over, and never become part of the state.

0. The MDP is never below the trimmed end of the log, because trimmed entries cannot be delivered.
1. Take the position after the MDP.
2. If it is individually deleted, jump to the end of that run; if it is a marker, to the end of the run of
   markers; else stop.
3. Forget the individually deleted entries at or below the MDP. (Upstream issue 14261: ranges left there block it.)

A subscription that reads compacted has only the positions of the compacted view up to the view's end (the horizon), and
all of the log above it. It wants the newest message of each key. Messages that are compacted away are none of its
messages, so skipping them does not break invariant 5. Below the horizon

- rule 0 does not hold: the view outlives the log;
- the MDP moves from one position of the view to the next, while they are individually deleted, and after the last of
  them to the horizon. Positions that the view lacks are neither read nor recorded, however many they are;
- a late acknowledgement of an entry that was compacted away since is harmless.

A position that the view lacks never comes back, and the horizon only grows, so invariant 6 holds.
"""

from __future__ import annotations

from typing import Final

from replicator.engine.log.log_index import LogIndex
from replicator.engine.subscriptions.cursor_state import CursorState
from snapshots.position import Position

_SINGLE_STEPS: Final = 3
"""Single steps through the view before it is searched. Acknowledgements in order need one step, and a search costs as
much as ten."""


def move_mark_delete(log: LogIndex, state: CursorState) -> bool:
    """Move the MDP as far as it goes. Return whether it moved."""
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
    """Move the MDP over the consumed positions of the view. Return whether it is past the view."""
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
    """Return the position right before ``position`` in its ledger, whether or not there is an entry."""
    return Position(position.ledger, position.entry - 1)
