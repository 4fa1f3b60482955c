"""Properties of when a task that ended starts again, over any times of ends."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from replicator.running.restarts import (
    FAILING_ENDS,
    PAUSE_SECONDS_MAX,
    PAUSE_SECONDS_MIN,
    WELL_SECONDS,
    WINDOW_SECONDS,
    RestartHistory,
)

RUNS = st.lists(st.floats(0.0, 700.0), max_size=40)
"""Times that a task ran before each of its ends."""


@given(RUNS, st.integers())
def test_a_pause_is_never_longer_than_the_limit(runs: list[float], seed: int) -> None:
    history, now = RestartHistory(random.Random(seed)), 0.0
    for ran in runs:
        now += ran
        restart = history.ended(now, ran_seconds=ran)
        assert PAUSE_SECONDS_MIN / 2 <= restart.pause_seconds <= PAUSE_SECONDS_MAX
        if ran >= WELL_SECONDS:
            assert restart.pause_seconds <= PAUSE_SECONDS_MIN
        now += restart.pause_seconds


@given(RUNS, st.floats(0.0, 2 * WINDOW_SECONDS), st.integers())
def test_failing_is_to_have_ended_five_times_within_ten_minutes(runs: list[float], later: float, seed: int) -> None:
    history, now = RestartHistory(random.Random(seed)), 0.0
    ends: list[float] = []

    def failing(at: float) -> bool:
        return sum(at - end < WINDOW_SECONDS for end in ends) >= FAILING_ENDS

    for ran in runs:
        now += ran
        before = failing(now)
        restart = history.ended(now, ran_seconds=ran)
        ends.append(now)
        assert history.failing(now) == failing(now)
        assert restart.newly_failing == (failing(now) and not before)
        now += restart.pause_seconds
    assert history.ends == len(ends)
    assert history.failing(now + later) == failing(now + later)


def test_pauses_of_a_task_that_ends_at_its_start_double_up_to_thirty_seconds() -> None:
    class NoChance:
        def random(self) -> float:
            return 0.0

    history = RestartHistory(NoChance())
    pauses = [history.ended(float(number), ran_seconds=0.0).pause_seconds for number in range(12)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0]
    assert history.ended(1000.0, ran_seconds=WELL_SECONDS).pause_seconds == 0.1
