"""Delayed entries, and counts of redeliveries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.dispatch import redeliveries
from replicator.engine.dispatch.delayed import TICK_MS, DelayedEntries
from replicator.engine.dispatch.redeliveries import RedeliveryCounts
from snapshots.position import Position


@given(st.dictionaries(st.integers(0, 200), st.integers(0, 300), max_size=30), st.integers(0, 400))
def test_nothing_is_due_early_and_nothing_later_than_a_tick(due_at: dict[int, int], now_ms: int) -> None:
    delayed = DelayedEntries()
    for entry, deliver_at_ms in due_at.items():
        delayed.add(Position(1, entry), deliver_at_ms)
        delayed.add(Position(1, entry), deliver_at_ms)  # again: the same
    assert len(delayed) == len(due_at)
    taken = {position.entry for position in delayed.take_due(now_ms)}
    assert all(due_at[entry] <= now_ms for entry in taken)
    assert all(entry in taken for entry, time in due_at.items() if time + TICK_MS <= now_ms)
    assert len(delayed) == len(due_at) - len(taken)
    assert (delayed.next_due_ms is None) == (len(delayed) == 0)
    if delayed.next_due_ms is not None:
        assert delayed.next_due_ms > now_ms


def test_counts_are_bounded_and_the_oldest_is_forgotten_first(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(redeliveries, "TRACKED_MAX", 3)
    counts = RedeliveryCounts()
    for entry in (5, 1, 9, 7):
        counts.add(Position(1, entry))
    assert [counts.count(Position(1, entry)) for entry in (1, 5, 7, 9)] == [0, 1, 1, 1]
    counts.forget_through(Position(1, 7))
    assert len(counts) == 1
