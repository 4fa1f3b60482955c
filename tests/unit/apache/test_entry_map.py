"""Where the entries of a topic lie at the brokers, and where in the engine's log."""

from __future__ import annotations

from replicator.apache.entry_map import EntryMap
from replicator.apache.stamps import Identity
from snapshots.extents import Extent
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

OWN, THEIRS = "a.pulsar", "b.pulsar"


def run(ledger: int, first: int, last: int) -> PositionSet:
    found = PositionSet()
    found.add_range(ledger, first, last)
    return found


def a_map() -> EntryMap:
    """At the brokers (ledger 3): own 0 to 4, theirs 5 to 7, own 8 and 9. In the log (ledger 1): theirs first."""
    entries = EntryMap(OWN)
    entries.copied(THEIRS, Position(70, 0), Position(1, 0), 4)
    entries.copied(OWN, Position(3, 0), Position(1, 4), 5)
    for index in range(3):
        entries.seen_at_broker(Identity(THEIRS, 9, Position(70, index)), Position(3, 5 + index))
    entries.copied(OWN, Position(3, 8), Position(1, 9), 2)
    return entries


def test_entries_are_found_on_both_sides_whoever_published_them() -> None:
    entries = a_map()
    local = run(1, 0, 2)
    local.update(run(1, 4, 10))
    assert entries.to_local(run(3, 0, 20)) == local
    assert entries.to_broker(run(1, 0, 20)) == run(3, 0, 9)


def test_what_is_on_one_side_only_is_nowhere_on_the_other() -> None:
    entries = a_map()
    assert not entries.to_broker(run(1, 3, 3))  # not published yet
    entries.seen_at_broker(Identity("c", 1, Position(5, 0)), Position(3, 10))  # not in the log: it was lost
    assert not entries.to_local(run(3, 10, 10))
    assert Position(3, 10) not in entries.beyond(BEFORE_ALL)


def test_beyond_a_position_is_what_lies_on_both_sides() -> None:
    entries = a_map()
    assert entries.beyond(BEFORE_ALL) == run(3, 0, 9)
    assert entries.beyond(Position(3, 5)) == run(3, 6, 9)
    assert not entries.beyond(Position(3, 9))


def test_publishing_goes_on_behind_the_last_that_was_found() -> None:
    entries = a_map()
    assert entries.published_through(THEIRS) == Position(70, 2)
    assert entries.publish_from(THEIRS) == Position(1, 2)
    assert entries.published_through("c") == entries.publish_from("c") == BEFORE_ALL
    assert entries.last_published() == Position(3, 7)


def test_invariant_2_an_entry_that_stands_there_twice_counts_once() -> None:
    entries = a_map()
    run = Extent(Position(70, 0), Position(3, 5), 3)
    assert entries.seen_at_broker(Identity(THEIRS, 9, Position(70, 2)), Position(3, 7)) == run  # read again
    assert entries.seen_at_broker(Identity(THEIRS, 9, Position(70, 0)), Position(3, 5)) == run
    assert entries.doubled == 0
    assert entries.seen_at_broker(Identity(THEIRS, 9, Position(70, 1)), Position(3, 10)) is None
    assert entries.doubled == 1


def test_runs_are_joined_where_both_sides_go_on() -> None:
    entries = EntryMap(OWN)
    identity = Identity(THEIRS, 9, Position(70, 0))
    assert entries.seen_at_broker(identity, Position(3, 5)) == Extent(Position(70, 0), Position(3, 5), 1)
    identity = Identity(THEIRS, 9, Position(70, 1))
    assert entries.seen_at_broker(identity, Position(3, 6)) == Extent(Position(70, 0), Position(3, 5), 2)
    identity = Identity(THEIRS, 9, Position(70, 2))
    assert entries.seen_at_broker(identity, Position(3, 8)) == Extent(Position(70, 2), Position(3, 8), 1)


def test_what_was_trimmed_is_forgotten_but_for_the_last_run_of_each_origin() -> None:
    entries = EntryMap(OWN)
    entries.copied(THEIRS, Position(70, 0), Position(1, 0), 6)
    for index in range(4):
        entries.seen_at_broker(Identity(THEIRS, 9, Position(70, index)), Position(3, 2 * index))
    gone = entries.trim(Position(1, 1))
    assert gone == []  # a run in the log is kept whole
    entries.copied(THEIRS, Position(71, 0), Position(2, 0), 1)
    gone = entries.trim(Position(1, 5))
    assert [identity.position for identity, _ in gone] == [Position(70, index) for index in range(3)]
    assert {identity.incarnation for identity, _ in gone} == {9}
    assert entries.published_through(THEIRS) == Position(70, 3)
    assert entries.last_published() == Position(3, 6)
    assert entries.seen_at_broker(Identity(THEIRS, 9, Position(70, 1)), Position(3, 2)) is None  # read again
    assert entries.doubled == 0
    assert entries.seen_at_broker(Identity(THEIRS, 9, Position(70, 1)), Position(3, 9)) is None
    assert entries.doubled == 1


def test_an_entry_of_the_brokers_is_found_in_the_log_and_one_that_is_not_there_is_before_all() -> None:
    entries = EntryMap("a.pulsar")
    entries.copied("a.pulsar", Position(7, 10), Position(1, 3), 5)
    assert entries.copied_to("a.pulsar", Position(7, 12)) == Position(1, 5)
    assert entries.copied_to("a.pulsar", Position(7, 15)) == BEFORE_ALL
    assert entries.copied_to("b", Position(7, 12)) == BEFORE_ALL
