"""Requests to an admin API that limits them, whatever the order in which they are answered."""

from __future__ import annotations

import asyncio
import time

import pytest
from asynchronous import asynchronous

from replicator.apache.errors import AdminLimited
from replicator.apache.rate_limiter import REQUESTS_AT_ONCE_MAX, RateLimiter

SAID_SECONDS = 1.0


class Request:
    """Sent as often as it is told to wait; the test answers."""

    def __init__(self, turns: RateLimiter) -> None:
        self.sent: list[float] = []
        self._answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._news = asyncio.Event()
        self.task = asyncio.create_task(turns.take(self._send))

    async def _send(self) -> str:
        self.sent.append(time.monotonic())
        self._answer = asyncio.get_running_loop().create_future()
        self._news.set()
        return await self._answer

    async def until_sent(self, times: int) -> None:
        async with asyncio.timeout(20):
            while len(self.sent) < times:
                self._news.clear()
                await self._news.wait()

    def answer(self) -> None:
        self._answer.set_result("answered")

    def refuse(self, said_seconds: float | None = None) -> float:
        self._answer.set_exception(AdminLimited("429", 429, said_seconds))
        return time.monotonic()


@asynchronous
async def test_nothing_goes_out_in_a_pause_that_outlasts_the_limit() -> None:
    turns = RateLimiter()
    first, second = Request(turns), Request(turns)
    await first.until_sent(1)
    await second.until_sent(1)
    first.refuse()
    await first.until_sent(2)
    told = second.refuse(SAID_SECONDS)
    first.answer()  # heard after that
    assert await first.task == "answered"
    third = Request(turns)
    for each, times in ((second, 2), (third, 1)):
        await each.until_sent(times)
        each.answer()
        assert await each.task == "answered"
    assert min(second.sent[1], third.sent[0]) - told >= 0.9 * SAID_SECONDS


@asynchronous
async def test_who_gives_up_leaves_its_place_to_others() -> None:
    turns = RateLimiter()
    under_way = [Request(turns) for _ in range(REQUESTS_AT_ONCE_MAX)]
    for each in under_way:
        await each.until_sent(1)
    waiting = [Request(turns) for _ in range(3)]
    await asyncio.sleep(0)
    for gone in (under_way[0], waiting[0]):
        gone.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone.task
    under_way[1].answer()
    for left in waiting[1:]:
        await left.until_sent(1)
        left.answer()
        assert await left.task == "answered"
    for each in under_way[2:]:
        each.answer()
        assert await each.task == "answered"
