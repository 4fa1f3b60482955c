"""The delays of negative acknowledgements and of acknowledgement timeouts, by their rules in seed 002."""

from __future__ import annotations

import pytest

from replicator.client.consuming.negative_acks import (
    TICK_MS_MAX,
    FixedRedeliveryBackoff,
    MultiplierRedeliveryBackoff,
    NegativeAckTracker,
)
from replicator.client.consuming.unacked_tracker import MessageKey, UnackedTracker
from replicator.client.errors import InvalidConfiguration
from snapshots.position import Position


def _at(entry: int) -> Position:
    return Position(1, entry)


def test_a_rejected_message_waits_a_minute_by_default_and_a_tick_at_most_more() -> None:
    tracker = NegativeAckTracker()
    tracker.add(_at(0), 0, 0.0)
    assert tracker.take_due(59_999) == []
    assert tracker.take_due(60_000 + TICK_MS_MAX) == [_at(0)]


def test_what_is_rejected_within_a_tick_is_asked_for_in_one_request() -> None:
    tracker = NegativeAckTracker(FixedRedeliveryBackoff(1_000))
    for entry in range(10):
        tracker.add(_at(9 - entry), 0, 33.0 + entry)
    due_ms = tracker.next_due_ms()
    assert due_ms is not None
    assert tracker.take_due(due_ms) == [_at(entry) for entry in range(10)]


def test_a_batch_waits_from_its_first_rejection_on() -> None:
    tracker = NegativeAckTracker(FixedRedeliveryBackoff(99))
    tracker.add(_at(0), 0, 0.0)
    tracker.add(_at(0), 0, 90.0)
    assert len(tracker) == 1
    assert tracker.take_due(99.0) == [_at(0)]
    assert tracker.next_due_ms() is None


def test_a_multiplier_grows_with_the_redelivery_count_up_to_its_maximum() -> None:
    backoff = MultiplierRedeliveryBackoff(100, 1_000, 2.0)
    assert [backoff.next_delay_ms(count) for count in range(6)] == [100, 200, 400, 800, 1_000, 1_000]
    assert backoff.next_delay_ms(10**9) == 1_000


@pytest.mark.parametrize(
    ("arguments", "named"),
    [((-1, 10, 2.0), "min_delay_ms"), ((20, 10, 2.0), "over max_delay_ms"), ((1, 10, 0.5), "multiplier")],
)
def test_a_multiplier_that_makes_no_sense_is_refused(arguments: tuple[int, int, float], named: str) -> None:
    with pytest.raises(InvalidConfiguration, match=named):
        MultiplierRedeliveryBackoff(*arguments)


def test_past_its_limit_the_tracker_lets_the_first_go_early_instead_of_growing() -> None:
    tracker = NegativeAckTracker(FixedRedeliveryBackoff(10_000), entries_max=2)
    assert tracker.add(_at(0), 0, 0.0) == []
    assert tracker.add(_at(1), 0, 1_000.0) == []
    assert tracker.add(_at(2), 0, 2_000.0) == [_at(0)]
    assert len(tracker) == 2


def test_a_message_times_out_after_the_timeout_and_a_tick_at_most() -> None:
    tracker = UnackedTracker(1_000, 100)
    tracker.add(_at(0), -1, 0, 50.0)
    assert tracker.take_due(1_049) == []
    assert tracker.take_due(1_100) == [MessageKey(_at(0), -1)]
    assert tracker.take_due(10_000) == []


def test_a_redelivered_message_gets_more_time_with_a_back_off() -> None:
    tracker = UnackedTracker(100, 10, MultiplierRedeliveryBackoff(100, 1_000, 3.0))
    tracker.add(_at(0), -1, 0, 0.0)
    tracker.add(_at(1), -1, 1, 0.0)
    assert tracker.take_due(100) == [MessageKey(_at(0), -1)]
    assert tracker.take_due(299) == []
    assert tracker.take_due(300) == [MessageKey(_at(1), -1)]


def test_a_stalled_event_loop_does_not_make_fresh_messages_time_out() -> None:
    tracker = UnackedTracker(100, 10)
    tracker.add(_at(0), -1, 0, 0.0)
    tracker.add(_at(1), -1, 0, 5_000.0)  # received before the overdue turns were made
    assert tracker.take_due(5_000.0) == [MessageKey(_at(0), -1)]
    assert len(tracker) == 1


def test_a_cumulative_acknowledgement_stops_at_its_index_in_the_batch() -> None:
    tracker = UnackedTracker(100, 10)
    for entry in range(2):
        for index in range(3):
            tracker.add(_at(entry), index, 0, 0.0)
    tracker.remove_through(_at(1), 1)
    assert tracker.take_due(1_000) == [MessageKey(_at(1), 2)]
