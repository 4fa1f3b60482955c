"""Views are computed once for all who look, and only while somebody does."""

from __future__ import annotations

import asyncio

import pytest
from asynchronous import asynchronous

from replicator.dashboard.feeds import VIEWS_MAX, Feeds


class Counted:
    """Computes slowly, and counts."""

    def __init__(self) -> None:
        self.computed: list[str] = []
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def __call__(self, key: str) -> int:
        self.computed.append(key)
        await self.may_end.wait()
        if key == "wrong":
            raise ValueError(key)
        return len(self.computed)


@asynchronous
async def test_all_who_ask_at_once_get_one_result() -> None:
    counted = Counted()
    counted.may_end.clear()
    feeds = Feeds(counted, period_seconds=lambda _: 60)
    fan_out = [asyncio.ensure_future(feeds.current("map")) for _ in range(20)]
    await asyncio.sleep(0)
    fan_out[0].cancel()  # who computes it for all does not take it away from them
    counted.may_end.set()
    results = await asyncio.gather(*fan_out, return_exceptions=True)
    assert results[1:] == [1] * 19
    assert await feeds.current("map") == 1
    assert counted.computed == ["map"]


@asynchronous
async def test_nothing_is_computed_when_nobody_follows_any_more() -> None:
    counted = Counted()
    feeds = Feeds(counted, period_seconds=lambda _: 0.001)
    following = feeds.follow("map")
    while len(counted.computed) < 3:  # on a busy machine one is shown twice, as it was computed late
        await anext(following)
    await following.aclose()
    seen = len(counted.computed)
    await asyncio.sleep(0.05)
    assert len(counted.computed) == seen


@asynchronous
async def test_a_failure_is_told_and_computed_again() -> None:
    counted = Counted()
    feeds = Feeds(counted, period_seconds=lambda _: 60)
    for _ in range(2):
        with pytest.raises(ValueError, match="wrong"):
            await feeds.current("wrong")
    assert counted.computed == ["wrong", "wrong"]


@asynchronous
async def test_a_change_is_seen_by_the_next_who_asks() -> None:
    counted = Counted()
    feeds = Feeds(counted, period_seconds=lambda _: 60)
    await feeds.current("map")
    feeds.forget()
    assert await feeds.current("map") == 2


@asynchronous
async def test_views_that_are_kept_have_a_limit() -> None:
    counted = Counted()
    feeds = Feeds(counted, period_seconds=lambda _: 60)
    for number in range(VIEWS_MAX + 10):
        await feeds.current(f"topics?search={number}")
    assert len(feeds._views) == VIEWS_MAX


@asynchronous
async def test_views_are_looked_at_as_often_as_each_of_them_is_to_be() -> None:
    counted = Counted()
    feeds = Feeds(counted, period_seconds=lambda key: 60 if key == "topics" else 0)
    for _ in range(2):
        await feeds.current("topics")
        await feeds.current("map")
    assert counted.computed == ["topics", "map", "map"]
