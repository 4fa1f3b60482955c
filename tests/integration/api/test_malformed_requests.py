"""Requests that cannot be read: neither the answer nor the log holds anything of them, and a flood writes few lines."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator

import pytest
from gateway_support import BareClient
from malformed_support import HEAD, MALFORMED, answer_to
from security_support import Secrets
from served_worker import ServedWorker, served_worker

from replicator.protocol.commands_pb2 import AuthData, BaseCommand, CommandAuthResponse
from replicator.protocol.errors import NotAuthenticated
from replicator.running.limited_log import LINES_MAX


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Secrets:
    return Secrets.made(tmp_path_factory.mktemp("secrets"))


@pytest.fixture(scope="module")
def worker(secrets: Secrets) -> Iterator[ServedWorker]:
    with served_worker(sections={"auth": secrets.auth()}, token=secrets.token("operator")) as served:
        yield served


@pytest.mark.parametrize("kind", MALFORMED)
def test_a_malformed_request_is_told_neither_to_the_log_nor_to_its_sender(
    worker: ServedWorker,
    secrets: Secrets,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:
    token = secrets.token("app").encode()
    seeded = {b"token": token, b"long": token * 400, b"good": secrets.token("operator").encode()}
    request = MALFORMED[kind] % seeded
    capfd.readouterr()
    answered = answer_to(worker.port, request)
    assert any(status in answered for status in (b" 400 ", b" 401 ", b" 417 ")), answered
    head, _, body = answered.partition(b"\r\n\r\n")
    assert b"\r\ncontent-type: application/json" in head.lower()
    told, _ = json.JSONDecoder().raw_decode(body.decode())  # another answer may follow
    assert {"error", "message"} <= told.keys()
    assert token[:40] not in answered
    assert b"Traceback" not in answered
    said = "".join(capfd.readouterr()) + caplog.text
    assert token[:40].decode() not in said
    assert "Traceback" not in said


def test_a_flood_of_malformed_requests_writes_few_lines(
    worker: ServedWorker, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    capfd.readouterr()
    for _ in range(100):
        assert b" 400 " in answer_to(worker.port, HEAD + b"x : y\r\n\r\n")
    said = "".join(capfd.readouterr()) + caplog.text
    assert said.count("\n") <= LINES_MAX + 2
    assert len(said) < 10_000


@pytest.mark.parametrize("space", ["\n", "\r\n", "  ", "\t"])
def test_white_space_around_a_token_is_ignored_at_every_door(
    worker: ServedWorker, secrets: Secrets, space: str
) -> None:
    token = secrets.token("operator")
    with BareClient(worker.port, token=f"{space}{token}{space}") as client:
        client.send(shown_again(f"{space}{token}{space}"))
        client.ping()
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
               "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Authorization": ""}  # fmt: skip
    escaped = "".join(f"%{ord(each):02X}" for each in space)
    path = f"/ws/v2/producer/persistent/public/default/t?token={escaped}{token}{escaped}"
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n"
    headers = "".join(f"{name}: {value}\r\n" for name, value in upgrade.items() if value)
    with socket.create_connection(("127.0.0.1", worker.port), timeout=10) as connection:
        connection.sendall(f"{request}{headers}\r\n".encode())
        assert connection.recv(65536).startswith(b"HTTP/1.1 101 ")
    if "\n" not in space:
        padded = {"Authorization": f"Bearer {space}{token}{space}"}
        assert worker.ask("GET", "tenants", headers=padded).status == 200


def shown_again(token: str) -> BaseCommand:
    """Return the command by which a client shows a new token."""
    response = CommandAuthResponse(response=AuthData(auth_method_name="token", auth_data=token.encode()))
    return BaseCommand(type=BaseCommand.AUTH_RESPONSE, authResponse=response)


def test_a_token_with_something_else_around_it_is_refused(worker: ServedWorker, secrets: Secrets) -> None:
    token = secrets.token("operator")
    with BareClient(worker.port, token=token) as client:
        client.send(shown_again(f"{token}x"))
        assert client.closed_by_server()
    with pytest.raises(NotAuthenticated), BareClient(worker.port, token=f"{token}x"):
        pass


@pytest.mark.parametrize("path", ["/admin/v2/tenants", "/metrics", "/replication/v1/status", "/dashboard/audit"])
def test_a_token_in_the_query_is_for_websockets_alone(worker: ServedWorker, secrets: Secrets, path: str) -> None:
    target = f"{path}?token={secrets.token('operator')}"
    answer = answer_to(worker.port, f"GET {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 401 "), answer


def test_the_way_to_sign_in_holds_no_token_of_the_query(worker: ServedWorker, secrets: Secrets) -> None:
    token = secrets.token("operator")
    page = f"/dashboard/audit?before=7&token={token}"
    head = f"GET {page} HTTP/1.1\r\nHost: localhost\r\nAccept: text/html\r\nConnection: close\r\n\r\n"
    answer = answer_to(worker.port, head.encode()).decode()
    assert answer.startswith("HTTP/1.1 303 ")
    assert token[:40] not in answer
    assert "before%3D7" in answer
