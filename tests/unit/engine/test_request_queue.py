"""The queue between the event loop and the writer's thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from replicator.engine.errors import StoreFailed
from replicator.engine.log.commit import request_queue
from replicator.engine.log.commit.request_queue import (
    PASSES_MAX,
    SLOW_COMMIT_SECONDS,
    WAITING_BYTES_MAX,
    WAITING_REQUESTS_MIN,
    CommitDelay,
    RequestQueue,
    ThreadQueue,
)
from replicator.engine.log.requests import CopiedBlock, CopyRequest, PublishRequest, PutManyRequest, Request
from snapshots.position import BEFORE_ALL


def publish(size_bytes: int = 1) -> PublishRequest:
    return PublishRequest(asyncio.get_running_loop().create_future(), size_bytes)


def copy(blocks: int) -> CopyRequest:
    copied = [CopiedBlock(BEFORE_ALL, b"")] * blocks
    return CopyRequest(asyncio.get_running_loop().create_future(), blocks=copied)


def rows() -> PutManyRequest:
    return PutManyRequest(asyncio.get_running_loop().create_future())


def taking_all(requests: RequestQueue) -> list[list[Request]]:
    """Return the groups that a thread takes from a queue that was closed."""
    groups: list[list[Request]] = []
    last = False
    while not last:
        group, last = requests.take_group()
        groups += [group] if group else []
    return groups


def with_queue(act: Callable[[RequestQueue], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        await act(RequestQueue(lambda: None))

    asyncio.run(main())


def test_requests_of_one_turn_of_the_event_loop_wake_the_thread_once_and_are_one_group() -> None:
    async def act(requests: RequestQueue) -> None:
        taken = asyncio.create_task(asyncio.to_thread(requests.take_group))
        await asyncio.sleep(0)
        put = [publish() for _ in range(500)]
        for each in put:
            requests.put(each)
        assert len(requests) == 0, "none is handed over before the turn ends"
        assert await taken == (put, False)

    with_queue(act)


def test_a_turn_that_brings_much_hands_over_a_part_at_once() -> None:
    async def act(requests: RequestQueue) -> None:
        for _ in range(3):
            requests.put(publish(request_queue.TURN_BYTES_MAX // 2))
        assert len(requests) == 2
        await asyncio.sleep(0)
        assert len(requests) == 3

    with_queue(act)


def test_what_was_put_right_before_the_end_is_taken() -> None:
    async def act(requests: RequestQueue) -> None:
        put = [publish(), rows()]
        for each in put:
            requests.put(each)
        requests.close()
        assert taking_all(requests) == [put]

    with_queue(act)


def test_a_group_ends_at_its_limit_and_the_next_one_has_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_queue, "GROUP_REQUESTS_MAX", 4)

    async def act(requests: RequestQueue) -> None:
        put: list[Request] = [publish() for _ in range(10)]
        for each in put:
            requests.put(each)
        requests.close()
        assert taking_all(requests) == [put[:4], put[4:8], put[8:]]

    with_queue(act)


def test_a_group_has_so_many_blocks_of_links_and_not_many_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number has a limit because the event loop looks at each block of a group after its commit."""
    monkeypatch.setattr(request_queue, "GROUP_BLOCKS_MAX", 5)

    async def act(requests: RequestQueue) -> None:
        put: list[Request] = [copy(3) for _ in range(3)] + [publish()]
        for each in put:
            requests.put(each)
        requests.close()
        assert taking_all(requests) == [put[:2], put[2:]]

    with_queue(act)


def test_a_group_of_rows_waits_a_moment_for_the_appends_that_they_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_queue, "ROWS_WAIT_SECONDS", 30.0)

    async def act(requests: RequestQueue) -> None:
        taken = asyncio.create_task(asyncio.to_thread(requests.take_group))
        first, second, third = rows(), rows(), publish()
        for each in (first, second, third):
            requests.put(each)
            await asyncio.sleep(0.01)
        assert await taken == ([first, second, third], False)

    with_queue(act)


def test_a_group_of_many_small_requests_has_what_comes_while_it_waits_a_moment() -> None:
    async def main() -> None:
        later: list[list[Request]] = [[publish() for _ in range(9)], [rows()]]

        def sleep(seconds: float) -> None:
            assert seconds == request_queue.MORE_WAIT_SECONDS
            for each in later.pop(0):
                requests.put(each)
            requests._hand_over()

        requests = RequestQueue(lambda: None, sleep)
        requests._taken_at = time.monotonic() + 60  # no slow commit came before
        first, second = [publish() for _ in range(WAITING_REQUESTS_MIN)], later[0]
        for each in first:
            requests.put(each)
        await asyncio.sleep(0)
        assert requests.take_group() == ([*first, *second], False), "it waits once"

    asyncio.run(main())


