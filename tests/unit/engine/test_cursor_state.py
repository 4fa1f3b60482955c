"""The state of a cursor: every change is noted, to be saved and, where somebody is to be told, as untold."""

from __future__ import annotations

import pytest
from pyroaring import BitMap

from replicator.engine.subscriptions.batch_acks import batch_chunk_of
from replicator.engine.subscriptions.cursor_state import CursorState
from snapshots.position import Position
from snapshots.position_set import PositionSet, chunk_of

ENTRY, OTHER = Position(1, 4), Position(1, 6)


@pytest.mark.parametrize("whole", ["one by one", "at once"])
def test_an_entry_that_is_consumed_leaves_no_batch_behind_and_both_are_noted(whole: str) -> None:
    state = CursorState(replicated=True)
    state.put_batch(ENTRY, BitMap([0, 2]), tell=True)
    assert list(state.dirty.batches) == [batch_chunk_of(ENTRY)]
    assert not state.dirty.deleted
    state.dirty.batches.clear()
    if whole == "at once":
        state.consume_all(PositionSet([ENTRY, OTHER]), tell=True)
    else:
        state.consume(ENTRY)
        state.consume(OTHER)
    assert list(state.individually_deleted) == [ENTRY, OTHER]
    assert not state.batch_acks
    assert list(state.dirty.batches) == [batch_chunk_of(ENTRY)], "its row is to be deleted"
    assert list(state.dirty.deleted) == [chunk_of(ENTRY)]
    untold = state.take_untold()
    assert list(untold.positions) == [ENTRY, OTHER]


def test_nothing_is_noted_as_untold_where_nobody_is_to_be_told() -> None:
    state = CursorState()
    state.consume(ENTRY)
    state.put_batch(OTHER, BitMap([0]), tell=True)
    state.note_all()
    state.note_heard()
    assert state.untold is None
    assert not state.to_tell
    assert not state.take_untold()


def test_what_others_said_is_not_told_back() -> None:
    state = CursorState(replicated=True)
    state.put_batch(OTHER, BitMap([0]), tell=False)
    state.consume_all(PositionSet([ENTRY]), tell=False)
    assert not state.untold
    assert not state.to_tell


def test_there_is_something_to_tell_until_what_was_taken_is_told_and_nothing_came_since() -> None:
    state = CursorState(replicated=True)
    state.consume(ENTRY)
    assert state.to_tell
    assert state.take_untold()
    state.consume(OTHER)
    assert not state.told(), "something came since"
    assert state.take_untold()
    assert state.told()
    assert not state.to_tell


@pytest.mark.parametrize("tell", [True, False])
def test_a_new_generation_is_told_as_a_whole_by_whoever_began_it(tell: bool) -> None:
    state = CursorState(replicated=True, unclaimed={"x": ENTRY})
    state.consume(ENTRY)
    state.take_untold()
    assert state.told()
    state.begin(7, OTHER, tell=tell)
    expected = CursorState(OTHER, 7, replicated=True)
    assert state == expected, "nothing of the generation before is left"
    assert state.untold is not None
    assert state.untold.whole is tell
    assert state.to_tell is tell
