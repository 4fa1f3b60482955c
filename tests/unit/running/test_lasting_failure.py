"""Log lines about what is tried again and again."""

from __future__ import annotations

from replicator.running.lasting_failure import REPEAT_SECONDS, LastingFailure


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_failure_is_logged_when_it_begins_and_once_an_hour() -> None:
    clock = Clock()
    failure = LastingFailure(clock)
    logged = 0
    for second in range(10_000):
        clock.now = float(second)
        logged += failure.failed()
    assert logged == 1 + int(9_999 / REPEAT_SECONDS)
    assert failure.attempts == 10_000


def test_its_end_is_told_once_and_the_next_one_is_another() -> None:
    clock = Clock()
    failure = LastingFailure(clock)
    assert failure.ended() is None
    assert failure.failed()
    clock.now = 70.0
    assert failure.ended() == 70.0
    assert failure.ended() is None
    assert failure.attempts == 0
    assert failure.failed()
