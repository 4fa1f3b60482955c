"""Lines of a log that others cause are limited for each source, and what is left out is counted and said."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from asynchronous import asynchronous

from replicator.running.limited_log import (
    LINES_MAX,
    OTHERS,
    SOURCES_MAX,
    WINDOW_SECONDS,
    LimitedLog,
    LineLimits,
    SuppressedLines,
)


def test_a_source_writes_some_lines_and_the_others_are_counted() -> None:
    limits = LineLimits()
    written = [limits.take("bad", "10.0.0.1", now=0.0) for _ in range(LINES_MAX + 5)]
    assert written == [True] * LINES_MAX + [False] * 5
    assert limits.end(WINDOW_SECONDS - 0.1) == []
    assert limits.end(WINDOW_SECONDS) == [SuppressedLines("bad", "10.0.0.1", 5)]
    assert limits.take("bad", "10.0.0.1", now=WINDOW_SECONDS)


def test_a_flood_of_one_source_or_event_leaves_others_their_lines() -> None:
    limits = LineLimits()
    for _ in range(1_000):
        limits.take("bad", "10.0.0.1", now=0.0)
    assert limits.take("bad", "10.0.0.2", now=0.0)
    assert limits.take("other", "10.0.0.1", now=0.0)


def test_who_has_many_addresses_writes_no_more_than_the_sources_that_are_remembered() -> None:
    limits = LineLimits()
    written = sum(limits.take("bad", str(number), now=0.0) for number in range(20 * SOURCES_MAX))
    assert written == SOURCES_MAX + LINES_MAX
    assert limits.end(WINDOW_SECONDS) == [SuppressedLines("bad", OTHERS, 19 * SOURCES_MAX - LINES_MAX)]
    assert limits.next_end is None


@asynchronous
async def test_what_was_left_out_is_said_without_a_further_line() -> None:
    loop, written = asyncio.get_running_loop(), list[tuple[str, Any]]()
    clock_ahead = 0.0
    log = LimitedLog(lambda: loop.time() + clock_ahead)
    with structlog.testing.capture_logs() as captured:
        for number in range(LINES_MAX + 3):
            log.say(
                lambda event, **fields: written.append((event, fields)), "bad", "10.0.0.1", number=number, source="x"
            )
        assert [fields["number"] for _, fields in written] == list(range(LINES_MAX))
        clock_ahead = WINDOW_SECONDS
        log._end(loop)  # what the timer calls
    assert [each for each in captured if each["event"] == "log lines left out"] == [
        {"event": "log lines left out", "of": "bad", "source": "10.0.0.1", "lines": 3, "log_level": "warning"}
    ]
