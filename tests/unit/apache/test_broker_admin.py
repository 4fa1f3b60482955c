"""Requests to the admin API: credentials, redirects, and rate limits."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path

import pytest
from aiohttp import web
from answering_admin import Answering, answering, asked
from asynchronous import asynchronous
from engine_support import eventually

from replicator.apache import rate_limiter
from replicator.apache.errors import AdminFailed, AdminLimited
from replicator.drills.ports import free_ports


def refusing(times: int, status: int, **headers: str) -> tuple[Answering, list[float]]:
    """Return a handler that refuses so many requests first, and a list that fills with the times of requests."""
    seen: list[float] = []

    async def answer(request: web.Request) -> web.Response:
        seen.append(time.monotonic())
        if len(seen) <= times:
            return web.Response(status=status, headers=headers)
        return web.json_response([request.path])

    return answer, seen


@pytest.mark.parametrize("status", [429, 503])
@asynchronous
async def test_a_request_that_is_told_to_wait_waits_as_long_and_is_made_again(status: int) -> None:
    answer, seen = refusing(1, status, **{"Retry-After": "1"})
    async with answering(answer) as url, asked(url) as admin:
        asking = asyncio.create_task(admin.topics("public/default"))
        await eventually(admin.limited)
        assert "limits requests, so nothing is asked for 1 s" in admin.limited()
        assert f"/admin/v2/persistent/public/default: {status}" in admin.limited()
        assert await asking == []
        assert seen[1] - seen[0] >= 0.99
        assert (admin.limited(), admin.refusals) == ("", 1)


@asynchronous
async def test_pauses_grow_where_nothing_is_said() -> None:
    answer, seen = refusing(3, 429)
    async with answering(answer) as url, asked(url) as admin:
        await admin.topics("public/default")
    first, second, third = (after - before for before, after in pairwise(seen))
    assert first >= 0.24
    assert second >= 0.49
    assert third >= 0.99


@asynchronous
async def test_after_a_pause_requests_go_out_one_at_a_time_and_all_are_answered() -> None:
    answer, seen = refusing(8, 429, **{"Retry-After": "1"})

    async def slowly(request: web.Request) -> web.Response:
        answered = await answer(request)
        await asyncio.sleep(0.1)
        return answered

    async with answering(slowly) as url, asked(url) as admin:
        found = await asyncio.gather(*(admin.partitioned_topics(f"public/n{number}") for number in range(20)))
    assert len({each[0] for each in found}) == 20
    # Eight were under way; nobody asks in the second after, and then one alone.
    assert seen[8] - seen[0] >= 0.99
    assert seen[9] - seen[8] >= 0.1


@asynchronous
async def test_a_request_waits_no_longer_than_a_limit_and_nothing_is_asked_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rate_limiter, "TURN_SECONDS_MAX", 0.3)
    answer, seen = refusing(9, 429, **{"Retry-After": "30"})
    async with answering(answer) as url, asked(url) as admin:
        for _ in range(3):
            with pytest.raises(AdminLimited) as refused:
                await admin.topics("public/default")
            assert refused.value.status == 429
    assert len(seen) == 1


@asynchronous
async def test_a_503_that_says_nothing_is_of_that_request_alone() -> None:
    answer, seen = refusing(1, 503)
    async with answering(answer) as url, asked(url) as admin:
        with pytest.raises(AdminFailed, match="503"):
            await admin.topics("public/default")
        assert admin.limited() == ""  # so the next one does not wait
        assert await admin.topics("public/default") == []
    assert len(seen) == 2


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ('{"reason": "no such topic"}', "409 no such topic"),
        ('{"servlet": "x", "message": "Too Many", "status": "429"}', "409 Too Many"),
        ("<html><h1>x</h1></html>", "409 Conflict"),
        ("", "409 Conflict"),
        ("{}", "409 Conflict"),
        ("[1]", "409 [1]"),
        ("in words", "409 in words"),
    ],
)
@asynchronous
async def test_a_refusal_is_told_in_the_words_of_the_answer(said: str, text: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=409, text=said)

    async with answering(answer) as url, asked(url) as admin:
        with pytest.raises(AdminFailed, match=r"GET .*/admin/v2/persistent/public/default: ") as refused:
            await admin.topics("public/default")
    assert str(refused.value).endswith(f": {text}")


@asynchronous
async def test_a_password_is_read_for_each_request_and_named_when_it_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "password"
    file.write_text("me:wrong\n")

    async def answer(request: web.Request) -> web.Response:
        right = request.headers.get("Authorization") == "Basic bWU6c2VjcsOpdDp4"
        return web.json_response([]) if right else web.Response(status=401)

    async with answering(answer) as url, asked(url, password_file=str(file)) as admin:
        with pytest.raises(AdminFailed, match="401") as refused:
            await admin.topics("public/default")
        assert f"the brokers refuse what the worker shows: apache.auth.password_file, {file}" in str(refused.value)
        file.write_text("me:secrét:x\n")
        assert await admin.topics("public/default") == []
        file.unlink()
        with pytest.raises(AdminFailed, match=f"apache.auth.password_file, {file}: cannot be read"):
            await admin.topics("public/default")


@asynchronous
async def test_a_broker_to_which_another_one_sends_on_is_shown_the_same(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("secret")
    shown: list[str | None] = []

    async def owner(request: web.Request) -> web.Response:
        shown.append(request.headers.get("Authorization"))
        assert await request.read() == b"3"
        return web.Response(status=204)

    async with answering(owner) as owner_url:

        async def first(request: web.Request) -> web.Response:
            return web.Response(status=307, headers={"Location": owner_url + request.path})

        async with answering(first) as url, asked(url, token_file=str(file)) as admin:
            await admin.create_partitioned("persistent://public/default/t", 3)
    assert shown == ["Bearer secret"]


@pytest.mark.parametrize(
    ("to", "text"), [("/again", "redirected 5 times"), ("ftp://127.0.0.1/x", "it has another scheme")]
)
@asynchronous
async def test_nobody_is_followed_for_ever_or_to_another_scheme(to: str, text: str) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": to})

    async with answering(answer) as url, asked(url) as admin:
        with pytest.raises(AdminFailed, match=text):
            await admin.topics("public/default")


@asynchronous
async def test_whichever_of_several_hosts_answers_is_asked() -> None:
    asked_there = 0

    async def answer(request: web.Request) -> web.Response:
        nonlocal asked_there
        asked_there += 1
        return web.json_response([])

    (dead,) = free_ports(1)
    async with answering(answer) as url, asked(f"http://127.0.0.1:{dead},{url.partition('://')[2]}") as admin:
        assert await admin.topics("public/default") == []
        assert await admin.topics("public/default") == []
    assert asked_there == 2


@asynchronous
async def test_a_host_that_takes_a_request_and_does_not_answer_is_left_for_another_one() -> None:
    async def cut(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async def answer(request: web.Request) -> web.Response:
        return web.json_response([])

    async with (
        answering(cut) as broken,
        answering(answer) as whole,
        asked(f"{broken},{whole.partition('://')[2]}") as admin,
    ):
        # What it did is not known: so the request is not made again by itself.
        with pytest.raises(AdminFailed, match=broken):
            await admin.topics("public/default")
        assert await admin.topics("public/default") == []


@asynchronous
async def test_where_no_host_can_be_reached_the_error_names_each() -> None:
    first, second = free_ports(2)
    async with asked(f"http://127.0.0.1:{first},127.0.0.1:{second}") as admin:
        with pytest.raises(AdminFailed, match=f"127.0.0.1:{first}.*127.0.0.1:{second}"):
            await admin.topics("public/default")


@asynchronous
async def test_a_broker_to_which_another_one_sends_on_and_that_is_gone_is_named() -> None:
    (dead,) = free_ports(1)

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=307, headers={"Location": f"http://127.0.0.1:{dead}{request.path}"})

    async with answering(answer) as url, asked(url) as admin:
        with pytest.raises(AdminFailed, match=f"sent on to http://127.0.0.1:{dead}"):
            await admin.topics("public/default")


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("7", 7.0), ("", None), ("soon", None), ("-1", None), ("9" * 5000, 999_999_999.0), ("1e3", None)],
)
def test_what_retry_after_says(said: str, seconds: float | None) -> None:
    assert rate_limiter.retry_after({"Retry-After": said}) == seconds


def test_retry_after_may_be_a_date() -> None:
    ahead = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 30))
    assert 28 <= (rate_limiter.retry_after({"Retry-After": ahead}) or 0) <= 30
    assert rate_limiter.retry_after({"Retry-After": "Thu, 01 Jan 1970 00:00:00 GMT"}) == 0


@asynchronous
async def test_nothing_is_begun_with_a_file_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(AdminFailed, match=f"^apache.auth.password_file, {tmp_path}/none: cannot be read"):
        asked("http://127.0.0.1:1", password_file=str(tmp_path / "none"))
