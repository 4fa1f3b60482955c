"""Coroutines that run until the first ends: also where the interpreter's task groups leave something behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from asynchronous import asynchronous

from replicator.running.together import until_all_end, until_first_ends

Together = Callable[..., Awaitable[Any]]


class Part:
    """Waits for ever, and notes that it was ended."""

    def __init__(self) -> None:
        self.ended = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.ended = True


async def fail(text: str = "first") -> None:
    await asyncio.sleep(0)
    raise RuntimeError(text)


async def give_back() -> None:
    await asyncio.sleep(0)


@pytest.mark.parametrize("together", [until_first_ends, until_all_end])
@asynchronous
async def test_the_first_error_is_raised_itself_when_the_others_have_ended(together: Together) -> None:
    part = Part()
    with pytest.raises(RuntimeError, match="first"):
        await together(part.run(), fail())
    assert part.ended


@pytest.mark.parametrize("together", [until_first_ends, until_all_end])
@asynchronous
async def test_a_timeout_after_an_error_still_is_a_timeout(together: Together) -> None:
    """On Python 3.11.2 the timeout was a cancellation after a task group had failed."""
    task = asyncio.current_task()
    assert task is not None
    for _ in range(3):
        with pytest.raises(RuntimeError):
            await together(Part().run(), fail())
        assert task.cancelling() == 0
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()


@asynchronous
async def test_when_one_returns_the_others_are_ended() -> None:
    part = Part()
    await until_first_ends(part.run(), give_back())
    assert part.ended


@asynchronous
async def test_all_are_waited_for_when_none_fails() -> None:
    done: list[int] = []

    async def work(number: int) -> None:
        for _ in range(number):
            await asyncio.sleep(0)
        done.append(number)

    await until_all_end(work(3), work(1), work(2))
    assert sorted(done) == [1, 2, 3]


@pytest.mark.parametrize("together", [until_first_ends, until_all_end])
@asynchronous
async def test_a_cancellation_that_comes_while_a_part_fails_is_not_lost(together: Together) -> None:
    part = Part()

    async def run() -> None:
        await together(part.run(), fail())

    running = asyncio.get_running_loop().create_task(run())
    while not part.ended and not running.done():
        running.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await running


@pytest.mark.parametrize("together", [until_first_ends, until_all_end])
@asynchronous
async def test_a_part_that_is_cancelled_from_outside_ends_all(together: Together) -> None:
    part, inner = Part(), asyncio.Event()
    tasks: list[asyncio.Task[object] | None] = []

    async def other() -> None:
        tasks.append(asyncio.current_task())
        inner.set()
        await asyncio.Event().wait()

    running = asyncio.ensure_future(together(part.run(), other()))
    await inner.wait()
    assert tasks[0] is not None
    tasks[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(running, 10)
    assert part.ended
