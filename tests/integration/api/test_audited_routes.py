"""Each route that creates, deletes or alters something is audited, or says why it is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from api_support import entries, topology
from asynchronous import asynchronous
from served_worker import ServedWorker, served_worker

from replicator.api.audit import NOT_NOTED, NOTED, NOTED_ELSEWHERE, PREFIX, READING
from replicator.api.guarding import is_dashboard
from replicator.topology import load_topology
from replicator.worker.starting import start_worker

STAGING = "/pipeline/v1/staged/"
TABLES = (NOTED, NOTED_ELSEWHERE, NOT_NOTED)


@pytest.fixture(scope="module")
def worker() -> Iterator[ServedWorker]:
    with served_worker() as served:
        yield served


@asynchronous
async def test_each_route_that_takes_a_body_is_in_one_table(data_dir: Path) -> None:
    file, _ = topology(data_dir)
    worker = await start_worker(load_topology(file), "solo")
    try:
        routes = [(route.method, route.resource.canonical) for route in worker._app.router.routes() if route.resource]
    finally:
        await worker.stop()
    changing = {path for method, path in routes if method not in READING and not path.startswith((PREFIX, STAGING))}
    changing = {path for path in changing if not is_dashboard(path)}
    assert {path: sum(path in table for table in TABLES) for path in changing} == dict.fromkeys(changing, 1)
    assert {path for table in TABLES for path in table} == changing


@pytest.mark.parametrize(
    ("path", "body", "action"),
    [
        ("/replication/v1/ack-vectors/tell", '{"topics": []}', "tell states"),
        ("/replication/v1/mapping/rebuild", None, "rebuild mapping"),
    ],
)
def test_what_an_operator_asks_of_other_paths_is_noted(
    worker: ServedWorker, path: str, body: str | None, action: str
) -> None:
    assert worker.ask("POST", path, body).status < 300
    newest = entries(worker)[0]
    assert (newest["actor"], newest["action"], newest["detail"]["from"]) == ("operator", action, "127.0.0.1")
