"""When updates go: the first at once, more while one is under way, and never more than all topics together may."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from snapshots.pacing import (
    BURST_UPDATES,
    GATHER_MS_MAX,
    QUIET_MS,
    TICK_MS,
    UPDATES_A_SECOND,
    UpdateBudget,
    UpdatePace,
)

INTERVAL_MS = 5


def pace(budget: UpdateBudget | None = None) -> UpdatePace:
    return UpdatePace(budget or UpdateBudget())


def test_the_first_change_goes_at_once() -> None:
    topic = pace()
    topic.changed(1_000, INTERVAL_MS)
    assert topic.due_ms == 1_000


def test_changes_gather_while_an_update_is_under_way_and_go_when_it_is_written() -> None:
    topic = pace()
    topic.changed(1_000, INTERVAL_MS)
    topic.began(1_000, 2, INTERVAL_MS)
    topic.changed(1_001, INTERVAL_MS)
    assert topic.due_ms is None
    topic.ended(1_001)
    assert topic.due_ms is None, "one of its two markers is not in the log yet"
    topic.ended(1_001)
    assert topic.due_ms == 1_000 + INTERVAL_MS


def test_who_takes_long_rests_long_but_not_longer_than_changes_may_gather() -> None:
    topic = pace()
    for took_ms, between_ms in ((1, INTERVAL_MS), (QUIET_MS, INTERVAL_MS), (3 * QUIET_MS, 9 * QUIET_MS)):
        topic.began(1_000, 1, INTERVAL_MS)
        topic.ended(1_000 + took_ms)
        topic.changed(1_000 + took_ms, INTERVAL_MS)
        assert topic.due_ms == 1_000 + between_ms
    topic.began(2_000, 1, INTERVAL_MS)
    topic.ended(3_000)
    topic.changed(3_000, INTERVAL_MS)
    assert topic.due_ms == 3_000, "the time that it took counts"


def test_a_longer_interval_is_kept() -> None:
    topic = pace()
    topic.changed(1_000, 2_000)
    topic.began(1_000, 1, 2_000)
    topic.ended(1_001)
    topic.changed(1_500, 2_000)
    assert topic.due_ms == 3_000


def test_what_topics_begin_together_is_bounded_and_none_waits_longer_than_it_gathers() -> None:
    """Invariant 11. 1,000 topics change at once, again and again."""
    budget = UpdateBudget()
    topics = [pace(budget) for _ in range(1_000)]
    for topic in topics:
        topic.changed(0, INTERVAL_MS)
    due = [topic.due_ms or 0 for topic in topics]
    early = [at for at in due if at < GATHER_MS_MAX]
    assert due[:BURST_UPDATES] == [0] * BURST_UPDATES
    assert len(early) <= BURST_UPDATES + 1 + UPDATES_A_SECOND * GATHER_MS_MAX / 1000
    assert max(due) == GATHER_MS_MAX


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 200)), max_size=200))
def test_never_more_than_the_budget_in_any_time(wanted: list[tuple[int, int]]) -> None:
    """Invariant 11. (Pause before it is wanted, how long it may wait): who gets a turn keeps to the rate."""
    budget, now_ms, turns = UpdateBudget(), 0, []
    for pause_ms, request_delay_ms in wanted:
        now_ms += pause_ms
        latest_ms = now_ms + request_delay_ms
        has_turn = budget.wait_ms(now_ms) < request_delay_ms
        at_ms = budget.reserve(now_ms, latest_ms)
        assert now_ms <= at_ms <= latest_ms
        if has_turn:
            turns.append(at_ms)
        else:
            assert at_ms == now_ms or at_ms % TICK_MS == 0
    for first, start_ms in enumerate(turns):
        for last in range(first, len(turns)):
            allowed = BURST_UPDATES + 1 + (turns[last] - start_ms + 1) * UPDATES_A_SECOND / 1000
            assert last - first + 1 <= allowed


def test_topics_that_get_no_turn_share_ticks() -> None:
    """Many topics share one tick, and thus one commit and one frame."""
    budget = UpdateBudget()
    due = [budget.reserve(number, number + GATHER_MS_MAX) for number in range(1_000)]
    on_ticks = [at_ms for at_ms in due if at_ms >= GATHER_MS_MAX and at_ms % TICK_MS == 0]
    assert len(on_ticks) > 700, "of 1,000 a second the budget has turns for 200"
    assert all(at_ms <= number + GATHER_MS_MAX for number, at_ms in enumerate(due))
