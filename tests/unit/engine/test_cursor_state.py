"""The state of a cursor: every change is noted, to be saved and, where somebody is to be told, as unannounced."""

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
    state.put_batch(ENTRY, BitMap([0, 2]), announce=True)
    assert list(state.dirty.batches) == [batch_chunk_of(ENTRY)]
    assert not state.dirty.deleted
    state.dirty.batches.clear()
    if whole == "at once":
        state.consume_all(PositionSet([ENTRY, OTHER]), announce=True)
    else:
        state.consume(ENTRY)
        state.consume(OTHER)
    assert list(state.individually_deleted) == [ENTRY, OTHER]
    assert not state.batch_acks
    assert list(state.dirty.batches) == [batch_chunk_of(ENTRY)], "its row is to be deleted"
    assert list(state.dirty.deleted) == [chunk_of(ENTRY)]
    unannounced = state.take_unannounced()
    assert list(unannounced.positions) == [ENTRY, OTHER]


def test_nothing_is_noted_as_untold_where_nobody_is_to_be_told() -> None:
    state = CursorState()
    state.consume(ENTRY)
    state.put_batch(OTHER, BitMap([0]), announce=True)
    state.note_all()
    state.note_heard()
    assert state.unannounced is None
    assert not state.to_announce
    assert not state.take_unannounced()


def test_what_others_said_is_not_told_back() -> None:
    state = CursorState(replicated=True)
    state.put_batch(OTHER, BitMap([0]), announce=False)
    state.consume_all(PositionSet([ENTRY]), announce=False)
    assert not state.unannounced
    assert not state.to_announce


def test_there_is_something_to_tell_until_what_was_taken_is_told_and_nothing_came_since() -> None:
    state = CursorState(replicated=True)
    state.consume(ENTRY)
    assert state.to_announce
    assert state.take_unannounced()
    state.consume(OTHER)
    assert not state.note_announced(), "something came since"
    assert state.take_unannounced()
    assert state.note_announced()
    assert not state.to_announce


@pytest.mark.parametrize("announce", [True, False])
def test_a_new_generation_is_told_as_a_whole_by_whoever_began_it(announce: bool) -> None:
    state = CursorState(replicated=True, unclaimed={"x": ENTRY})
    state.consume(ENTRY)
    state.take_unannounced()
    assert state.note_announced()
    state.begin(7, OTHER, announce=announce)
    expected = CursorState(OTHER, 7, replicated=True)
    assert state == expected, "nothing of the generation before is left"
    assert state.unannounced is not None
    assert state.unannounced.whole is announce
    assert state.to_announce is announce
