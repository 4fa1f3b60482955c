"""The timer wheel and the trackers on it against simple models, under random events and clock steps."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.client.consuming.negative_acks import (
    FixedRedeliveryBackoff,
    MultiplierRedeliveryBackoff,
    NegativeAckTracker,
)
from replicator.client.consuming.timer_wheel import TimerWheel
from replicator.client.consuming.unacked_tracker import MessageKey, UnackedTracker
from snapshots.position import Position

_ENTRIES = st.integers(0, 6).map(lambda entry: Position(1, entry))
_INDEXES = st.integers(-1, 3)
_STEPS_MS = st.integers(0, 400)


@given(st.data())
def test_a_key_comes_out_once_never_early_and_at_most_a_tick_late(data: st.DataObject) -> None:
    tick_ms = data.draw(st.integers(1, 50))
    wheel: TimerWheel[int] = TimerWheel(tick_ms)
    due_at: dict[int, float] = {}
    now_ms = float(data.draw(st.integers(0, 10_000)))
    wheel.take_due(now_ms)
    for _ in range(data.draw(st.integers(0, 40))):
        match data.draw(st.sampled_from(["put", "remove", "take", "clear"])):
            case "put":
                key, delay_ms = data.draw(st.integers(0, 9)), data.draw(st.integers(0, 300))
                wheel.put(key, now_ms + delay_ms)
                due_at[key] = now_ms + delay_ms
            case "remove":
                key = data.draw(st.integers(0, 9))
                assert wheel.remove(key) == (due_at.pop(key, None) is not None)
            case "take":
                now_ms += data.draw(_STEPS_MS)
                taken = wheel.take_due(now_ms)
                assert len(set(taken)) == len(taken)
                for key in taken:
                    assert due_at.pop(key) <= now_ms, "early"
                assert all(now_ms < due_ms + 2 * tick_ms for due_ms in due_at.values()), "late"
            case "clear":
                wheel.clear()
                due_at.clear()
        assert sorted(wheel.keys()) == sorted(due_at)
        next_ms = wheel.next_due_ms()
        assert (next_ms is None) == (not due_at)
        if next_ms is not None:
            assert min(due_at.values()) <= next_ms + tick_ms
    while (next_ms := wheel.next_due_ms()) is not None:
        now_ms = max(now_ms, next_ms)
        assert wheel.take_due(now_ms), "the wheel asked for a turn that brings nothing"
    assert len(wheel) == 0


@given(st.data())
def test_rejected_entries_come_back_once_each_after_their_delay_and_the_number_that_waits_is_bounded(
    data: st.DataObject,
) -> None:
    backoff = data.draw(
        st.sampled_from([FixedRedeliveryBackoff(100), FixedRedeliveryBackoff(0), MultiplierRedeliveryBackoff(20, 300)])
    )
    entries_max = data.draw(st.integers(1, 8))
    tracker = NegativeAckTracker(backoff, entries_max=entries_max)
    waiting: dict[Position, float] = {}
    now_ms = 0.0
    for _ in range(data.draw(st.integers(0, 40))):
        match data.draw(st.sampled_from(["add", "add", "remove", "step"])):
            case "add":
                position, count = data.draw(_ENTRIES), data.draw(st.integers(0, 5))
                full = len(waiting) >= entries_max and position not in waiting
                early = tracker.add(position, count, now_ms)
                assert bool(early) == full
                for other in early:
                    assert waiting.pop(other) <= min(waiting.values(), default=float("inf")) + 33
                waiting.setdefault(position, now_ms + backoff.next_delay_ms(count))
            case "remove":
                position = data.draw(_ENTRIES)
                tracker.remove(position)
                waiting.pop(position, None)
            case "step":
                now_ms += data.draw(_STEPS_MS)
                due = tracker.take_due(now_ms)
                assert due == sorted(set(due))
                for position in due:
                    assert waiting.pop(position) <= now_ms
                assert all(due_ms > now_ms - 66 for due_ms in waiting.values())
        assert len(tracker) == len(waiting) <= entries_max


@given(st.data())
def test_what_the_application_has_in_hand_times_out_once_and_nothing_else_does(data: st.DataObject) -> None:
    timeout_ms = data.draw(st.integers(1, 300))
    tick_ms = data.draw(st.integers(1, timeout_ms))
    tracker = UnackedTracker(timeout_ms, tick_ms)
    in_hand: dict[MessageKey, float] = {}
    now_ms = 0.0
    for _ in range(data.draw(st.integers(0, 50))):
        match data.draw(st.sampled_from(["receive", "receive", "acknowledge", "cumulative", "step", "clear"])):
            case "receive":
                position = data.draw(_ENTRIES)
                key = MessageKey(position, data.draw(st.integers(0, 3)) if position.entry < 4 else -1)
                tracker.add(*key, 0, now_ms)
                in_hand[key] = now_ms
            case "acknowledge":
                position, index = data.draw(_ENTRIES), data.draw(_INDEXES)
                tracker.remove(position, index)
                for key in list(in_hand):
                    if key.position == position and index in (-1, key.batch_index):
                        del in_hand[key]
            case "cumulative":
                position, index = data.draw(_ENTRIES), data.draw(_INDEXES)
                tracker.remove_through(position, index)
                for key in list(in_hand):
                    within = key.position == position and (index < 0 or key.batch_index <= index)
                    if key.position < position or within:
                        del in_hand[key]
            case "step":
                now_ms += data.draw(_STEPS_MS)
                for key in tracker.take_due(now_ms):
                    assert in_hand.pop(key) + timeout_ms <= now_ms, "before its timeout"
                assert all(since_ms + timeout_ms + 2 * tick_ms > now_ms for since_ms in in_hand.values()), "overdue"
            case "clear":
                tracker.clear()
                in_hand.clear()
        assert len(tracker) == len(in_hand)
    assert sorted(tracker.take_due(now_ms + timeout_ms + 2 * tick_ms)) == sorted(in_hand)
