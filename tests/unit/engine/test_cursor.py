"""Single rules of the cursor; :mod:`test_cursor_machine` checks them in every order."""

from __future__ import annotations

import time

import pytest
from engine_support import make_log

from replicator.engine.errors import InvalidAck
from replicator.engine.log.log_index import LogIndex
from replicator.engine.subscriptions.cursor import Cursor
from replicator.engine.subscriptions.cursor_state import CursorState
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet


def at(entry: int, ledger: int = 1) -> Position:
    return Position(ledger, entry)


def test_the_mark_delete_position_waits_at_the_first_hole() -> None:
    cursor = Cursor(make_log((1, 5, False)), CursorState())
    for entry in (1, 2, 4):
        assert cursor.acknowledge(at(entry), None, 1)
    assert cursor.mark_delete == BEFORE_ALL
    assert cursor.acknowledge(at(0), None, 1)
    assert cursor.mark_delete == at(2)
    assert list(cursor.state.individually_deleted) == [at(4)]
    assert cursor.backlog_entries() == 1


def test_it_crosses_from_ledger_to_ledger() -> None:
    cursor = Cursor(make_log((1, 2, False), (7, 2, False)), CursorState())
    cursor.acknowledge(at(0, 7), None, 1)
    cursor.acknowledge_cumulative(at(1), None, 1)
    assert cursor.mark_delete == at(0, 7)
    assert not cursor.state.individually_deleted


def test_invariant_7_trailing_markers_never_hold_it_back() -> None:
    log = make_log((1, 1, True), (1, 1, False), (1, 2, True))
    cursor = Cursor(log, CursorState())
    assert cursor.mark_delete == at(0)
    cursor.acknowledge(at(1), None, 1)
    assert cursor.mark_delete == at(3)
    log.append(at(4), 2, marker=True)
    assert cursor.advance()
    assert cursor.mark_delete == at(5)
    assert not cursor.state.individually_deleted
    assert cursor.backlog_entries() == 0


def test_invariant_7_a_marker_cannot_be_acknowledged() -> None:
    cursor = Cursor(make_log((1, 1, False), (1, 1, True), (1, 1, False)), CursorState())
    with pytest.raises(InvalidAck, match="marker"):
        cursor.acknowledge(at(1), None, 1)
    with pytest.raises(InvalidAck, match="marker"):
        cursor.acknowledge_cumulative(at(1), None, 1)
    assert cursor.mark_delete == BEFORE_ALL


def test_a_batch_is_consumed_when_its_last_index_is() -> None:
    cursor = Cursor(make_log((1, 2, False)), CursorState())
    assert not cursor.acknowledge(at(0), [2, 0], 3)
    assert not cursor.acknowledge(at(0), [0], 3)
    assert sorted(cursor.acked_indexes(at(0)) or ()) == [0, 2]
    assert cursor.mark_delete == BEFORE_ALL
    assert cursor.acknowledge(at(0), [1], 3)
    assert cursor.mark_delete == at(0)
    assert not cursor.state.batch_acks


def test_a_cumulative_ack_into_a_batch_takes_its_first_messages_only() -> None:
    cursor = Cursor(make_log((1, 3, False)), CursorState())
    cursor.acknowledge_cumulative(at(1), 1, 4)
    assert cursor.mark_delete == at(0)
    assert sorted(cursor.acked_indexes(at(1)) or ()) == [0, 1]
    cursor.acknowledge_cumulative(at(1), 3, 4)
    assert cursor.mark_delete == at(1)


def test_a_cumulative_ack_into_the_first_batch_of_a_ledger_stays_on_a_position_that_exists() -> None:
    for log, before in ((make_log((5, 1, False)), BEFORE_ALL), (make_log((1, 1, False), (5, 1, False)), at(0))):
        cursor = Cursor(log, CursorState())
        cursor.acknowledge_cumulative(at(0, 5), 0, 2)
        assert cursor.mark_delete == before


@pytest.mark.parametrize("index", [-5, -1, 3, 99])
def test_an_index_outside_of_the_batch_is_refused(index: int) -> None:
    cursor = Cursor(make_log((1, 2, False)), CursorState())
    with pytest.raises(InvalidAck):
        cursor.acknowledge(at(1), [0, index], 3)
    with pytest.raises(InvalidAck):
        cursor.acknowledge_cumulative(at(1), index, 3)
    assert cursor.state == CursorState()


def test_an_ack_of_no_index_changes_nothing() -> None:
    cursor = Cursor(make_log((1, 2, False)), CursorState())
    assert not cursor.acknowledge(at(0), [], 3)
    assert cursor.state == CursorState()


