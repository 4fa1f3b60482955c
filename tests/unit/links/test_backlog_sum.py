"""The backlog of a link is counted with bounded work, however many topics are late."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st
from step_limit import at_most_steps

from replicator.links.backlog_sum import COUNTED_AT_ONCE, BacklogSum

MANY = 50 * COUNTED_AT_ONCE
NAMES = [f"persistent://a/b/t-{number}" for number in range(5)]


def test_a_question_takes_as_long_with_ten_thousand_late_topics_as_with_a_few_hundred() -> None:
    backlogs = BacklogSum(lambda name: 3)
    for number in range(MANY):
        backlogs.moved(f"t-{number}")
    with at_most_steps(20 * COUNTED_AT_ONCE):
        assert backlogs.total() == 3 * COUNTED_AT_ONCE
        assert backlogs.total() == 6 * COUNTED_AT_ONCE
    turns = 2
    while not backlogs.count():
        turns += 1
    assert turns < MANY / COUNTED_AT_ONCE
    with at_most_steps(100):
        assert backlogs.total() == 3 * MANY


def test_topics_that_moved_first_are_counted_first() -> None:
    backlogs = BacklogSum(lambda name: int(name == "first"))
    backlogs.moved("first")
    for _ in range(3):
        for number in range(MANY):
            backlogs.moved(f"t-{number}")
    assert backlogs.total() == 1


@given(st.lists(st.tuples(st.sampled_from(NAMES), st.none() | st.integers(0, 9), st.booleans())))
def test_the_sum_of_few_topics_is_exact_whatever_moved_and_was_forgotten(
    steps: list[tuple[str, int | None, bool]],
) -> None:
    now = Counter[str]()
    backlogs = BacklogSum(lambda name: now[name])
    for name, backlog, ask in steps:
        if backlog is None:
            del now[name]
            backlogs.forget(name)
        else:
            now[name] = backlog
            backlogs.moved(name)
        if ask:
            assert backlogs.total() == now.total()
    assert backlogs.total() == now.total()
