"""A subscription's cursor as brokers show it."""

from __future__ import annotations

import pytest

from replicator.apache.broker_cursor import BrokerCursor, parse_cursor, parse_position
from replicator.apache.errors import BridgeError
from snapshots.position import Position
from snapshots.position_set import PositionSet


def shown(mark_delete: str, ranges: str) -> dict[str, str]:
    return {"markDeletePosition": mark_delete, "individuallyDeletedMessages": ranges}


def test_ranges_are_open_at_their_beginning_and_closed_at_their_end() -> None:
    cursor = parse_cursor(shown("3:1", "[(3:3..3:4],(3:5..3:7]]"), {3: 9})
    assert cursor.mark_delete == Position(3, 1)
    assert list(cursor.beyond) == [Position(3, 4), Position(3, 6), Position(3, 7)]


def test_a_range_over_ledgers_covers_what_lies_between() -> None:
    cursor = parse_cursor(shown("3:1", "[(3:7..9:0]]"), {3: 9, 5: 1, 9: 4})
    assert list(cursor.beyond) == [Position(3, 8), Position(3, 9), Position(5, 0), Position(5, 1), Position(9, 0)]


def test_a_cursor_before_the_first_entry_has_nothing() -> None:
    cursor = parse_cursor(shown("3:-1", "[]"), {})
    assert Position(3, 0) not in cursor
    assert not cursor.beyond


@pytest.mark.parametrize("ranges", ["[(3:3..3:4)]", "[(3:3..3:4],[3:5..3:7]]", "[(a:3..3:4]]", "[(3:3..3:4],…]"])
def test_what_cannot_be_read_is_an_error_and_no_guess(ranges: str) -> None:
    with pytest.raises(BridgeError, match="nobody can read"):
        parse_cursor(shown("3:1", ranges), {})


def positions(ledger: int, first: int, last: int) -> PositionSet:
    found = PositionSet()
    found.add_range(ledger, first, last)
    return found


def test_a_cursor_reaches_as_far_as_nothing_is_left_open() -> None:
    cursor = BrokerCursor(Position(3, 4), positions(3, 7, 8))
    ledgers = {3: 9, 5: 2, 6: -1, 7: 5}
    assert cursor.reaches(PositionSet(), ledgers) == Position(3, 4)
    assert cursor.reaches(positions(3, 6, 6), ledgers) == Position(3, 4)
    assert cursor.reaches(positions(3, 5, 6), ledgers) == Position(3, 8)
    more = positions(3, 5, 9)
    more.update(positions(5, 1, 2))
    assert cursor.reaches(more, ledgers) == Position(3, 9)
    more.update(positions(5, 0, 0))
    assert cursor.reaches(more, ledgers) == Position(5, 2)
    more.update(positions(7, 0, 3))
    assert cursor.reaches(more, ledgers) == Position(7, 3)


def test_a_cursor_in_a_ledger_that_is_gone_reaches_into_the_next_one() -> None:
    assert BrokerCursor(Position(2, 9)).reaches(positions(3, 0, 1), {3: 4}) == Position(3, 1)
    assert BrokerCursor(Position(3, -1)).reaches(positions(3, 0, 4), {3: 4}) == Position(3, 4)


def test_a_position_is_two_numbers() -> None:
    assert parse_position("12:34") == Position(12, 34)
    with pytest.raises(BridgeError, match="where a position as 3:14 was expected"):
        parse_position("12:-2")


def test_a_cursor_lacks_what_was_acknowledged_earlier_and_is_not_any_more() -> None:
    earlier = BrokerCursor(Position(3, 4), PositionSet([Position(3, 7)]))
    assert not BrokerCursor(Position(3, 8)).lacks(earlier)
    assert not BrokerCursor(Position(3, 4), PositionSet([Position(3, 6), Position(3, 7)])).lacks(earlier)
    assert BrokerCursor(Position(3, 4)).lacks(earlier)
    assert BrokerCursor(Position(3, 2), PositionSet([Position(3, 7)])).lacks(earlier)


def test_what_is_stored_is_read_again() -> None:
    cursor = BrokerCursor(Position(3, -1), PositionSet([Position(3, 7), Position(3, 8), Position(9, 0)]))
    again = BrokerCursor.from_json(cursor.to_json())
    assert again.mark_delete == cursor.mark_delete
    assert again.beyond == cursor.beyond
