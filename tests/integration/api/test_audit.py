"""The audit log records each change by an operator: what changed, from where, the old and the new value."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forked_commands
import psycopg
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from api_support import entries
from asynchronous import asynchronous
from served_worker import ServedWorker, served_worker

from replicator.api.audit import note_changes

RETENTION = "namespaces/public/default/retention"


@pytest.fixture(scope="module")
def worker() -> Iterator[ServedWorker]:
    with served_worker() as served:
        yield served


def test_a_change_is_noted_with_what_was_before_and_what_is_after(worker: ServedWorker) -> None:
    for minutes in (10, 20):
        body = json.dumps({"retentionTimeInMinutes": minutes, "retentionSizeInMB": 5})
        assert worker.ask("POST", RETENTION, body).status == 204
    newest, older = entries(worker)[:2]
    assert newest["action"] == older["action"] == "POST namespaces"
    assert newest["subject"] == RETENTION
    assert newest["actor"] == "operator"
    assert newest["detail"]["from"] == "127.0.0.1"
    assert newest["detail"]["before"]["retentionTimeInMinutes"] == 10
    assert newest["detail"]["after"]["retentionTimeInMinutes"] == 20
    assert newest["at_ms"] >= older["at_ms"]


def test_what_is_refused_and_what_only_looks_is_not_noted(worker: ServedWorker) -> None:
    before = entries(worker)
    assert worker.ask("DELETE", "persistent/public/default/nowhere").status == 404
    assert worker.ask("POST", RETENTION, '{"retentionTimeInMinutes": "x"}').status >= 400
    assert worker.ask("GET", RETENTION).status == 200
    assert entries(worker) == before


def test_topics_and_subscriptions_that_come_and_go_are_noted_and_others_paths_by_who_carries_them_out(
    worker: ServedWorker,
) -> None:
    assert worker.ask("PUT", "persistent/public/default/noted").status == 204
    assert worker.ask("PUT", "persistent/public/default/noted/subscription/s").status == 204
    assert worker.ask("DELETE", "persistent/public/default/noted?force=true").status == 204
    assert worker.ask("POST", "/replication/v1/topology/reload", "{}").status == 200
    found = [(entry["action"], entry["subject"], entry["detail"]["from"]) for entry in entries(worker, "?newest=4")]
    assert found == [
        ("reload", "topology", "127.0.0.1"),
        ("DELETE persistent", "persistent/public/default/noted", "127.0.0.1"),
        ("PUT persistent/subscription", "persistent/public/default/noted/subscription/s", "127.0.0.1"),
        ("PUT persistent", "persistent/public/default/noted", "127.0.0.1"),
    ]


@pytest.mark.parametrize("parameters", ["?newest=x", "?since_ms=-1"])
def test_parameters_that_are_no_numbers_are_refused(worker: ServedWorker, parameters: str) -> None:
    assert worker.ask("GET", f"/replication/v1/audit{parameters}").status == 400


def test_the_command_lists_them(worker: ServedWorker, tmp_path: Path) -> None:
    assert worker.ask("PUT", "persistent/public/default/listed").status == 204
    file = tmp_path / "topology.yaml"
    file.write_text(f"clusters:\n  us-east: {{address: '127.0.0.1:{worker.port}', data: data}}\n")
    command = ("audit", "list", "-f", file, "--newest", "1", "--output")
    for output in ("table", "json"):
        done = forked_commands.run(*command, output, cwd=tmp_path, timeout=60)
        assert done.returncode == 0, done.stderr
        for said in ("us-east", "operator", "127.0.0.1", "PUT persistent"):
            assert said in done.stdout
    assert json.loads(done.stdout)[0]["subject"] == "persistent/public/default/listed"


@asynchronous
async def test_a_change_with_a_body_that_is_no_json_is_noted_and_one_that_is_too_large_is_not_carried_out() -> None:
    noted: list[Any] = []
    carried_out: list[str] = []

    async def carry_out(request: web.Request) -> web.Response:
        carried_out.append(request.path)
        return web.json_response({})

    app = web.Application(middlewares=[note_changes(lambda *entry: noted.append(entry[-1]))])
    app.router.add_post("/replication/v1/mapping/rebuild", carry_out)
    async with TestClient(TestServer(app)) as client:
        for body, status in ((b"", 200), (b"x", 200), (b"\xff", 200), (b"[" * 900, 200), (b" " * 2_000_000, 413)):
            async with client.post("/replication/v1/mapping/rebuild", data=body) as response:
                assert response.status == status, body[:10]
    assert len(carried_out) == len(noted) == 4
    assert noted[1] == {"asked": {"left out": "1 bytes that are no JSON"}}


def test_properties_of_a_subscription_that_postgres_cannot_hold_are_noted_with_escapes(worker: ServedWorker) -> None:
    """The rows of the subscription and of the audit log are there, and none was refused."""
    topic = "persistent/public/default/with-nul"
    changed = f"{topic}/subscription/s/properties"
    assert worker.ask("PUT", topic).status == 204
    assert worker.ask("PUT", f"{topic}/subscription/s?replicated=true").status == 204
    body = json.dumps({"k\0": "half a character \ud800"})
    assert worker.ask("PUT", changed, body).status == 204
    noted = entries(worker)[0]
    assert (noted["action"], noted["subject"]) == (
        "PUT persistent/subscription/properties",
        changed,
    )
    assert noted["detail"]["after"] == {"k\\u0000": "half a character \\ud800"}
    with psycopg.connect(f"postgresql://postgres@/postgres?host={worker.data / 'postgres'}", autocommit=True) as index:
        states = "SELECT count(*) FROM subscription_states WHERE topic LIKE '%with-nul' AND subscription = 's'"
        deadline = time.monotonic() + 30
        while index.execute(states).fetchone() != (1,):
            assert time.monotonic() < deadline
    assert worker.ask("GET", "/replication/v1/status?topics=false").json["database"]["rows_refused"] == 0
