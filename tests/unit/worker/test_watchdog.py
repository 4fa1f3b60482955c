"""The watchdog: what it measures of the event loop, and what counts as standing still. No thread and no clock."""

from __future__ import annotations

import asyncio
import time

import pytest
from engine_support import eventually

from replicator.topology import WatchdogSettings
from replicator.worker.watchdog import MAX_WINDOW_SECONDS, TICK_SECONDS, LoopLag, StallCounter, Watchdog


def test_a_loop_stands_still_for_as_many_ticks_as_came_without_a_beat() -> None:
    standstill = StallCounter()
    assert [standstill.on_tick(beats) for beats in (1, 1, 1, 2, 2)] == [0, TICK_SECONDS, 2 * TICK_SECONDS, 0, 1]


def test_the_maximum_is_that_of_the_last_one_to_two_minutes() -> None:
    lag = LoopLag()
    lag.on_beat(10.0, 9.0)
    lag.on_beat(11.0, 10.75)
    assert lag.max_seconds(12.0) == 1.0
    assert lag.max_seconds(MAX_WINDOW_SECONDS + 1) == 1.0
    assert lag.max_seconds(2 * MAX_WINDOW_SECONDS + 1) == 0.0
    lag.on_beat(5 * MAX_WINDOW_SECONDS, 5 * MAX_WINDOW_SECONDS - 2)
    assert lag.max_seconds(8 * MAX_WINDOW_SECONDS) == 0.0, "after two quiet windows"
    assert sum(lag.histogram.counts) == 3
    assert lag.histogram.sum_seconds == pytest.approx(3.25)


def test_a_beat_that_comes_early_is_not_late() -> None:
    lag = LoopLag()
    lag.on_beat(1.0, 1.5)
    assert (lag.max_seconds(1.0), lag.histogram.sum_seconds) == (0.0, 0.0)


def test_a_loop_that_was_blocked_is_measured() -> None:
    async def main() -> None:
        watchdog = Watchdog()
        watchdog.start()
        await eventually(lambda: sum(watchdog.lag.histogram.counts) > 0, "the first beat")
        time.sleep(0.4)  # noqa: ASYNC251 - the loop is to stand still
        await eventually(lambda: watchdog.status()["lag_max_seconds"] >= 0.3, "the late beat is measured")
        watchdog.stop()

    asyncio.run(main())


@pytest.mark.parametrize(
    ("said", "started_with", "ends"), [(None, None, None), (None, 60, 60), (0, 60, 0), (90, 60, 90)]
)
def test_what_the_topology_says_of_the_end_wins_over_how_the_worker_was_started(
    said: int | None, started_with: int | None, ends: int | None
) -> None:
    watchdog = Watchdog(end_after=started_with)
    watchdog.use(WatchdogSettings(end_after=7))
    watchdog.use(WatchdogSettings(end_after=said))
    assert watchdog._end_after == ends
