"""The source's end of a link's connection: what it sends, and what it reads."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest
import uvloop
from aiohttp import web
from aiohttp.test_utils import TestServer
from asynchronous import asynchronous
from raw_servers import start_server

from replicator.engine.log.arrow import encode_append
from replicator.engine.log.link_frame import PROTOCOL_VERSION, pack_answer, pack_frame
from replicator.links import transport
from replicator.links.errors import PeerUnavailable
from replicator.links.frame_streams import UpgradedStream
from replicator.links.gaps import Mark
from replicator.links.transport import HttpTransport
from replicator.running import json_by_steps
from snapshots.position import Position


@pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
def test_a_frame_for_a_connection_that_is_closed_fails_as_connections_do(run: object) -> None:
    """A link takes any other error for a fault of its own, and logs a traceback."""

    async def main() -> None:
        async def held(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(OSError):
                await reader.read()
            writer.close()

        server = await asyncio.start_server(held, "127.0.0.1", 0)
        async with server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            stream = UpgradedStream(reader, writer, asyncio.Event())
            stream.close()
            with suppress(OSError):
                await writer.wait_closed()
            with pytest.raises(OSError):
                await stream.send(pack_frame(encode_append(()), "none"))

    run(main())  # type: ignore[operator]


@pytest.mark.parametrize("topics", [1, 1_000])
@asynchronous
async def test_a_large_answer_to_a_frame_is_read_on_a_thread_and_answers_stay_in_order(
    monkeypatch: pytest.MonkeyPatch, topics: int
) -> None:
    """The event loop goes on while a destination says why it refuses thousands of topics."""
    threads = noted_threads(monkeypatch, json_by_steps, "loads_by_steps")
    refused = {f"persistent://public/default/t{number}": {"code": "x", "message": "y"} for number in range(topics)}
    answers = [{"extents": 1, "refused": refused}, {"extents": 2, "refused": {}}]

    async def answering(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + b"".join(map(pack_answer, answers)))
        await reader.read()
        writer.close()

    server = await start_server(answering, "127.0.0.1", 0)
    async with server:
        stream = await UpgradedStream.connect(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/append", {}, 5)
        assert [await stream.receive(), await stream.receive()] == answers
        stream.close()
    assert [each is threading.main_thread() for each in threads] == [False] * (topics > 1)


@pytest.mark.parametrize("topics", [1, 1_000])
@asynchronous
async def test_marks_of_many_topics_are_read_on_a_thread(monkeypatch: pytest.MonkeyPatch, topics: int) -> None:
    threads = noted_threads(monkeypatch, json_by_steps, "loads_by_steps")
    made = noted_threads(monkeypatch, transport, "_mark")
    names = [f"persistent://public/default/t{number}" for number in range(topics)]

    async def marks(_: web.Request) -> web.Response:
        row = {"incarnation": 7, "position": "9:1", "messages": "9:0", "held": 3}
        body = {"cluster": "eu-west", "protocol": PROTOCOL_VERSION, "topics": {name: {"us": row} for name in names}}
        return web.json_response(body)

    app = web.Application()
    app.router.add_get("/replication/v1/high-water", marks)
    async with TestServer(app) as server, HttpTransport("us", "eu-west", f"127.0.0.1:{server.port}") as asking:
        found = await asking.high_water(["us"])
    assert found == {name: {"us": Mark(7, Position(9, 1), Position(9, 0), 3)} for name in names}
    on_thread = topics > 1
    assert [each is threading.main_thread() for each in threads] == [False] * on_thread
    assert {each is threading.main_thread() for each in made} == {not on_thread}


@asynchronous
async def test_an_answer_that_has_no_end_is_given_up_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "MARKS_BYTES_MAX", 100_000)

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        with suppress(ConnectionError):
            while True:
                await response.write(b" " * 10_000)
        return response

    app = web.Application()
    app.router.add_get("/replication/v1/high-water", endless)
    async with TestServer(app) as server, HttpTransport("us", "eu-west", f"127.0.0.1:{server.port}") as asking:
        with pytest.raises(PeerUnavailable, match=r"/replication/v1/high-water is over the limit of 100000 bytes"):
            await asking.high_water(["us"])


def noted_threads(monkeypatch: pytest.MonkeyPatch, module: Any, name: str) -> list[threading.Thread]:
    """Note the thread of each call of a function."""
    threads: list[threading.Thread] = []
    called = getattr(module, name)

    def noted(*arguments: Any) -> Any:
        threads.append(threading.current_thread())
        return called(*arguments)

    monkeypatch.setattr(module, name, noted)
    return threads
