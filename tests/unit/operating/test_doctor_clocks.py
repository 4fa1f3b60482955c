"""Clocks by whole seconds: what answers allow together holds the truth, and is narrower than any of them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from replicator.operating.doctor.clocks import Offset
from replicator.operating.doctor.findings import Finding, Level, exit_status
from replicator.operating.doctor.peers import judge_clocks

SECONDS = st.floats(0, 10)


@given(ahead=st.floats(-100, 100), answers=st.lists(st.tuples(SECONDS, st.floats(0, 1), st.floats(0, 1)), min_size=1))
def test_the_truth_is_never_left_out(ahead: float, answers: list[tuple[float, float, float]]) -> None:
    offset = Offset()
    for sent, there, back in answers:
        second = math.floor(1_000 + sent + there + ahead)
        offset = offset.narrowed(1_000 + sent, 1_000 + sent + there + back, second)
    assert offset.least - 1e-6 <= ahead <= offset.most + 1e-6
    assert offset.min_offset <= abs(ahead) + 1e-6


def test_an_answer_at_the_turn_of_a_second_is_worth_the_most() -> None:
    early = Offset().narrowed(10.90, 10.95, 12)  # before their second 13
    assert round(early.bound, 3) == 0.525
    both = early.narrowed(11.00, 11.05, 13)  # and just after it began
    assert round(both.bound, 3) == 0.075
    assert round(both.middle, 3) == 2.025


def test_a_clock_that_was_set_meanwhile_counts_as_it_is_now() -> None:
    assert round(Offset().narrowed(10.0, 10.1, 10).narrowed(11.0, 11.1, 111).middle) == 100


def test_clocks_that_are_surely_apart_are_said_to_be_and_those_that_may_agree_are_not() -> None:
    judged = judge_clocks({"same": Offset(-0.6, 0.6), "apart": Offset(0.6, 0.7), "far": Offset(-90.1, -90.0)})
    assert [each.level for each in judged] == [Level.OK, Level.WARNING, Level.ERROR]


def test_warnings_fail_only_where_that_is_asked_for() -> None:
    warned = [Finding("x", "y", Level.OK, ""), Finding("x", "y", Level.WARNING, "")]
    assert [exit_status(warned, strict=strict) for strict in (False, True)] == [0, 1]
    assert exit_status([*warned, Finding("x", "y", Level.ERROR, "")], strict=False) == 1
