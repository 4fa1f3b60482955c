"""Limits of time: TimeoutError at the limit, in a task that was cancelled before too; other cancellations pass."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from replicator.running.timeouts import timeout, timeout_at


def run(work: Coroutine[Any, Any, object]) -> None:
    asyncio.run(work)


def test_a_body_that_takes_too_long_is_a_timeout_and_a_quick_one_is_none() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with timeout(0.01) as limit:
                await asyncio.Event().wait()
        assert limit.expired()
        async with timeout(60) as limit:
            await asyncio.sleep(0)
        assert not limit.expired()
        async with timeout(None):
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with timeout_at(asyncio.get_running_loop().time()):
                await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0

    run(main())


def test_in_a_task_that_was_cancelled_it_is_a_timeout_as_well() -> None:
    """A task that tidies up kills what does not end in time. With asyncio's own limit it did not on Python 3.11.2."""
    killed = False

    async def tidy_up_late() -> None:
        nonlocal killed
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            try:
                async with timeout(0.01):
                    await asyncio.Event().wait()
            except TimeoutError:
                killed = True
            raise

    async def main() -> None:
        task = asyncio.create_task(tidy_up_late())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(main())
    assert killed


def test_a_cancellation_from_outside_is_passed_on_also_at_the_limit() -> None:
    async def main() -> None:
        expired = asyncio.Event()

        async def limited() -> None:
            async with timeout(0.01):
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    expired.set()
                    await asyncio.Event().wait()

        task = asyncio.create_task(limited())
        await expired.wait()
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()

    run(main())


def test_a_limit_that_is_lifted_is_none() -> None:
    async def main() -> None:
        async with timeout(0.01) as limit:
            limit.lift()
            await asyncio.sleep(0.03)  # longer than the limit was
        assert not limit.expired()

    run(main())


def test_an_error_of_the_body_is_its_own() -> None:
    async def main() -> None:
        with pytest.raises(KeyError):
            async with timeout(60):
                raise KeyError

    run(main())
