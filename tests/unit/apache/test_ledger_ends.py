"""The status names places where brokers may have deleted messages before they were read."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.apache.ledger_ends import LedgerEnds, PossibleGap, acknowledged, from_json, noted, to_json
from replicator.apache.shown import TopicInternals
from replicator.apache.skipped_messages import Gap
from snapshots.position import BEFORE_ALL, Position


def shown(ledgers: dict[int, int], added: int, *, deleted: dict[int, int] | None = None) -> TopicInternals:
    """``ledgers`` have so many entries; those ``deleted`` are gone."""
    counts = {**(deleted or {}), **ledgers}
    filled = [ledger for ledger, entries in counts.items() if entries]
    last = Position(max(filled), counts[max(filled)] - 1)
    last_entries = {ledger: entries - 1 for ledger, entries in ledgers.items()}
    last_entries[last.ledger] = last.entry
    return TopicInternals(last, 0, "", {}, last_entries, frozenset(ledgers), 1, added)


READ = Position(5, 15)
GAP = Gap(READ, Position(6, -1))


def test_nothing_is_missing_while_the_ledger_is_there_or_ends_the_topic() -> None:
    ends = LedgerEnds()
    assert ends.deleted(GAP, shown({5: 36, 6: 4}, 4)) is None  # others look at it
    assert ends.deleted(GAP, shown({6: 0}, 0, deleted={5: 16})) is None
    assert ends.deleted(Gap(BEFORE_ALL, Position(6, -1)), shown({6: 4}, 4)) is None


def test_messages_may_be_missing_where_a_ledger_is_gone_whose_end_nobody_saw() -> None:
    assert LedgerEnds().deleted(GAP, shown({6: 4}, 4)) == 0
    ends = LedgerEnds()
    ends.look(shown({5: 16}, 16), READ)
    assert ends.deleted(GAP, shown({6: 4}, 4)) == 0  # it was loaded meanwhile
    assert ends.deleted(GAP, shown({6: 4}, 40)) == 0


def test_what_was_seen_and_not_read_is_counted() -> None:
    ends = LedgerEnds()
    ends.look(shown({5: 36, 6: 2}, 38), READ)
    assert ends.deleted(Gap(READ, Position(7, -1)), shown({7: 4}, 42)) == 22


def test_a_cursor_in_a_ledger_that_is_gone_says_that_there_were_entries_up_to_it() -> None:
    ends = LedgerEnds()
    gap = Gap(READ, Position(5, 35))
    assert ends.deleted(gap, shown({6: 0}, 0, deleted={5: 36})) == 20
    assert ends.deleted(gap, shown({6: 4}, 4)) == 20
    assert ends.deleted(gap, shown({5: 36}, 36)) is None


def test_places_that_follow_each_other_are_one() -> None:
    first = PossibleGap(READ, Position(5, 36), 7, 20)
    second = PossibleGap(Position(5, 35), Position(6, 0), 8)
    assert noted([], first) == [first]
    assert noted([first], first) == [first]
    assert noted([first], second) == [PossibleGap(READ, Position(6, 0), 7, 20)]
    later = PossibleGap(Position(9, 1), Position(10, 0), 9)
    assert noted([first], later) == [first, later]


@given(st.integers(0, 20), st.integers(0, 20), st.integers(0, 20), st.integers(1, 20))
def test_the_number_of_added_entries_says_that_nothing_is_missing(
    before: int, read: int, unread: int, after: int
) -> None:
    ends = LedgerEnds()
    ends.look(shown({5: before + 1}, before + 1), Position(5, before))
    added = before + 1 + read + unread + after
    gap = Gap(Position(5, before + read), Position(6, -1))
    assert ends.deleted(gap, shown({6: after}, added)) == (0 if unread else None)


def test_places_are_kept() -> None:
    places = [PossibleGap(READ, Position(6, 0), 7, 20), PossibleGap(Position(9, -1), Position(10, 0), 8)]
    assert from_json(to_json(places)) == places


def test_a_place_that_an_operator_has_acknowledged_is_not_named_again_and_the_next_one_is() -> None:
    first = PossibleGap(Position(5, 15), Position(6, 0), 1, 4)
    known = acknowledged([first._replace(after=Position(1, 1)), first], 70)
    assert known == [first._replace(acknowledged_ms=70)]
    assert from_json(to_json(known)) == known
    assert noted(known, first._replace(at_ms=2)) == known
    following = PossibleGap(Position(6, -1), Position(7, 0), 3)
    assert noted(known, following) == [*known, following]
    assert acknowledged([*known, following], 80) == [following._replace(acknowledged_ms=80)]


def test_places_that_an_earlier_version_stored_are_read() -> None:
    assert from_json(b"[[5, 15, 6, 0, 1, 4]]") == [PossibleGap(Position(5, 15), Position(6, 0), 1, 4)]
