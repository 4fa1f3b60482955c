"""When requests to the admin API go out while it limits them."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from replicator.apache.request_pace import PAUSE_FIRST_SECONDS, PAUSE_MAX_SECONDS, SAID_SECONDS_MAX, RequestPace


def test_pauses_double_up_to_a_limit_where_nothing_is_said() -> None:
    pace, now, waits = RequestPace(), 0.0, []
    for _ in range(9):
        pace.refused(now, now, None, 0.0)
        waits.append(pace.wait_seconds(now))
        now += waits[-1]
    assert waits == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]
    assert (waits[0], waits[-1]) == (PAUSE_FIRST_SECONDS, PAUSE_MAX_SECONDS)
    assert pace.refusals == 9


def test_chance_shortens_a_pause_by_half_at_most() -> None:
    pace = RequestPace()
    pace.refused(0, 0, None, 1.0)
    assert pace.wait_seconds(0) == PAUSE_FIRST_SECONDS / 2


def test_requests_that_were_under_way_together_double_the_pause_once() -> None:
    pace = RequestPace()
    assert pace.refused(0.0, 1.0, None, 0.0)
    assert not any(pace.refused(0.0, 1.0 + number / 100, None, 0.0) for number in range(7))
    assert pace.wait_seconds(1.0) == PAUSE_FIRST_SECONDS


@pytest.mark.parametrize(
    ("said", "wait"), [(7.0, 7.0), (0.1, PAUSE_FIRST_SECONDS), (3600.0, SAID_SECONDS_MAX), (0.0, PAUSE_FIRST_SECONDS)]
)
def test_what_an_answer_says_counts_within_limits(said: float, wait: float) -> None:
    pace = RequestPace()
    pace.refused(0, 0, said, 0.0)
    assert pace.wait_seconds(0) == wait


def test_a_longer_wait_that_is_said_later_counts_and_a_shorter_one_does_not() -> None:
    pace = RequestPace()
    for said in (5.0, 9.0, 2.0):
        pace.refused(0, 0, said, 0.0)
    assert pace.wait_seconds(0) == 9


def test_answers_halve_the_pause_until_requests_go_out_beside_each_other_again() -> None:
    pace, now = RequestPace(), 0.0
    for _ in range(3):
        pace.refused(now, now, None, 0.0)
        now += pace.wait_seconds(now)
    assert not pace.answered(now - 100)  # one from before says nothing
    ends = []
    while pace.limited:
        ends.append(pace.answered(now))
    assert ends == [False, False, True]
    assert not pace.answered(now)


@example([("refuse", 0.5, 0, None), ("send", 0.5, 0, None), ("refuse", 0.01, 0, 9.0), ("answer", 0.01, 1, None)])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["send", "answer", "refuse"]),
            st.sampled_from([0.01, 0.5]),
            st.integers(0, 2),
            st.sampled_from([None, 9.0]),
        ),
        max_size=12,
    )
)
def test_requests_are_limited_as_long_as_a_pause_lasts_in_whatever_order_they_are_answered(
    events: list[tuple[str, float, int, float | None]],
) -> None:
    pace, now, under_way = RequestPace(), 0.0, [0.0] * 3
    for what, passed, which, said in events:
        now += passed
        if what == "send" and not pace.wait_seconds(now):
            under_way.append(now)
        elif what != "send" and under_way:
            sent = under_way.pop(which % len(under_way))
            if what == "answer":
                pace.answered(sent)
            else:
                pace.refused(sent, now, said, 0.5)
        assert pace.limited or not pace.wait_seconds(now)
