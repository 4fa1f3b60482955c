"""Map between the places of a topic's entries at the brokers and in the engine's log."""

from __future__ import annotations

from replicator.apache.entry_map import EntryMap
from replicator.apache.left_out import RefusedEntry
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
    """Return a map. The brokers' ledger 3 has own entries 0 to 4, theirs 5 to 7, own 8 and 9; the log's ledger 1 has
    theirs first."""
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


def refused() -> EntryMap:
    """Return a map whose log has 0 to 9 of theirs, 4 a marker. The brokers refused 2 and 5, and took the others."""
    log_markers = run(1, 4, 4)

    def messages_of(positions: PositionSet) -> PositionSet:
        found = positions.copy()
        found.difference_update(log_markers)
        return found

    entries = EntryMap(OWN, messages_of)
    entries.copied(THEIRS, Position(70, 0), Position(1, 0), 10)
    for place, index in enumerate((0, 1, 3, 6, 7, 8, 9)):
        entries.seen_at_broker(Identity(THEIRS, 9, Position(70, index)), Position(3, place))
    return entries


def test_invariant_1_what_the_brokers_lack_below_the_last_that_is_there_is_missing() -> None:
    entries = refused()
    assert list(entries.missing(THEIRS)) == [Position(70, 2), Position(70, 5)]
    assert entries.published_through(THEIRS) == Position(70, 1)
    assert entries.publish_from(THEIRS) == Position(1, 1)
    assert entries.seen_through(THEIRS) == Position(70, 9)


def test_what_stands_behind_later_entries_is_found_on_both_sides_and_is_missing_no_more() -> None:
    entries = refused()
    late = Identity(THEIRS, 9, Position(70, 5))
    assert entries.seen_at_broker(late, Position(3, 7)) == Extent(Position(70, 5), Position(3, 7), 1)
    assert entries.seen_at_broker(late, Position(3, 7)) == Extent(Position(70, 5), Position(3, 7), 1)  # read again
    assert list(entries.missing(THEIRS)) == [Position(70, 2)]
    assert entries.seen_at_broker(late._replace(position=Position(70, 2)), Position(3, 8)) is not None
    assert not entries.missing(THEIRS)
    assert entries.published_through(THEIRS) == Position(70, 9)
    assert entries.to_local(run(3, 7, 8)) == PositionSet([Position(1, 5), Position(1, 2)])
    assert entries.to_broker(PositionSet([Position(1, 2)])) == run(3, 8, 8)
    assert entries.beyond(Position(3, 5)) == run(3, 6, 8)
    assert [extent.origin_first.entry for _, extent in entries.late()] == [5, 2]
    assert entries.doubled == 0
    assert entries.seen_at_broker(late, Position(3, 9)) is None
    assert entries.doubled == 1


def test_invariant_5_a_start_passes_over_nothing_that_is_missing_or_stands_behind_it() -> None:
    entries = refused()
    assert entries.ends_at(Position(3, 6)) == {THEIRS: Position(70, 1)}
    entries.seen_at_broker(Identity(THEIRS, 9, Position(70, 2)), Position(3, 7))
    assert entries.ends_at(Position(3, 6)) == {THEIRS: Position(70, 1)}
    assert entries.ends_at(Position(3, 7)) == {THEIRS: Position(70, 4)}
    entries.seen_at_broker(Identity(THEIRS, 9, Position(70, 5)), Position(3, 8))
    assert entries.ends_at(Position(3, 8)) == {THEIRS: Position(70, 9)}


def test_what_a_broker_dropped_as_a_duplicate_is_not_missing_there() -> None:
    entries = refused()
    entries.dropped(Identity(THEIRS, 9, Position(70, 2)))
    assert list(entries.missing(THEIRS)) == [Position(70, 5)]


