"""Coroutines whose time is counted, and long work that pauses until it is its client's turn again."""

from __future__ import annotations

import asyncio
import gc
import warnings
from collections.abc import Callable

import pytest

from replicator.running.pacing import CLIENT, LINK_SLICE_SECONDS, LinkPace, MeteredCoroutine, Pace, metered
from replicator.running.short_tasks import awaited
from replicator.running.turns import SLICE_SECONDS, TURN_SECONDS, FairScheduler, LoopShare


class Clock:
    """Seconds that go on by what a test works."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> None:
        self.now += seconds


def turns_of_loop(clock: Callable[[], float]) -> FairScheduler:
    return FairScheduler(clock, asyncio.get_running_loop().call_soon)


def test_the_steps_of_a_coroutine_are_counted_and_its_waiting_is_not() -> None:
    async def check() -> None:
        clock = Clock()
        turns, share = turns_of_loop(clock), LoopShare("10.0.0.1:1")
        given: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def work() -> int:
            clock.work(0.25)
            value = await given
            clock.work(0.5)
            return value

        task = awaited(MeteredCoroutine(work(), turns, share))
        await asyncio.sleep(0)
        clock.work(100)
        given.set_result(7)
        assert await task == 7
        turns.opened(share)
        assert turns.busiest(1) == [(share, 0.5)]  # what was before the hundred seconds is out of the last minute
        assert await MeteredCoroutine(work(), turns, share) == 7

    asyncio.run(check())


def test_a_metered_coroutine_ends_as_it_would_without() -> None:
    async def check() -> None:
        turns, share = turns_of_loop(Clock()), LoopShare("10.0.0.1:1")

        async def fails() -> None:
            await asyncio.sleep(0)
            raise ValueError("so not")

        async def tidies() -> str:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                await asyncio.sleep(0)
                return "tidied"
            return "slept"

        async def outer() -> str:
            return await MeteredCoroutine(tidies(), turns, share)

        with pytest.raises(ValueError, match="so not"):
            await awaited(MeteredCoroutine(fails(), turns, share))
        with pytest.raises(ValueError, match="so not"):
            await MeteredCoroutine(fails(), turns, share)
        for started in (awaited(MeteredCoroutine(tidies(), turns, share)), awaited(outer())):
            await asyncio.sleep(0)
            started.cancel()
            assert await started == "tidied"

    asyncio.run(check())


def test_a_metered_coroutine_that_is_cancelled_before_it_begins_leaves_nothing_unawaited() -> None:
    async def check() -> None:
        async def never() -> None:
            raise AssertionError("it runs")

        task = awaited(MeteredCoroutine(never(), turns_of_loop(Clock()), LoopShare("")))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        asyncio.run(check())
        gc.collect()


def test_long_work_lets_others_have_a_turn_after_each_slice() -> None:
    """Ten long works that run at once together use only a client's share of each turn."""
    asyncio.run(_ten_at_once())


async def _ten_at_once() -> None:
    clock = Clock()
    turns = turns_of_loop(clock)
    loop = asyncio.get_running_loop()
    per_turn: list[float] = []
    going = True

    def turn(before: float) -> None:
        per_turn.append(clock.now - before)
        if going:
            loop.call_soon(turn, clock.now)

    async def long(share: LoopShare) -> None:
        pace = Pace(turns, share)
        for _ in range(200):
            clock.work(SLICE_SECONDS / 10)
            await pace.step()

    shares = [LoopShare(f"10.0.0.1:{number}") for number in range(10)]
    tasks = [awaited(MeteredCoroutine(long(share), turns, share)) for share in shares]
    loop.call_soon(turn, clock.now)
    await asyncio.gather(*tasks)
    going = False
    assert sum(per_turn[1:]) > 0.1
    assert max(per_turn[2:]) <= TURN_SECONDS + 2 * SLICE_SECONDS


def test_work_is_of_the_client_whose_request_is_served() -> None:
    async def check() -> None:
        clock = Clock()
        turns, share = turns_of_loop(clock), LoopShare("10.0.0.1:1")
        turns.opened(share)

        async def work() -> None:
            clock.work(0.125)

        CLIENT.set(share)
        await metered(work(), turns)
        assert turns.busiest(3) == [(share, 0.125)]

    asyncio.run(check())


def test_invariant_8_links_get_a_slice_in_each_turn_and_share_it_beside_clients_that_never_rest() -> None:
    """A link would otherwise wait for one slice until each of a thousand busy clients had one."""

    async def check() -> None:
        clock, loop = Clock(), asyncio.get_running_loop()
        turns = turns_of_loop(clock)
        looks, slices = 0, dict[int, list[str]]()

        def count_turns() -> None:
            nonlocal looks
            looks += 1
            loop.call_soon(count_turns)

        def busy(share: LoopShare) -> Callable[[], bool]:
            def work() -> bool:
                clock.work(SLICE_SECONDS)
                turns.spend(share, SLICE_SECONDS, clock.now)
                return True

            return work

        async def link(name: str) -> None:
            pace = LinkPace(turns)
            for _ in range(10):
                clock.work(LINK_SLICE_SECONDS)
                await pace.step()
                slices.setdefault(looks, []).append(name)

        for number in range(1_000):
            share = LoopShare(str(number))
            turns.wait(share, busy(share))
        loop.call_soon(count_turns)
        await asyncio.gather(link("one"), link("other"))
        assert looks <= 50, "turns for twenty slices"
        assert all(len(names) == 1 for names in slices.values()), "one slice of all links in a turn"

    asyncio.run(check())
