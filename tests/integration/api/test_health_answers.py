"""``/healthz`` says whether a worker has to be started again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from admin_support import Admin, administered
from asynchronous import asynchronous

from replicator.drills.ports import free_ports
from replicator.operating.errors import WorkerUnavailable
from replicator.operating.health import ask_any
from replicator.topology import Topology, load_topology


async def _health(worker: Admin) -> tuple[int, dict[str, str]]:
    async with worker.session.get(f"{worker.url}/healthz") as response:
        return response.status, json.loads(await response.text())


@asynchronous
async def test_a_worker_whose_store_failed_is_not_healthy_so_that_it_is_started_again(tmp_path: Path) -> None:
    async with administered(tmp_path) as worker:
        assert await _health(worker) == (200, {"status": "alive"})
        worker.engine.writer.failed = "a sync failed: Input/output error"
        assert await _health(worker) == (503, {"status": "failed", "reason": "a sync failed: Input/output error"})
        worker.engine.writer.failed = None


@asynchronous
async def test_a_worker_is_asked_where_it_listens_whichever_clusters_it_is(tmp_path: Path) -> None:
    """An image asks so, because nobody tells it whose worker it runs."""
    file = tmp_path / "topology.yaml"

    def topology(*listen: str) -> Topology:
        data = tmp_path / "data"
        lines = [
            f"  {name}: {{address: '{name}.example:7101', data: {data}/{name}{place}, insecure: true}}"
            for name, place in zip(("us-east", "eu-west"), listen, strict=True)
        ]
        file.write_text("\n".join(["clusters:", *lines]))
        return load_topology(file)

    (nobody,) = free_ports(1)
    async with administered(tmp_path / "worker") as worker:
        here = worker.url.rpartition("/")[2]
        found = await ask_any(topology(f", listen: '127.0.0.1:{nobody}'", f", listen: '{here}'"))
        assert found == ("eu-west", '{"status": "alive"}')
        with pytest.raises(WorkerUnavailable, match=rf"127\.0\.0\.1:{nobody}/healthz"):
            await ask_any(topology("", f", listen: '127.0.0.1:{nobody}'"))
        with pytest.raises(WorkerUnavailable, match="REPLICATOR_CLUSTER"):
            await ask_any(topology("", ""))  # others answer at the addresses, not this host