def test_what_a_link_brings_after_later_entries_were_seen_is_missing() -> None:
    """The store is an older copy, and brokers refused one entry in its future."""
    entries = EntryMap(OWN)
    for place, index in enumerate((0, 1, 3)):
        entries.seen_at_broker(Identity(THEIRS, 9, Position(70, index)), Position(3, place))
    assert not entries.missing(THEIRS)
    entries.copied(THEIRS, Position(70, 0), Position(1, 0), 4)
    assert list(entries.missing(THEIRS)) == [Position(70, 2)]


def test_stamps_of_an_earlier_life_whose_positions_are_not_below_say_nothing_about_the_new_one() -> None:
    """The brokers of the other cluster were set up anew, and count ledgers from the beginning."""
    entries = EntryMap(OWN)
    for index in range(4):
        entries.seen_at_broker(Identity(THEIRS, 9, Position(70, index)), Position(3, index))
    entries.copied(THEIRS, Position(2, 0), Position(1, 0), 30, incarnation=11)
    assert entries.published_through(THEIRS) == BEFORE_ALL
    assert entries.seen_at_broker(Identity(THEIRS, 9, Position(70, 3)), Position(3, 3)) is None  # read again
    for index in range(30):
        assert entries.seen_at_broker(Identity(THEIRS, 11, Position(2, index)), Position(3, 4 + index)) is not None
    assert entries.published_through(THEIRS) == Position(2, 29)
    assert (entries.late(), entries.doubled) == ([], 0)


def test_an_earlier_life_that_the_new_one_continues_is_kept() -> None:
    entries = EntryMap(OWN)
    entries.copied(THEIRS, Position(70, 0), Position(1, 0), 4, incarnation=9)
    for index in range(4):
        entries.seen_at_broker(Identity(THEIRS, 9, Position(70, index)), Position(3, index))
    entries.copied(THEIRS, Position(71, 0), Position(1, 4), 1, incarnation=11)
    assert entries.published_through(THEIRS) == Position(70, 3)
    assert entries.to_broker(run(1, 0, 4)) == run(3, 0, 3)


def test_what_lies_before_the_first_that_brokers_have_was_deleted_there_and_is_not_missing() -> None:
    """The worker reads the topic from its beginning anew, and links bring everything anew."""
    entries = EntryMap(OWN)
    entries.copied(THEIRS, Position(70, 0), Position(1, 0), 4)
    for place, index in enumerate((6, 7, 9)):
        entries.seen_at_broker(Identity(THEIRS, 9, Position(70, index)), Position(3, place))
    entries.copied(THEIRS, Position(70, 4), Position(1, 4), 6)
    assert list(entries.missing(THEIRS)) == [Position(70, 8)]


def test_invariant_2_what_is_due_before_an_entry_that_is_left_out_is_still_published() -> None:
    """A broker may refuse entries for a reason that ends, and the one behind them for a policy."""
    entries = a_map()
    left_out = RefusedEntry(Identity(THEIRS, 9, Position(70, 3)), 9_000, "too large", at_ms=1)
    entries.leave_out(left_out)
    assert entries.published_through(THEIRS) == Position(70, 3)
    entries.copied(THEIRS, Position(70, 4), Position(1, 11), 3)
    assert entries.published_through(THEIRS) == Position(70, 3)
    entries.leave_out(left_out._replace(identity=Identity(THEIRS, 9, Position(70, 6))))
    assert entries.published_through(THEIRS) == Position(70, 3)
    entries.leave_out(left_out._replace(identity=Identity(THEIRS, 9, Position(70, 5))))
    assert entries.published_through(THEIRS) == Position(70, 3)
    entries.seen_at_broker(Identity(THEIRS, 9, Position(70, 4)), Position(3, 10))
    assert entries.published_through(THEIRS) == Position(70, 6)
    assert not entries.missing(THEIRS)


def test_an_entry_that_is_left_out_and_stands_at_the_brokers_is_not_named() -> None:
    entries = a_map()
    left_out = RefusedEntry(Identity(THEIRS, 9, Position(70, 3)), 9_000, "too large", at_ms=1)
    entries.leave_out(left_out)
    assert entries.left_out() == [left_out]
    entries.seen_at_broker(left_out.identity, Position(3, 10))
    assert entries.left_out() == []
