"""Counters add up, and quantiles are close to what was counted."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.client.producing.producer_stats import LatencyHistogram, ProducerStatsRecorder, interval_line


@given(st.lists(st.floats(1e-6, 3_000), min_size=1, max_size=200), st.floats(0.01, 1.0))
def test_a_quantile_is_at_most_an_eighth_of_an_octave_above_the_true_one(seconds: list[float], share: float) -> None:
    histogram = LatencyHistogram()
    for one in seconds:
        histogram.add(one)
    ordered = sorted(seconds)
    true = ordered[math.ceil(share * len(ordered)) - 1]
    assert true * 0.999 <= histogram.quantile_seconds(share) <= true * 2 ** (1 / 8) * 1.001


def test_durations_outside_of_the_range_are_counted_at_its_ends() -> None:
    histogram = LatencyHistogram()
    assert histogram.quantile_seconds(0.5) == 0.0
    histogram.add(0.0)
    assert histogram.quantile_seconds(1.0) == 0.0
    histogram.add(1e9)
    assert histogram.seconds_max == 1e9
    assert histogram.quantile_seconds(1.0) > 3_600


def test_counters_of_several_producers_add_up() -> None:
    first, second = ProducerStatsRecorder(), ProducerStatsRecorder()
    first.sent(3, 100)
    first.confirmed(3, 0.010, duplicate=0)
    second.sent(2, 50)
    second.confirmed(1, 0.020, duplicate=1)
    second.messages_failed += 1
    first.merge(second)
    stats = first.stats(messages_pending=7)
    assert (stats.entries_sent, stats.messages_sent, stats.bytes_sent) == (2, 5, 150)
    assert (stats.messages_confirmed, stats.messages_duplicate, stats.messages_failed) == (4, 1, 1)
    assert stats.messages_pending == 7
    assert stats.latency_ms_p50 == pytest.approx(10, rel=0.1)
    assert stats.latency_ms_max == 20


def test_the_interval_line_tells_what_happened_since_the_last_one() -> None:
    recorder = ProducerStatsRecorder()
    recorder.sent(10, 1_000_000)
    before = recorder.stats(0)
    recorder.sent(30, 3_000_000)
    recorder.confirmed(20, 0.001, duplicate=0)
    line = interval_line(before, recorder.stats(4), 2.0)
    assert line.startswith("15.0 msg/s, 1.500 MB/s, 20 confirmed, 0 failed, 4 pending;")
