"""Pace of a reclaim's reading, and its pauses."""

from __future__ import annotations

import threading

import pytest
from paced_support import Clock, Waits, paced

from replicator.backup.errors import ReclaimPaused
from replicator.backup.reclaim_reading import Pace
from replicator.links.token_bucket import BURST_SECONDS


def test_no_more_is_read_in_a_second_than_the_limit() -> None:
    pace, clock = paced(1_000)
    for _ in range(10):
        pace.took(500)
    assert pace.read_bytes == 5_000
    assert clock.seconds == pytest.approx(5.0 - BURST_SECONDS)


def test_without_a_limit_nothing_waits() -> None:
    clock = Clock()
    pace = Pace(None, clock.now)
    pace._paused = Waits(clock)
    pace.took(1 << 40)
    assert clock.seconds == 0.0


def test_a_pause_ends_the_reading_also_while_it_waits() -> None:
    pace = Pace(1)
    threading.Timer(0.05, pace.pause).start()
    with pytest.raises(ReclaimPaused, match="goes on from there"):
        pace.took(1_000_000)
    with pytest.raises(ReclaimPaused):
        pace.check()
