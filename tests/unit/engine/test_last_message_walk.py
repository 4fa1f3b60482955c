"""The last message is found behind any number of markers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from step_limit import at_most_steps

from replicator.engine.log.last_message import last_message
from replicator.engine.log.log_index import LogIndex
from snapshots.position import BEFORE_ALL, Position


def test_an_empty_log_and_one_of_markers_alone_have_no_last_message() -> None:
    log = LogIndex()
    assert last_message(log) == BEFORE_ALL
    log.append(Position(3, 0), 5, marker=True)
    log.append(Position(4, 7), 1, marker=True)
    assert last_message(log) == BEFORE_ALL


def test_a_million_markers_after_the_last_message_cost_a_few_look_ups() -> None:
    log = LogIndex()
    log.append(Position(3, 0), 2, marker=False)
    log.append(Position(3, 2), 1_000_000, marker=True)
    log.append(Position(5, 0), 1_000_000, marker=True)
    assert last_message(log) == Position(3, 1)


def test_a_log_that_is_trimmed_in_its_only_ledger_and_has_markers_alone_left_has_no_last_message() -> None:
    log = LogIndex()
    log.append(Position(5, 0), 3, marker=False)
    log.append(Position(5, 3), 1, marker=True)
    log.trim(Position(5, 2))
    with at_most_steps(1_000):
        assert last_message(log) == BEFORE_ALL


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 3), st.integers(1, 4), st.booleans()), max_size=12))
def test_it_is_the_one_that_walking_back_finds(runs: list[tuple[int, int, int, bool]]) -> None:
    """Runs of messages and of markers, over ledgers that start at any entry."""
    log = LogIndex()
    expected = BEFORE_ALL
    at = Position(1, 0)
    for new_ledger, first, entries, marker in runs:
        if new_ledger:
            at = Position(at.ledger + 1, first)
        log.append(at, entries, marker=marker)
        at = Position(at.ledger, at.entry + entries)
        if not marker:
            expected = Position(at.ledger, at.entry - 1)
    assert last_message(log) == expected
