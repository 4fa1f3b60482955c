"""``/healthz`` says whether a worker has to be started again."""

from __future__ import annotations

import json
from pathlib import Path

from admin_support import Admin, administered
from asynchronous import asynchronous


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
