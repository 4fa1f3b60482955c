"""Time in which the consumers of a planned switch may finish."""

from __future__ import annotations

from replicator.failover.grace import GRACE_SECONDS_MAX, QUIET_SECONDS, ConsumerGrace


def ends_at(held_at: dict[float, int], *, step: float = 0.02) -> float:
    """Return the time at which the grace is over, if consumers hold what ``held_at`` says from each time on."""
    grace = ConsumerGrace(100.0)
    at = 0.0
    while True:
        held = next(held for since, held in sorted(held_at.items(), reverse=True) if at >= since)
        if grace.is_over(held, 100.0 + at):
            return at
        at = round(at + step, 2)


def test_nobody_waits_for_consumers_that_hold_nothing() -> None:
    assert ends_at({0: 0}) == 0


def test_it_is_over_with_the_last_acknowledgement() -> None:
    assert ends_at({0: 5, 0.1: 4, 0.3: 0}) == 0.3


def test_what_is_kept_for_long_is_not_waited_for() -> None:
    assert ends_at({0: 5}) == QUIET_SECONDS


def test_an_acknowledgement_gives_those_that_are_still_on_their_way_their_time() -> None:
    assert ends_at({0: 5, 0.6: 3}) == 0.6 + QUIET_SECONDS


def test_applications_that_go_on_and_on_are_let_go_of() -> None:
    assert ends_at({at / 10: 1000 - at for at in range(100)}) == GRACE_SECONDS_MAX


def test_more_than_before_is_no_progress() -> None:
    """Nothing is added while dispatch is paused; if it were, it must not make a switch longer."""
    assert ends_at({0: 5, 0.5: 6, 0.9: 5}) == QUIET_SECONDS
