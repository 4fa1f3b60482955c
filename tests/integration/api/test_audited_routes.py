"""Each route that creates, deletes or alters something is audited, or says why it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from api_support import entries, topology
from asynchronous import asynchronous
from engine_support import TOPIC
from served_worker import ServedWorker, served_worker
from worker_pair import pair

from replicator.api.audit import NOT_NOTED, NOTED, NOTED_ELSEWHERE, PREFIX, READING
from replicator.api.guarding import is_dashboard
from replicator.failover.epochs import as_json, from_json, switched
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


@asynchronous
async def test_what_links_and_a_failover_change_at_the_other_worker_is_noted(data_dir: Path) -> None:
    async with pair(data_dir.parent / "both") as both, aiohttp.ClientSession() as session:
        await both.published()

        async def ask(method: str, cluster: str, path: str, body: Any = None) -> Any:
            url = f"http://{both.topology.cluster(cluster).address}{path}"
            async with session.request(method, url, json=body) as response:
                assert response.status < 300, await response.text()
                return await response.json() if response.content_type == "application/json" else None

        async def noted(cluster: str, *wanted: tuple[str, str]) -> None:
            """Wait until the audit log of ``cluster`` has the actors and actions ``wanted``."""
            found: set[tuple[str, str]] = set()
            async with asyncio.timeout(30):
                while not found >= set(wanted):
                    answer = await ask("GET", cluster, "/replication/v1/audit")
                    found = {(each["actor"], each["action"]) for each in answer["entries"]}

        await both.engine("us-east").partitioned.create("public/default/colours", 2)
        schema = {"type": "STRING", "schema": "", "properties": {}}
        await ask("POST", "us-east", f"/admin/v2/schemas/{TOPIC.partition('://')[2]}/schema", schema)
        await noted("eu-west", ("link from us-east", "partitions"), ("link from us-east", "schemas"))
        first = str(both.topic("eu-west").log.first)
        await ask("POST", "eu-west", "/replication/v1/mend", {"topic": TOPIC, "position": first})
        await noted("eu-west", ("operator", "mend"))
        hold = {"operation": "o", "target": "eu-west", "expected": [0, "", ""], "lease_ms": 60_000}
        await ask("POST", "us-east", "/failover/v1/hold", hold)
        await ask("POST", "us-east", "/failover/v1/release", {"operation": "o"})
        await noted("us-east", ("operator", "failover hold"), ("operator", "failover release"))
        asked = {"kind": "unplanned", "homes": ["us-east"], "expected": [0, "", ""], "keep_consumers": False}
        taken = from_json((await ask("POST", "eu-west", "/failover/v1/propose", asked))["record"])
        back = switched(taken, kind="failback", homes=["us-east"], target="us-east", record_id="r", at_ms=1)
        await ask("POST", "us-east", "/failover/v1/epochs", {"record": as_json(back)})
        await noted("eu-west", ("operator", "failover unplanned"))
        await noted("us-east", ("operator", "failover adopt"))