@pytest.mark.parametrize(
    "requests_and_bytes", [(WAITING_REQUESTS_MIN - 1, 1), (WAITING_REQUESTS_MIN, WAITING_BYTES_MAX)]
)
def test_a_message_that_is_sent_alone_or_is_large_waits_for_no_others(requests_and_bytes: tuple[int, int]) -> None:
    count, size_bytes = requests_and_bytes

    def sleep(seconds: float) -> None:
        raise AssertionError("it waits")

    async def main() -> None:
        requests = RequestQueue(lambda: None, sleep)
        requests._taken_at = time.monotonic() + 60
        put = [publish(size_bytes) for _ in range(count)]
        for each in put:
            requests.put(each)
        await asyncio.sleep(0)
        assert requests.take_group() == (put, False)

    asyncio.run(main())


@given(st.lists(st.tuples(st.integers(1, 200), st.integers(0, 300)), max_size=300))
def test_groups_wait_for_more_only_while_that_pays(groups: list[tuple[int, int]]) -> None:
    """Each group has a number of requests, and a number that would come while it waits."""
    patience = CommitDelay()
    assert not patience.waits(100, 100, commit_seconds=SLOW_COMMIT_SECONDS * 2)
    useless = passed = 0
    for requests, more in groups:
        large = requests >= WAITING_REQUESTS_MIN
        waits = patience.waits(requests, requests, SLOW_COMMIT_SECONDS)
        assert large or not waits
        if waits:
            assert useless == 0 or passed == min(2 ** (useless - 1), PASSES_MAX), "it waits again when it is time"
            patience.waited(requests, requests + more)
            useless, passed = (0 if 2 * more >= requests else useless + 1), 0
        elif large:
            assert useless > 0, "while waits pay, every large group waits"
            passed += 1


def test_a_group_of_rows_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    async def act(requests: RequestQueue) -> None:
        put = rows()
        requests.put(put)
        async with asyncio.timeout(10):
            assert await asyncio.to_thread(requests.take_group) == ([put], False)

    with_queue(act)


def test_a_short_wait_ends_however_often_the_thread_is_interrupted_meanwhile() -> None:
    """`queue.SimpleQueue` fails this before Python 3.13, on most machines within a second."""
    handover = ThreadQueue[int]()
    waits = 0

    def run() -> None:
        nonlocal waits
        for number in range(30_000):
            handover.put(number)
            assert handover.take() == number
            assert not handover.wait(1e-6)
            waits += 1

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60)
    assert waits == 30_000


def test_all_that_one_thread_hands_over_is_taken_by_the_other_in_order() -> None:
    handover = ThreadQueue[int]()
    taken: list[int] = []

    def run() -> None:
        while len(taken) < 20_000:
            if handover.wait(0.0001 if len(taken) % 2 else None):
                taken.append(handover.take())

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    for number in range(20_000):
        handover.put(number)
        if number % 100 == 0:
            time.sleep(0)  # lets the other thread empty it, and wait
    thread.join(60)
    assert taken == list(range(20_000))


def test_who_waited_for_room_is_refused_where_the_store_failed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_queue, "QUEUE_BYTES_MAX", 10)

    async def main() -> None:
        failed: list[str] = []

        def check() -> None:
            if failed:
                raise StoreFailed(failed[0])

        requests = RequestQueue(check)
        requests.put(publish(11))
        assert requests.full
        waiting = asyncio.create_task(requests.enter(publish()))
        await asyncio.sleep(0)
        failed.append("the disk is broken")
        requests.done(11)
        with pytest.raises(StoreFailed, match="the disk is broken"):
            await waiting
        assert not requests.full

    asyncio.run(main())


@given(st.lists(st.tuples(st.integers(0, 40), st.booleans()), max_size=60), st.integers(1, 100))
@settings(deadline=None, max_examples=30)
def test_requests_are_taken_in_their_order_whatever_waits_for_room(
    steps: list[tuple[int, bool]], bytes_max: int
) -> None:
    """Each step puts a request of some bytes, and may end the turn of the event loop."""

    async def main() -> None:
        requests = RequestQueue(lambda: None)
        loop = asyncio.get_running_loop()
        taken: list[Request] = []

        def take() -> None:
            last = False
            while not last:
                group, last = requests.take_group()
                taken.extend(group)
                loop.call_soon_threadsafe(requests.done, sum(each.bytes for each in group))

        thread = threading.Thread(target=take)
        thread.start()
        put: list[Request] = []
        waiting: list[asyncio.Task[None]] = []
        for size_bytes, ends_turn in steps:
            request = publish(size_bytes)
            put.append(request)
            if requests.full:
                waiting.append(asyncio.create_task(requests.enter(request)))
                await asyncio.sleep(0)
            else:
                requests.put(request)
            if ends_turn:
                await asyncio.sleep(0)
        await asyncio.gather(*waiting)
        requests.close()
        await asyncio.to_thread(thread.join)
        assert taken == put
        await asyncio.sleep(0)
        assert requests.size_bytes == 0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request_queue, "QUEUE_BYTES_MAX", bytes_max)
        patch.setattr(request_queue, "TURN_BYTES_MAX", bytes_max // 2 + 1)
        asyncio.run(main())
