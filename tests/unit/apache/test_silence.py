"""The bridge notices that brokers have entries and send none of them, and subscribes anew."""

from __future__ import annotations

import itertools

from replicator.apache.arrivals import SILENCE_SECONDS, SILENCE_SECONDS_MAX, Silence
from replicator.apache.shown import TopicInternals
from snapshots.position import BEFORE_ALL, Position

READ, PASSED, LAST = Position(3, 9), Position(3, 8), Position(3, 20)


def test_the_bridge_subscribes_anew_where_nothing_comes_and_ever_more_seldom() -> None:
    silence = Silence()
    over = [now for now in range(3_600) if silence.is_over(READ, PASSED, LAST, float(now))]
    assert over[0] == SILENCE_SECONDS
    pauses = [later - before for before, later in itertools.pairwise(over)]
    assert pauses == sorted(pauses)
    assert pauses[0] == 2 * SILENCE_SECONDS
    assert pauses[-1] == SILENCE_SECONDS_MAX
    assert len(over) < 12


def test_brokers_that_send_something_from_time_to_time_are_not_silent() -> None:
    silence = Silence()
    for now in range(100):
        read = Position(3, now // 4)
        assert not silence.is_over(read, PASSED, Position(3, 1_000), float(now))


def test_brokers_are_not_silent_where_all_was_read_or_nobody_gets_the_rest() -> None:
    silence = Silence()
    for now in range(100):
        assert not silence.is_over(LAST, PASSED, LAST, float(now))
        assert not silence.is_over(READ, LAST, LAST, float(now))
        assert not silence.is_over(BEFORE_ALL, BEFORE_ALL, BEFORE_ALL, float(now))


def test_the_last_entry_that_is_there_is_not_in_a_new_ledger_and_not_in_a_deleted_one() -> None:
    def internals(last_entries: dict[int, int], *ledgers: int) -> TopicInternals:
        last = max(Position(*each) for each in last_entries.items())
        return TopicInternals(last, 0, "load", {}, last_entries, frozenset(ledgers))

    assert internals({3: 20, 7: -1}, 3, 7).last_there == LAST
    assert internals({3: 20, 7: -1}, 7).last_there == BEFORE_ALL
    assert internals({3: 20, 7: 4}, 3, 7).last_there == Position(7, 4)
