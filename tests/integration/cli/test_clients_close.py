"""Clients by address and role: the status names the busiest, and ``replicator clients close`` ends any kind of them."""

from __future__ import annotations

import json
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import forked_commands
import pytest
from asynchronous import asynchronous
from engine_support import TOPIC, eventually, message
from gateway_support import BareClient
from security_support import Secrets, write_certificate
from served_worker import ServedWorker, served_worker
from worker_pair import pair

from replicator.api.link_streams import STREAMS
from replicator.protocol.commands_pb2 import BaseCommand, CommandConnect
from replicator.protocol.frames import encode
from replicator.running.connecting import address_of

WAIT_SECONDS = 30.0


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets.made(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def worker(secrets: Secrets, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedWorker]:
    certificate, key = write_certificate(secrets.directory / "tls")
    tls = f", tls: {{certificate: {certificate}, key: {key}}}"
    with served_worker(sections={"auth": secrets.auth()}, token=secrets.token("operator"), more=tls) as served:
        yield served


def address(client: socket.socket) -> str:
    return "{}:{}".format(*client.getsockname())


def test_the_status_names_the_three_busiest_clients_by_address_and_role(worker: ServedWorker, secrets: Secrets) -> None:
    """Roles of clients of the binary protocol and of HTTP are known once they are authenticated."""
    deadline = time.monotonic() + WAIT_SECONDS
    with ExitStack() as opened:
        clients: list[tuple[str, str, Callable[[], object]]] = []
        for role in ("operator", "billing"):
            client = opened.enter_context(BareClient(worker.port, token=secrets.token(role)))
            clients.append((address(client.socket), role, client.ping))
            connection = opened.enter_context(closing(HTTPConnection("127.0.0.1", worker.port, timeout=WAIT_SECONDS)))
            connection.connect()
            clients.append((address(connection.sock), role, partial(asked, connection, secrets.token(role))))
        for place, role, use in clients:
            busiest: list[dict[str, Any]] = []
            while place not in [each["address"] for each in busiest]:
                assert time.monotonic() < deadline
                for _ in range(50):
                    use()
                busiest = worker.ask("GET", "/replication/v1/status?topics=false").json["clients"]["busiest"]
                assert len(busiest) <= 3
            assert [each["role"] for each in busiest if each["address"] == place] == [role]
        assert len(busiest) == 3


def asked(connection: HTTPConnection, token: str) -> None:
    connection.request("GET", "/admin/v2/tenants", headers={"Authorization": f"Bearer {token}"})
    connection.getresponse().read()


def binary_over_tls(worker: ServedWorker, secrets: Secrets) -> socket.socket:
    context = ssl.create_default_context(cafile=secrets.directory / "tls" / "certificate.pem")
    plain = socket.create_connection(("127.0.0.1", worker.port), timeout=WAIT_SECONDS)
    opened = context.wrap_socket(plain, server_hostname="127.0.0.1")
    command = CommandConnect(client_version="x", auth_method_name="token", auth_data=secrets.token("billing").encode())
    opened.sendall(encode(BaseCommand(type=BaseCommand.CONNECT, connect=command)))
    assert opened.recv(4)
    return opened


def web_socket(worker: ServedWorker, secrets: Secrets) -> socket.socket:
    opened = socket.create_connection(("127.0.0.1", worker.port), timeout=WAIT_SECONDS)
    path = f"/ws/v2/reader/persistent/public/default/t?token={secrets.token('operator')}"
    opened.sendall(
        f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n".encode()
        + b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    assert opened.recv(65_536).startswith(b"HTTP/1.1 101 ")
    return opened


@pytest.mark.parametrize("connect", [binary_over_tls, web_socket])
def test_the_command_ends_a_clients_connection(
    worker: ServedWorker, secrets: Secrets, connect: Callable[[ServedWorker, Secrets], socket.socket]
) -> None:
    with connect(worker, secrets) as opened, connect(worker, secrets) as other:
        asked = ("--cluster", "us-east", "-f", str(worker.data.parent / "topology.yaml"), "--output", "json")
        done = forked_commands.run("clients", "close", address(opened), *asked, cwd=worker.data.parent, timeout=90)
        assert [each["closed"] for each in json.loads(done.stdout)] == [1]
        assert ended(opened)
        other.settimeout(0.2)
        assert not ended(other)


def ended(opened: socket.socket) -> bool:
    try:
        while opened.recv(65_536):
            pass
    except TimeoutError:
        return False
    except OSError:
        return True
    return True


@asynchronous
async def test_the_command_ends_the_stream_of_a_link_which_comes_back(data_dir: Path) -> None:
    async with pair(data_dir.parent / "both") as both:
        await both.published()
        (link,) = both.workers["us-east"].parts.links._running.values()
        streams = both.workers["eu-west"]._app[STREAMS]
        (before,) = streams.values()
        reconnects = link.figures.reconnects
        _, peer = address_of(before.transport)
        done = await both.cli("clients", "close", peer, "--cluster", "eu-west", "--output", "json")
        assert [each["closed"] for each in json.loads(done.stdout)] == [1]
        await eventually(lambda: link.figures.reconnects > reconnects and before not in streams.values())
        await both.topic("us-east").publish([message()])
        await eventually(lambda: both.topic("eu-west").log.messages == 34, TOPIC)
