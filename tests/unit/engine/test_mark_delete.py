"""Mark-delete position: it passes consumed and trimmed entries and markers, and not an entry more."""

from __future__ import annotations

import pytest
from engine_support import make_log
from pyroaring import BitMap

from replicator.engine.log.log_index import ViewIndex
from replicator.engine.subscriptions.cursor_state import CursorState
from replicator.engine.subscriptions.mark_delete import move_mark_delete
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet


def at(*entries: int) -> PositionSet:
    return PositionSet([Position(1, entry) for entry in entries])


@pytest.mark.parametrize(
    ("deleted", "reached"),
    [([], -1), ([1], -1), ([0], 0), ([0, 1], 4), ([0, 1, 5], 5), ([0, 1, 6], 4), ([0, 1, 5, 6], 6)],
)
def test_invariant_5_and_7_it_goes_over_what_is_consumed_and_over_markers_only(
    deleted: list[int], reached: int
) -> None:
    log = make_log((1, 2, False), (1, 3, True), (1, 2, False))
    state = CursorState(individually_deleted=at(*deleted))
    assert move_mark_delete(log, state) is (reached >= 0)
    assert state.mark_delete == (BEFORE_ALL if reached < 0 else Position(1, reached))
    assert list(state.individually_deleted) == list(at(*(entry for entry in deleted if entry > reached)))
    assert not move_mark_delete(log, state), "once is enough"


def test_what_it_passes_is_forgotten_and_what_is_beyond_is_kept() -> None:
    log = make_log((1, 4, False))
    state = CursorState(individually_deleted=at(0, 3))
    state.batch_acks[Position(1, 2)] = BitMap([0])
    assert move_mark_delete(log, state)
    assert state.individually_deleted == at(3)
    assert list(state.batch_acks) == [Position(1, 2)]
    state.individually_deleted.update(at(1, 2))
    assert move_mark_delete(log, state)
    assert not state.individually_deleted
    assert not state.batch_acks


def test_of_a_compacted_view_only_its_positions_count() -> None:
    log = make_log((1, 8, False))
    log.view = ViewIndex(Position(1, 5), at(1, 4))
    state = CursorState(read_compacted=True)
    assert not move_mark_delete(log, state), "1 is not consumed"
    state.individually_deleted = at(1)
    assert move_mark_delete(log, state)
    assert state.mark_delete == Position(1, 1)
    state.individually_deleted = at(4)
    assert move_mark_delete(log, state)
    assert state.mark_delete == Position(1, 5), "the horizon, and no entry of the log above it"
