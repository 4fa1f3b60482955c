"""Delayed entries, and counts of redeliveries."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.engine.subscriptions.dispatch import delayed as delayed_module
from replicator.engine.subscriptions.dispatch import redeliveries
from replicator.engine.subscriptions.dispatch.delayed import TICK_MS, DelayedEntries
from replicator.engine.subscriptions.dispatch.redeliveries import RedeliveryCounts
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


def test_what_is_consumed_before_it_is_due_makes_room_at_once(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(delayed_module, "DELAYED_MAX", 3)
    delayed = DelayedEntries()
    for entry in range(3):
        delayed.add(Position(1, entry), 1_000 * (entry + 1))
    assert delayed.full
    delayed.discard_through(Position(1, 1))
    assert not delayed.full
    assert len(delayed) == 1
    delayed.add(Position(1, 3), 500)
    assert list(delayed.take_due(10_000)) == [Position(1, 2), Position(1, 3)]
    assert len(delayed) == 0
    assert delayed.next_due_ms is None


def test_ticks_of_what_was_consumed_do_not_pile_up(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(delayed_module, "TICKS_AT_ONCE", 10)
    delayed = DelayedEntries()
    for entry in range(1_000):
        delayed.add(Position(1, entry), 1_000_000 + TICK_MS * entry)
        delayed.discard_through(Position(1, entry))
    assert len(delayed) == 0
    assert len(delayed._ticks) <= 20


def test_a_million_ticks_that_are_due_come_in_parts(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(delayed_module, "TICKS_AT_ONCE", 10)
    delayed = DelayedEntries()
    for entry in range(25):
        delayed.add(Position(1, entry), TICK_MS * entry)
    parts = [len(delayed.take_due(1_000)) for _ in range(4)]
    assert parts == [10, 10, 5, 0]
