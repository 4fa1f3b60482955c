"""A bridge skips its own entries that the broker has confirmed, when it reads."""

from __future__ import annotations

from replicator.apache.confirmed_entries import (
    AHEAD_MAX,
    HOLD_SECONDS,
    HOLD_UNDER_WAY_SECONDS,
    Confirmation,
    ConfirmedEntries,
)
from replicator.apache.stamps import Identity
from snapshots.position import BEFORE_ALL, Position


def identity(number: int) -> Identity:
    return Identity("b", 1, Position(70, number))


def sent_and_confirmed(confirmed: ConfirmedEntries, *positions: Position) -> None:
    for number, position in enumerate(positions):
        confirmed.sent()
        confirmed.confirm(position, identity(number), 10)


def opened() -> ConfirmedEntries:
    confirmed = ConfirmedEntries()
    confirmed.open(lambda: None)
    return confirmed


def test_entries_that_follow_without_a_gap_need_not_be_read() -> None:
    confirmed = opened()
    sent_and_confirmed(confirmed, Position(3, 5), Position(3, 6))
    assert confirmed.after(Position(3, 4)) == [
        Confirmation(Position(3, 5), identity(0), 10),
        Confirmation(Position(3, 6), identity(1), 10),
    ]
    assert confirmed.after(Position(3, 6)) == []


def test_behind_a_gap_they_wait_until_the_gap_is_read() -> None:
    confirmed = opened()
    confirmed.sent()
    sent_and_confirmed(confirmed, Position(3, 6))
    assert confirmed.after(Position(3, 4)) == []
    assert not confirmed.expected(True)  # somebody else's comes next
    assert [each.position for each in confirmed.after(Position(3, 5))] == [Position(3, 6)]
    assert confirmed.expected(False)  # the first that was sent is not confirmed


def test_the_first_of_a_ledger_is_always_read() -> None:
    confirmed = opened()
    sent_and_confirmed(confirmed, Position(4, 0), Position(4, 1))
    assert confirmed.after(Position(3, 4)) == []
    assert [each.position for each in confirmed.after(Position(4, 0))] == [Position(4, 1)]
    assert ConfirmedEntries().after(BEFORE_ALL) == []


def test_nothing_is_expected_of_a_producer_that_has_ended() -> None:
    confirmed = opened()
    confirmed.sent()
    assert confirmed.expected(False)
    confirmed.over()
    assert not confirmed.expected(False)


def test_invariant_11_confirmations_behind_a_gap_are_bounded_and_without_a_reader_none_is_kept() -> None:
    confirmed = opened()
    sent_and_confirmed(confirmed, *(Position(3, 6 + entry) for entry in range(AHEAD_MAX + 1)))
    assert confirmed.after(Position(3, 5)) == []
    confirmed.close()
    sent_and_confirmed(confirmed, Position(3, 6))
    confirmed.open(lambda: None)
    assert confirmed.after(Position(3, 5)) == []


def test_a_confirmation_at_no_position_is_none() -> None:
    confirmed = opened()
    sent_and_confirmed(confirmed, Position(3, 5), BEFORE_ALL, Position(3, 6))
    assert confirmed.after(Position(3, 4)) == []  # all that is known for certain is read
    assert [each.position for each in confirmed.after(Position(3, 5))] == [Position(3, 6)]


def test_the_bridge_waits_longer_for_a_confirmation_that_is_on_its_way() -> None:
    confirmed = opened()
    confirmed.sent()
    assert confirmed.hold_seconds() == HOLD_UNDER_WAY_SECONDS
    confirmed.confirm(Position(3, 6), Identity("b", 1, Position(1, 0)), 1)
    assert confirmed.hold_seconds() == HOLD_SECONDS
