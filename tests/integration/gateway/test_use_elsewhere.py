"""Asking other clusters for consumers of a subscription: over real HTTP, of clusters that answer as they like."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from asynchronous import asynchronous
from engine_support import opened

from replicator.api.errors import report_errors
from replicator.api.subscription_use import add_subscription_use
from replicator.engine.errors import SubscriptionBusy
from replicator.sync.use_elsewhere import QUESTIONS_AT_ONCE_MAX, ROUTE, TOPICS_MAX, RemoteUse, UseAnswer, UseQuestion

TOPIC = "persistent://public/default/orders"
LONG_MS = 20_000
"""No test waits so long."""
SHORT_MS = 300

Answers = Callable[[UseQuestion], Awaitable[web.Response]]


@asynccontextmanager
async def served(app: web.Application) -> AsyncIterator[str]:
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        assert site._server is not None
        yield f"127.0.0.1:{site._server.sockets[0].getsockname()[1]}"  # type: ignore[attr-defined]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def asking(path: Path, timeout_ms: int = LONG_MS, **clusters: Answers | None) -> AsyncIterator[RemoteUse]:
    """Yield the object that asks these clusters; one that is None has no such route, as a worker of the release
    before."""
    async with AsyncExitStack() as stack:
        engine = await stack.enter_async_context(opened(path))
        await engine.topic(TOPIC)
        addresses = {}
        for name, answers in clusters.items():
            app = web.Application(middlewares=[report_errors])
            if answers is not None:

                async def answer(request: web.Request, answers: Answers = answers) -> web.Response:
                    return await answers(UseQuestion.from_json(await request.json()))

                app.router.add_post(ROUTE, answer)
            addresses[name] = await stack.enter_async_context(served(app))
        elsewhere = RemoteUse(engine, lambda topic: frozenset(clusters))
        elsewhere.change(addresses, timeout_ms)
        stack.push_async_callback(elsewhere.stop)
        yield elsewhere


async def unused(question: UseQuestion) -> web.Response:
    return web.json_response(UseAnswer("unused", {}).to_json())


async def using(question: UseQuestion) -> web.Response:
    return web.json_response(UseAnswer("using", {question.topics[0]: 2}).to_json())


async def silent(question: UseQuestion) -> web.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def broken(question: UseQuestion) -> web.Response:
    return web.json_response({"cluster": "broken", "consumers": {TOPIC: "many"}})


async def failing(question: UseQuestion) -> web.Response:
    return web.json_response({"error": "BrokersSilent", "message": "no answer"}, status=503)


@asynchronous
async def test_the_first_cluster_that_uses_it_refuses_and_the_silent_ones_are_not_waited_for(tmp_path: Path) -> None:
    async with asking(tmp_path, silent=silent, using=using) as elsewhere, asyncio.timeout(10):
        with pytest.raises(SubscriptionBusy, match=f"cluster using has 2 consumers of subscription 'sub' of {TOPIC}"):
            await elsewhere.check_unused("sub", [TOPIC])


@asynchronous
async def test_a_worker_without_the_route_and_answers_that_are_none_count_as_no_consumers(tmp_path: Path) -> None:
    async with asking(tmp_path, old=None, broken=broken, failing=failing, unused=unused) as elsewhere:
        async with asyncio.timeout(10):
            await elsewhere.check_unused("sub", [TOPIC])


@asynchronous
async def test_a_silent_cluster_takes_the_limit_of_time_and_no_more_and_with_0_nobody_is_asked(tmp_path: Path) -> None:
    async with asking(tmp_path, SHORT_MS, silent=silent) as elsewhere:
        loop = asyncio.get_running_loop()
        began = loop.time()
        await elsewhere.check_unused("sub", [TOPIC])
        assert loop.time() - began >= SHORT_MS / 1000
    async with asking(tmp_path, 0, using=using) as elsewhere:
        await elsewhere.check_unused("sub", [TOPIC])


@asynchronous
async def test_questions_to_one_cluster_are_bounded_and_equal_ones_are_asked_once(tmp_path: Path) -> None:
    under_way = asked = most = 0
    going = asyncio.Event()

    async def counting(question: UseQuestion) -> web.Response:
        nonlocal under_way, asked, most
        under_way += 1
        asked += 1
        most = max(most, under_way)
        if under_way == QUESTIONS_AT_ONCE_MAX:
            going.set()
        await going.wait()
        under_way -= 1
        return await unused(question)

    different = QUESTIONS_AT_ONCE_MAX * 3
    async with asking(tmp_path, counting=counting) as elsewhere, asyncio.timeout(20):
        names = [f"sub-{number % different}" for number in range(different * 2)]
        await asyncio.gather(*(elsewhere.check_unused(name, [TOPIC]) for name in names))
    assert (asked, most) == (different, QUESTIONS_AT_ONCE_MAX)


@asynchronous
async def test_a_partition_is_asked_for_with_all_others_in_parts_of_bounded_size(tmp_path: Path) -> None:
    partitions = TOPICS_MAX + 10
    asked: list[UseQuestion] = []

    async def noting(question: UseQuestion) -> web.Response:
        asked.append(question)
        return await unused(question)

    async with asking(tmp_path, noting=noting) as elsewhere:
        await elsewhere._engine.partitioned.create(f"{TOPIC}-parted", partitions)
        await elsewhere.check_unused("sub", [f"{TOPIC}-parted-partition-7"])
    assert [len(question.topics) for question in asked] == [TOPICS_MAX, 10]
    assert {topic for question in asked for topic in question.topics} == {
        f"{TOPIC}-parted-partition-{index}" for index in range(partitions)
    }


@pytest.mark.parametrize(
    "body",
    [
        None,
        [],
        {"subscription": "sub"},
        {"subscription": 1, "topics": []},
        {"subscription": "", "topics": []},
        {"subscription": "sub", "topics": [1]},
        {"subscription": "sub", "topics": ["non-persistent://a/b/c"]},
        {"subscription": "sub", "topics": ["t"] * (TOPICS_MAX + 1)},
    ],
)
@asynchronous
async def test_a_body_that_is_no_question_is_refused_by_name(tmp_path: Path, body: object) -> None:
    async with opened(tmp_path) as engine:
        app = web.Application(middlewares=[report_errors])
        add_subscription_use(app, engine, None)
        async with (
            served(app) as address,
            aiohttp.ClientSession() as session,
            session.post(f"http://{address}{ROUTE}", json=body) as answer,
        ):
            assert 400 <= answer.status < 500
            assert (await answer.json())["error"] in ("BadRequest", "InvalidSubscriptionName", "NotPersistent")
