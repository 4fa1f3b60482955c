"""A whole worker, served from a thread for tests with blocking clients: official ones, and plain HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import shutil
import ssl
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import yaml
from failover_support import free_ports

from replicator.topology import load_topology
from replicator.worker.starting import start_worker

START_SECONDS_MAX = 60.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A worker's answer over HTTP."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)


@dataclass(frozen=True, slots=True)
class ServedWorker:
    """Address, directory and credentials of a served worker."""

    port: int
    data: Path
    """Directory of the worker, with that of its embedded database."""
    token: str | None = None
    """Token that :meth:`ask` sends."""
    trust: Path | None = None
    """Authority of its certificate, if it speaks TLS only."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def pulsar_url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    def ask(self, method: str, path: str, body: str | None = None, headers: Mapping[str, str] | None = None) -> Answer:
        """Send a request as tools do; a path without a leading slash is one of ``/admin/v2``."""
        connection = self._connection()
        shown = {} if self.token is None else {"Authorization": f"Bearer {self.token}"}
        kind = {} if body is None else {"Content-Type": "application/json"}
        headers = {"Accept": "application/json", **kind, **shown, **(headers or {})}
        try:
            target = quote(path if path.startswith("/") else f"/admin/v2/{path}", safe="/?=&_:%")
            connection.request(method, target, body=body, headers=headers)
            response = connection.getresponse()
            return Answer(response.status, dict(response.getheaders()), response.read())
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self.trust is None:
            return http.client.HTTPConnection("127.0.0.1", self.port, timeout=START_SECONDS_MAX)
        context = ssl.create_default_context(cafile=self.trust)
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=START_SECONDS_MAX, context=context)


@contextmanager
def served_worker(
    *,
    cluster: str = "us-east",
    more: str = "",
    sections: Mapping[str, Any] | None = None,
    token: str | None = None,
    trust: Path | None = None,
) -> Iterator[ServedWorker]:
    """Yield an empty worker of one cluster. The topology gets ``more`` beside its address, ``sections`` beside its
    clusters."""
    (port,) = free_ports(1)
    # Not below pytest's own directory: as root, the embedded server runs as another user, who may not enter that.
    directory = Path(tempfile.mkdtemp(prefix="pg-"))
    file = directory / "topology.yaml"
    file.write_text(
        f"clusters:\n  {cluster}: {{address: '127.0.0.1:{port}', data: {directory / 'data'}{more}}}\n"
        "pipeline: {engine: embedded}\n" + (yaml.safe_dump(dict(sections)) if sections else "")
    )
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="worker of a test", daemon=True)
    thread.start()
    starting = asyncio.run_coroutine_threadsafe(start_worker(load_topology(file), cluster), loop)
    worker = starting.result(START_SECONDS_MAX)
    try:
        yield ServedWorker(port, directory / "data", token, trust)
    finally:
        asyncio.run_coroutine_threadsafe(worker.stop(), loop).result(START_SECONDS_MAX)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(START_SECONDS_MAX)
        loop.close()
        shutil.rmtree(directory, ignore_errors=True)
