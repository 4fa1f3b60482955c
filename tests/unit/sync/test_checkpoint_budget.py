"""How often topics store up to where their markers were handled: each second while few move, seldom where many do."""

from __future__ import annotations

import pytest

from replicator.sync.checkpoint import (
    BURST_CHECKPOINTS,
    CHECKPOINT_MS,
    CHECKPOINT_MS_MAX,
    CHECKPOINTS_A_SECOND,
    checkpoint_budget,
)

SECONDS = 60


def saved(topics: int) -> list[int]:
    """Return the times at which topics that move all the time save their checkpoints."""
    budget, times = checkpoint_budget(), list[int]()
    due = [(number, number) for number in range(topics)]
    while due:
        due.sort()
        at_ms, number = due.pop(0)
        if at_ms < SECONDS * 1000:
            times.append(at_ms)
            earliest_ms = at_ms + CHECKPOINT_MS
            due.append((budget.reserve(earliest_ms, earliest_ms + CHECKPOINT_MS_MAX), number))
    return times


@pytest.mark.parametrize("topics", [1, CHECKPOINTS_A_SECOND // 2])
def test_while_few_topics_move_each_has_a_checkpoint_a_second(topics: int) -> None:
    assert len(saved(topics)) >= topics * (SECONDS - 1)


@pytest.mark.parametrize("topics", [200, 500])
def test_where_many_topics_move_checkpoints_cost_by_the_budget_and_not_by_topics(topics: int) -> None:
    every_topic_in_its_longest_time = topics * (SECONDS * 1000 // CHECKPOINT_MS_MAX + 1)
    count = len(saved(topics))
    assert count <= BURST_CHECKPOINTS + SECONDS * CHECKPOINTS_A_SECOND + every_topic_in_its_longest_time
    assert count / (topics * SECONDS) < 0.25, "checkpoints a message, at a message a second"
