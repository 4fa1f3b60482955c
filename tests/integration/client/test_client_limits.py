"""Invariant 11: no address and no role takes more of a worker than its share, whatever it speaks; others are served."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from api_support import NoStatus, opened_stream
from asynchronous import asynchronous
from engine_support import opened
from gateway_support import BareClient
from security_support import Secrets
from served_worker import ServedWorker, served_worker

from replicator.api import bounding
from replicator.api.app import make_app
from replicator.api.linked_sources import LinkedSources
from replicator.gateway import mixed_port, server
from replicator.protocol import server as protocol_server
from replicator.security.certificate_making import Authority
from replicator.security.client_limits import ClientLimits, Limits
from replicator.worker import starting

SECONDS_MAX = 30.0
HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
PING = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
LIST = "/admin/v2/tenants"
CHANGE = "/admin/v2/namespaces/public/default/retention"


@pytest.fixture
def limited(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Starts a worker with other limits; nobody is let go of for a handshake that takes long."""
    for module in (mixed_port, server, protocol_server):
        monkeypatch.setattr(module, "HANDSHAKE_SECONDS_MAX", 3_600.0)

    def start(limits: Limits, **how: Any) -> Any:
        monkeypatch.setattr(starting, "limits_of_process", lambda: limits)
        return served_worker(**how)

    return start


@contextmanager
def connected(port: int, *, address: str = HERE) -> Iterator[socket.socket]:
    with socket.create_connection((HERE, port), timeout=SECONDS_MAX, source_address=(address, 0)) as connection:
        yield connection


def is_closed(connection: socket.socket) -> bool:
    """Return whether the worker closes it, within the test's time; nothing may come before."""
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True


def served(connection: socket.socket, request: bytes = PING) -> bool:
    """Return whether a request is answered there."""
    with suppress(ConnectionError):
        connection.sendall(request)
        return connection.recv(65536).startswith(b"HTTP/1.1 200 OK")
    return False


def until_served(port: int, *, address: str = HERE) -> None:
    """Wait until a request is answered: a worker notices a moment later that somebody has left."""
    for _ in range(1_000):
        with connected(port, address=address) as connection:
            if served(connection):
                return
    pytest.fail("places that were given back are still taken")


def head(path: str, *, method: str = "POST", shown: str | None = None) -> bytes:
    """Return the head of a request whose body never comes."""
    authorization = "" if shown is None else f"Authorization: Bearer {shown}\r\n"
    return (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n{authorization}"
        "Content-Type: application/json\r\nContent-Length: 10\r\n\r\n"
    ).encode()


