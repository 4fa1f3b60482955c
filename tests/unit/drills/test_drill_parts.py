"""The end of a drill's task that nobody asked for fails the drill, and says which it was."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from replicator.drills.errors import DrillError
from replicator.drills.scenarios.parts import Parts


async def for_ever() -> None:
    await asyncio.Event().wait()


async def fails() -> None:
    raise OSError("no route")


async def cancels_itself() -> None:
    """Raise a cancellation, as asyncio.timeout did on Python 3.11.2."""
    raise asyncio.CancelledError


async def under_way(start: Callable[[Parts], None]) -> None:
    """Run a drill whose steps never end."""
    async with Parts() as parts:
        start(parts)
        await for_ever()


def errors_of(start: Callable[[Parts], None]) -> list[str]:
    with pytest.raises(ExceptionGroup) as failed:
        asyncio.run(under_way(start))
    return [f"{type(error).__name__}: {error}" for error in failed.value.exceptions]


def test_a_part_that_is_cancelled_from_outside_fails_the_drill() -> None:
    def start(parts: Parts) -> None:
        parts.start("a watcher", for_ever())
        cancelled = parts.start("a subscriber", for_ever())
        asyncio.get_running_loop().call_soon(cancelled.cancel)

    assert errors_of(start) == [
        f"{DrillError.__name__}: a part of the drill was cancelled, which nobody asked for: a subscriber; "
        "this is a bug of the drill"
    ]


def test_a_part_whose_own_code_ends_in_a_cancellation_fails_the_drill() -> None:
    def start(parts: Parts) -> None:
        parts.start("the publisher", cancels_itself())

    assert errors_of(start) == [
        f"{DrillError.__name__}: a part of the drill was cancelled, which nobody asked for: the publisher; "
        "this is a bug of the drill"
    ]


def test_of_a_part_that_fails_only_its_own_error_is_raised() -> None:
    def start(parts: Parts) -> None:
        parts.start("a watcher", for_ever())
        parts.start("a subscriber", fails())

    assert errors_of(start) == ["OSError: no route"]


def test_parts_are_ended_by_whoever_started_them() -> None:
    async def drill() -> bool:
        async with Parts() as parts:
            part = parts.start("a watcher", for_ever())
            await asyncio.sleep(0)
            parts.end(part)
        return part.cancelled()

    assert asyncio.run(drill())


def test_a_drill_that_is_stopped_is_cancelled_and_no_error() -> None:
    def start(parts: Parts) -> None:
        parts.start("a watcher", for_ever())

    async def stopped() -> bool:
        task = asyncio.create_task(under_way(start))
        for _ in range(3):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(stopped())
