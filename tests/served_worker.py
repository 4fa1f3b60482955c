"""A whole worker that is served from a thread, for tests whose clients block: official ones, and plain HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from failover_support import free_ports

from replicator.topology import load_topology
from replicator.worker.starting import start_worker

START_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What a worker answered over HTTP."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


@dataclass(frozen=True, slots=True)
class ServedWorker:
    """Where a worker is served."""

    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pulsar_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: str | None = None) -> Answer:
        """A request as tools send it; a path without a leading slash is one of ``/admin/v2``."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS_MAX)
        headers = {"Accept": "application/json"} | ({} if body is None else {"Content-Type": "application/json"})
        try:
            target = quote(path if path.startswith("/") else f"/admin/v2/{path}", safe="/?=&_:%")
            connection.request(method, target, body=body, headers=headers)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()


@contextmanager
def served_worker(*, cluster: str = "us-east", more: str = "") -> Iterator[ServedWorker]:
    """A worker of one cluster, without anything in it; ``more`` stands beside its address in the topology."""
    (port,) = free_ports(1)
    # Not below pytest's own directory: as root, the embedded server runs as another user, who may not enter that.
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    file = directory / "topology.yaml"
    file.write_text(
        f"clusters:\n  {cluster}: {{address: '127.0.0.1:{port}', data: {directory / 'data'}{more}}}\n"
        "pipeline: {engine: embedded}\n"
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="worker of a test", daemon=True)
    thread.start()
    starting = asyncio.run_coroutine_threadsafe(start_worker(load_topology(file), cluster), loop)
    worker = starting.result(START_SECONDS_MAX)
    try:
        yield ServedWorker(port)
    finally:
        asyncio.run_coroutine_threadsafe(worker.stop(), loop).result(START_SECONDS_MAX)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(START_SECONDS_MAX)
        loop.close()
        shutil.rmtree(directory, ignore_errors=True)