@pytest.mark.parametrize("position", [at(3), at(-1), at(0, 9), BEFORE_ALL, at(2**64 - 1), at(0, 0)])
def test_a_position_that_does_not_exist_is_refused(position: Position) -> None:
    cursor = Cursor(make_log((1, 3, False)), CursorState())
    with pytest.raises(InvalidAck, match="exist"):
        cursor.acknowledge(position, None, 1)
    with pytest.raises(InvalidAck, match="exist"):
        cursor.acknowledge_cumulative(position, None, 1)
    assert cursor.state == CursorState()


def test_invariant_6_an_older_generation_is_ignored_and_a_newer_one_wins() -> None:
    cursor = Cursor(make_log((1, 9, False)), CursorState(mark_delete=at(6), generation=2))
    cursor.acknowledge(at(8), None, 1)
    assert not cursor.merge_mark_delete(at(7), 1)
    assert not cursor.merge_mark_delete(at(3), 2)
    assert cursor.merge_mark_delete(at(1), 3)
    assert (cursor.mark_delete, cursor.generation) == (at(1), 3)
    assert not cursor.state.individually_deleted


def test_invariant_5_a_merge_beyond_the_log_claims_only_what_is_here() -> None:
    log = make_log((1, 3, False))
    cursor = Cursor(log, CursorState())
    assert cursor.merge_mark_delete(at(0, 99), 1)
    assert cursor.mark_delete == at(2)
    log.append(at(3), 1, marker=False)
    assert not cursor.is_consumed(at(3))


def test_a_restart_forgets_acks_and_steps_over_markers() -> None:
    cursor = Cursor(make_log((1, 2, False), (1, 1, True), (1, 2, False)), CursorState())
    cursor.acknowledge(at(4), None, 1)
    cursor.acknowledge(at(3), [0], 2)
    cursor.restart(at(1))
    assert (cursor.mark_delete, cursor.generation) == (at(2), 2)
    assert not cursor.state.individually_deleted
    assert not cursor.state.batch_acks


def test_100_000_holes_close_again() -> None:
    count = 200_000
    cursor = Cursor(make_log((1, count, False)), CursorState())
    started = time.monotonic()
    for entry in range(1, count, 2):
        cursor.acknowledge(at(entry), None, 1)
    assert cursor.mark_delete == BEFORE_ALL
    assert len(cursor.state.individually_deleted) == count // 2
    for entry in range(0, count, 2):
        cursor.acknowledge(at(entry), None, 1)
    assert cursor.mark_delete == at(count - 1)
    assert not cursor.state.individually_deleted
    assert time.monotonic() - started < 20


def trimmed_log() -> LogIndex:
    """Return a log of entries 0 to 9 after 0 to 4 were trimmed."""
    log = make_log((1, 10, False))
    log.trim(at(4))
    return log


def test_a_cursor_below_the_trimmed_part_starts_above_it() -> None:
    state = CursorState(mark_delete=at(1), individually_deleted=PositionSet([at(3), at(5), at(8)]))
    cursor = Cursor(trimmed_log(), state)
    assert cursor.mark_delete == at(5)
    assert list(cursor.state.individually_deleted) == [at(8)]
    assert cursor.backlog_entries() == 3


def test_an_ack_of_a_trimmed_position_is_late_not_wrong() -> None:
    cursor = Cursor(trimmed_log(), CursorState())
    assert cursor.acknowledge(at(2), None, 1)
    assert cursor.acknowledge(at(4), [0], 3)
    cursor.acknowledge_cumulative(at(3), 1, 3)
    assert cursor.mark_delete == at(4)
    for wrong in (BEFORE_ALL, at(10)):
        with pytest.raises(InvalidAck):
            cursor.acknowledge(wrong, None, 1)


def test_a_seek_into_the_trimmed_part_goes_to_the_first_entry_that_is_left() -> None:
    cursor = Cursor(trimmed_log(), CursorState(mark_delete=at(8)))
    cursor.restart(at(1))
    assert (cursor.mark_delete, cursor.backlog_entries()) == (at(4), 5)
    assert not cursor.merge_mark_delete(at(2), cursor.generation)


def test_closing_a_hole_among_100_000_open_batches_costs_no_walk_over_them() -> None:
    cursor = Cursor(make_log((1, 300_000, False)), CursorState())
    for entry in range(100_000, 200_000):
        cursor.acknowledge(at(entry), [0], 2)
    started = time.monotonic()
    for entry in range(20_000):
        cursor.acknowledge(at(entry), None, 1)
    assert cursor.mark_delete == at(19_999)
    assert len(cursor.state.batch_acks) == 100_000
    assert time.monotonic() - started < 5, "a walk for each would take minutes"
