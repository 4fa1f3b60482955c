"""Each route that creates, deletes or alters something is audited, or says why it is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import aiohttp
import pytest
from aiohttp.test_utils import TestClient, TestServer
from api_support import NoStatus, entries, topology
from asynchronous import asynchronous
from engine_support import TOPIC, opened
from served_worker import ServedWorker, served_worker
from worker_pair import pair

from replicator.apache.errors import BridgeError, EntryNotRefused
from replicator.apache.renewing import Renewal, ResumeMode
from replicator.api.app import make_app
from replicator.api.audit import NOT_NOTED, NOTED, NOTED_ELSEWHERE, PREFIX, READING
from replicator.api.bridge_routes import add_bridge
from replicator.api.guarding import is_dashboard
from replicator.api.left_out import add_left_out
from replicator.api.linked_sources import LinkedSources
from replicator.failover.epochs import as_json, from_json, switched
from replicator.topology import load_topology
from replicator.worker.starting import start_worker
from snapshots.position import Position

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


class BesideBrokers:
    """Stand-in for the bridge of a worker beside brokers. Requests fail once ``silent`` is set."""

    silent = False
    places: ClassVar[list[dict[str, Any]]] = [{"after": "1:1"}]

    def named(self, topic: str) -> list[str]:
        return [f"{topic}-partition-0", f"{topic}-partition-1"]

    def topic_status(self, topic: str) -> dict[str, Any]:
        return {"topic": topic}

    async def renew(self, topic: str, *, dry_run: bool) -> Renewal:
        if self.silent:
            raise BridgeError("the brokers do not answer")
        return Renewal(ResumeMode.BEHIND, "it goes on")

    async def acknowledge_missing(self, topic: str) -> list[dict[str, Any]]:
        return self.places if topic.endswith("-0") else []

    async def leave_out(self, topic: str, cluster: str, position: Position) -> dict[str, Any]:
        if self.silent:
            raise EntryNotRefused(f"the brokers do not refuse {position}")
        return {"topic": topic}


@asynchronous
async def test_what_an_operator_asks_of_a_bridge_to_brokers_is_noted_for_each_topic_that_it_changed(
    tmp_path: Path,
) -> None:
    noted: list[tuple[Any, ...]] = []
    bridge = BesideBrokers()
    async with opened(tmp_path) as engine:
        app = make_app(engine, NoStatus(), LinkedSources(), audit=lambda *entry: noted.append(entry))
        add_left_out(app, bridge)
        add_bridge(app, engine.cluster, bridge, lambda *entry: noted.append(entry))
        async with TestClient(TestServer(app)) as client:

            async def ask(path: str, body: Any) -> int:
                async with client.post(f"/replication/v1/{path}", json=body) as response:
                    return response.status

            left_out = {"topic": TOPIC, "cluster": "eu-west", "entry": "3:4"}
            assert await ask("bridge/renew", {"topic": TOPIC, "dry_run": True}) == 200
            assert await ask("bridge/renew", {"topic": TOPIC}) == 200
            assert await ask("bridge/acknowledge-missing", {"topic": TOPIC}) == 200
            assert await ask("left-out", left_out) == 200
            bridge.silent = True
            assert await ask("bridge/renew", {"topic": TOPIC}) == 503
            assert await ask("left-out", left_out) == 409
    assert noted == [
        ("operator", "renew bridge", f"{TOPIC}-partition-0", {"way": ResumeMode.BEHIND.value}),
        ("operator", "renew bridge", f"{TOPIC}-partition-1", {"way": ResumeMode.BEHIND.value}),
        ("operator", "acknowledge missing", f"{TOPIC}-partition-0", {"places": bridge.places}),
        ("operator", "leave out at brokers", "worker", {"asked": left_out}),
    ]


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
