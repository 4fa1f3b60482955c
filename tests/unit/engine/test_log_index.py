from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.log.ledger_ends import LEDGER_ENDS_MAX
from replicator.engine.log.log_index import LogIndex
from snapshots.position import BEFORE_ALL, Position

runs = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 6), st.booleans(), st.booleans()), max_size=12)
"""Ledger ids to step over, entries, marker or not, and whether the run opens a new ledger."""
probes = st.one_of(
    st.just(BEFORE_ALL),
    st.builds(Position, st.integers(0, 30), st.integers(-1, 50)),
    st.builds(Position, st.integers(0, 2**64 - 1), st.integers(-1, 2**64 - 1)),
)


def build(script: list[tuple[int, int, bool, bool]]) -> tuple[LogIndex, list[Position], set[Position]]:
    """Build the log of a script, and its positions and markers the slow way."""
    log, members, markers = LogIndex(), list[Position](), set[Position]()
    ledger, following = 0, 0
    for step, entries, is_marker, new_ledger in script:
        if new_ledger or not ledger:
            ledger, following = ledger + step, 0
        added = [Position(ledger, following + index) for index in range(entries)]
        log.append(added[0], entries, marker=is_marker)
        following += entries
        members += added
        markers |= set(added) if is_marker else set()
    return log, members, markers


def test_a_position_between_trimmed_ledgers_was_not_here_and_the_last_one_before_it_is_found() -> None:
    log = LogIndex()
    for ledger in (11, 30, 40):
        log.append(Position(ledger, 0), 3, marker=False)
    log.trim(Position(30, 1))
    lost = Position(20, 5)
    assert not log.had(lost)
    assert log.last_known(lost) == Position(11, 2)
    assert log.last_known(Position(30, 1)) == Position(30, 1)
    assert log.last_known(Position(35, 0)) == Position(30, 2)
    assert log.last_known(Position(10, 0)) == BEFORE_ALL
    assert all(log.had(Position(ledger, entry)) for ledger in (11, 30) for entry in range(3))
    assert log.had(Position(10, 0)), "ends of older ledgers can be forgotten"


def test_what_the_index_has_trimmed_and_the_store_has_not_counts_as_stored() -> None:
    log = LogIndex()
    for ledger in (11, 30, 40):
        log.append(Position(ledger, 0), 3, marker=False)
    log.trim(Position(30, 1))
    whole = [(30, 2, 2), (40, 0, 2)]
    assert log.stored_runs(Position(30, 1)) == whole
    assert log.stored_runs(Position(30, 0)) == [(30, 1, 1), *whole]
    assert log.stored_runs(Position(11, 1)) == [(11, 2, 2), (30, 0, 1), *whole]
    assert log.stored_runs(BEFORE_ALL) == [(11, 0, 2), (30, 0, 1), *whole]


@given(runs, probes)
def test_it_answers_as_a_plain_list_of_positions_would(
    script: list[tuple[int, int, bool, bool]], probe: Position
) -> None:
    log, members, markers = build(script)
    assert log.last == (members[-1] if members else BEFORE_ALL)
    assert log.first == (members[0] if members else None)
    assert log.entries == len(members)
    assert (probe in log) == (probe in members)
    assert log.next_after(probe) == next((member for member in members if member > probe), None)
    assert log.clamp(probe) == max((member for member in members if member <= probe), default=BEFORE_ALL)
    assert set(log.markers) == markers


@given(runs, probes, probes)
def test_counting_between_is_open_below_and_closed_above(
    script: list[tuple[int, int, bool, bool]], after: Position, upto: Position
) -> None:
    log, members, _ = build(script)
    assert log.entries_between(after, upto) == sum(after < member <= upto for member in members)


@given(runs)
def test_stepping_from_before_all_visits_every_position_once(script: list[tuple[int, int, bool, bool]]) -> None:
    log, members, _ = build(script)
    visited: list[Position] = []
    position = log.next_after(BEFORE_ALL)
    while position is not None:
        visited.append(position)
        position = log.next_after(position)
    assert visited == members


def test_invariant_10_a_position_that_does_not_follow_is_refused() -> None:
    log = LogIndex()
    log.append(Position(5, 0), 3, marker=False)
    for wrong in (Position(5, 2), Position(5, 4), Position(4, 0)):
        with pytest.raises(AssertionError):
            log.append(wrong, 1, marker=False)
    assert log.last == Position(5, 2)


def test_where_the_ledgers_ended_is_known_when_they_are_gone() -> None:
    log = LogIndex()
    for ledger, entries in ((3, 5), (4, 2), (9, 7)):
        log.append(Position(ledger, 0), entries, marker=False)
    log.trim(Position(3, 2))
    assert log.trimmed_ends == [Position(3, 2)]
    log.trim(Position(9, 1))
    assert log.trimmed_ends == [Position(3, 4), Position(4, 1), Position(9, 1)]


def test_invariant_11_where_the_oldest_ledgers_ended_is_forgotten() -> None:
    log = LogIndex()
    for ledger in range(1, LEDGER_ENDS_MAX + 10):
        log.append(Position(ledger, 0), 1, marker=False)
    log.trim(Position(LEDGER_ENDS_MAX + 8, 0))
    assert len(log.trimmed_ends) == LEDGER_ENDS_MAX
    assert log.trimmed_ends[-1] == log.trimmed