def asked(port: int, path: str, *, address: str = HERE, shown: str | None = None) -> tuple[int, dict[str, str], bytes]:
    """Send a GET; return status, headers in small letters, and the body."""
    authorization = "" if shown is None else f"Authorization: Bearer {shown}\r\n"
    with connected(port, address=address) as connection:
        connection.sendall(f"GET {path} HTTP/1.0\r\nHost: localhost\r\n{authorization}\r\n".encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    lines, _, body = answer.partition(b"\r\n\r\n")
    first, *rest = lines.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    return int(first.split()[1]), headers, body


@pytest.mark.parametrize("last", ["silent", "http", "binary"])
def test_connections_of_an_address_are_counted_whatever_they_speak_and_others_connect(
    limited: Callable[..., Any], last: str
) -> None:
    with limited(Limits(connections_of_address=6)) as worker, ExitStack() as stack:
        until_served(worker.port)
        for _ in range(2):
            stack.enter_context(connected(worker.port))
            assert served(stack.enter_context(connected(worker.port)))
        held = [stack.enter_context(BareClient(worker.port)) for _ in range(2)]
        with connected(worker.port) as beyond:
            with suppress(ConnectionError):
                beyond.sendall({"silent": b"", "http": PING, "binary": b"\0\0\0\x08\0\0\0\x04"}[last])
            assert is_closed(beyond)
        until_served(worker.port, address=ELSEWHERE)
        held.pop().socket.close()
        until_served(worker.port)


def test_connections_that_are_refused_leave_nothing_counted(limited: Callable[..., Any]) -> None:
    with limited(Limits(connections_of_address=3)) as worker:
        for _ in range(3):
            with ExitStack() as stack:
                many = [stack.enter_context(connected(worker.port)) for _ in range(10)]
                for each in many:
                    with suppress(ConnectionError):
                        each.sendall(PING)
            until_served(worker.port)


def test_those_who_shake_hands_are_counted_where_tls_is_spoken(limited: Callable[..., Any], tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).give("us-east")
    more = f", tls: {{certificate: {certificate}, key: {key}}}"
    with limited(Limits(handshakes_of_address=4), more=more) as worker, ExitStack() as stack:
        for begun in (b"", b"", b"\x16", b"\x16\x03\x01"):
            connection = stack.enter_context(connected(worker.port))
            connection.sendall(begun)
        with connected(worker.port) as beyond:
            assert is_closed(beyond)
        until_served(worker.port, address=ELSEWHERE)


def test_connections_of_a_role_are_counted_and_other_roles_connect(limited: Callable[..., Any], tmp_path: Path) -> None:
    secrets = Secrets.made(tmp_path)
    with (
        limited(Limits(connections_of_role=2), sections={"auth": secrets.auth()}) as worker,
        ExitStack() as stack,
    ):
        for _ in range(2):
            stack.enter_context(BareClient(worker.port, token=secrets.token("app")))
        assert BareClient(worker.port, token=secrets.token("app")).closed_by_server()
        BareClient(worker.port, token=secrets.token("another")).ping()


def test_requests_of_an_address_are_counted_and_what_is_too_much_may_come_again(limited: Callable[..., Any]) -> None:
    with limited(Limits(requests_of_address=3)) as worker, ExitStack() as stack:
        slow = [stack.enter_context(connected(worker.port)) for _ in range(3)]
        for each in slow:
            each.sendall(head(CHANGE))
        _, headers, body = _until(lambda: asked(worker.port, LIST), 429)
        assert (headers["retry-after"], json.loads(body)["error"]) == ("1", "TooBusy")
        assert f"3 requests from {HERE}" in json.loads(body)["message"]
        assert asked(worker.port, "/healthz")[0] == 200, "a probe would end the worker"
        assert asked(worker.port, "/readyz")[0] == 200
        assert asked(worker.port, LIST, address=ELSEWHERE)[0] == 200
        slow[0].close()
        _until(lambda: asked(worker.port, LIST), 200)


def test_requests_of_a_role_are_counted_and_other_roles_are_served(limited: Callable[..., Any], tmp_path: Path) -> None:
    secrets = Secrets.made(tmp_path)
    auth = secrets.auth(permissions={"public/default": {"app": ["admin"]}})
    app, operator = secrets.token("app"), secrets.token("operator")
    with limited(Limits(requests_of_role=2), sections={"auth": auth}) as worker, ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(connected(worker.port)).sendall(head(CHANGE, shown=app))
        path = "/admin/v2/namespaces/public/default"
        _, headers, body = _until(lambda: asked(worker.port, path, shown=app), 429)
        assert (headers["retry-after"], json.loads(body)["error"]) == ("1", "TooBusy")
        assert "2 requests of role app" in json.loads(body)["message"]
        assert asked(worker.port, path, shown=operator)[0] == 200
        assert asked(worker.port, path)[0] == 401, "who is not identified is told that"


def test_websockets_of_an_address_are_counted(limited: Callable[..., Any]) -> None:
    async def main(worker: ServedWorker) -> None:
        url = f"{worker.url}/ws/v2/producer/persistent/public/default/t"
        async with aiohttp.ClientSession() as session:
            first, second = await session.ws_connect(url), await session.ws_connect(url)
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await session.ws_connect(url)
            assert (refused.value.status, refused.value.headers["Retry-After"]) == (429, "1")
            async with session.get(f"{worker.url}{LIST}") as answer:
                assert answer.status == 200, "sockets are no requests"
            await first.close()
            async with asyncio.timeout(SECONDS_MAX):
                while True:
                    with suppress(aiohttp.WSServerHandshakeError):
                        await (await session.ws_connect(url)).close()
                        break
            await second.close()

    with limited(Limits(sockets_of_address=2, requests_of_address=1)) as worker:
        asyncio.run(main(worker))


def test_websockets_of_a_role_are_counted(limited: Callable[..., Any], tmp_path: Path) -> None:
    secrets = Secrets.made(tmp_path)
    auth = secrets.auth(permissions={"public/default": {"app": ["produce"], "another": ["produce"]}})

    async def main(worker: ServedWorker) -> None:
        url = f"{worker.url}/ws/v2/producer/persistent/public/default/t?token="
        async with (
            aiohttp.ClientSession() as session,
            session.ws_connect(url + secrets.token("app")),
        ):
            with pytest.raises(aiohttp.WSServerHandshakeError, match="429"):
                await session.ws_connect(url + secrets.token("app"))
            async with session.ws_connect(url + secrets.token("another")):
                pass

    with limited(Limits(sockets_of_role=1), sections={"auth": auth}) as worker:
        asyncio.run(main(worker))


@asynchronous
async def test_links_are_not_kept_out_by_requests_from_where_they_come(tmp_path: Path) -> None:
    """Their streams last for days; a flood of requests beside them neither ends them nor keeps new ones away."""
    limits = ClientLimits(Limits(requests_of_address=1))
    async with opened(tmp_path, "eu-west") as engine:
        app = make_app(engine, NoStatus(), LinkedSources.of("us-east", "ap-south"), limits=limits)
        runner = web.AppRunner(app, shutdown_timeout=10)
        await runner.setup()
        try:
            await web.TCPSite(runner, HERE, 0).start()
            port = runner.addresses[0][1]
            base = f"http://{HERE}:{port}/replication/v1"
            assert limits.requests_of_address.take(HERE) is None  # a request that goes on
            async with aiohttp.ClientSession() as session, session.get(f"{base}/topics") as answer:
                assert answer.status == 429
            for source in ("us-east", "ap-south"):
                await opened_stream(base, source)
            limits.requests_of_address.give_back(HERE)
            async with aiohttp.ClientSession() as session, session.get(f"{base}/topics") as answer:
                assert answer.status == 200, "streams are no requests"
        finally:
            await runner.cleanup()


def test_a_body_that_does_not_come_ends_its_connection_and_gives_its_place_back(
    limited: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounding, "BODY_SECONDS_MAX", 0.5)
    with limited(Limits(requests_of_address=1)) as worker, ExitStack() as stack:
        slow, drips = (stack.enter_context(connected(worker.port, address=each)) for each in (HERE, ELSEWHERE))
        slow.sendall(head(CHANGE))
        drips.sendall(head("/topics/persistent/public/default/t") + b"{")
        assert is_closed(slow)
        assert is_closed(drips)
        _until(lambda: asked(worker.port, LIST), 200)


def _until(ask: Callable[[], tuple[int, dict[str, str], bytes]], status: int) -> tuple[int, dict[str, str], bytes]:
    for _ in range(1_000):
        answer = ask()
        if answer[0] == status:
            return answer
    pytest.fail(f"never {status}, but {answer[0]}")
