from __future__ import annotations

import pytest

from replicator.pipeline.backfill.progress import (
    BURST_SECONDS,
    Amount,
    Pace,
    Progress,
    format_bytes,
    format_seconds,
    share_of,
)


def test_a_percentage_is_a_hundred_only_when_nothing_is_left() -> None:
    assert Amount(1_000_000, 1).percent == 99
    assert Amount(1_000_000, 0).percent == 100
    assert Amount(0, 0).percent == 100
    assert Amount(10, 20).percent == 0, "the source has trimmed meanwhile"


def test_the_rate_is_of_late_and_says_how_long_the_rest_takes() -> None:
    progress = Progress()
    assert progress.line() == "measuring"
    progress.on_amount(Amount(3_000_000_000, 3_000_000_000, 9, 4, 4), 0)
    assert progress.rate_bytes is None
    progress.on_amount(Amount(3_000_000_000, 2_000_000_000, 6, 4, 3), 10)
    assert progress.rate_bytes == 1e8
    assert progress.line() == "33 %, 1.0 GB of 3.0 GB, 100 MB/s, 20 s left, 3 of 4 topics left"
    for second in range(11, 40):
        progress.on_amount(Amount(3_000_000_000, 2_000_000_000, 6, 4, 3), second)
    assert progress.rate_bytes == 0
    assert progress.seconds_left is None


def test_what_was_there_before_counts_as_done_and_not_as_speed() -> None:
    progress = Progress()
    progress.on_amount(Amount(1000, 400), 100)
    progress.on_amount(Amount(1000, 300), 110)
    assert progress.amount is not None
    assert progress.amount.percent == 70
    assert progress.rate_bytes == 10


def test_a_lane_lets_through_no_more_than_its_share() -> None:
    pace, now, sent = Pace(1_000_000, 0.0), 0.0, 0
    while now < 20:
        now += pace.wait_seconds(now)
        sent += 300_000
        pace.take(300_000, now)
        now += 0.01
    assert sent == pytest.approx(20_000_000, rel=0.05)


def test_time_that_was_lost_is_not_made_up_for_at_once() -> None:
    pace = Pace(1_000_000, 0.0)
    pace.take(1, 1000.0)
    sent = 0
    while pace.wait_seconds(1000.0) == 0:
        pace.take(100_000, 1000.0)
        sent += 100_000
    assert sent <= BURST_SECONDS * 1_000_000 + 100_000


def test_the_shares_of_lanes_that_run_at_once_are_the_rate() -> None:
    assert share_of(100, lanes=8, slots=2) * 2 == 100
    assert share_of(100, lanes=1, slots=2) == 100
    assert share_of(100, lanes=0, slots=2) == 100


def test_sizes_and_times_are_short() -> None:
    assert [format_bytes(size) for size in (0, 999, 1_000, 99_940, 99_960, 2.8e9, 5e15)] == [
        "0 B", "999 B", "1.0 kB", "99.9 kB", "100 kB", "2.8 GB", "5000.0 TB"
    ]  # fmt: skip
    assert [format_seconds(seconds) for seconds in (0.2, 99, 100, 9000)] == ["0 s", "99 s", "2 min", "2.5 h"]
