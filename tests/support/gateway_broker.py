"""A worker of ours in the place of an Apache Pulsar broker: tests of the bridge need no Java with it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from failover_support import WithPorts
from postgres_support import databases_of, served_postgres


class GatewayBroker:
    """One cluster of kind embedded. It is asked and ended as :class:`PulsarBroker`."""

    token: str | None = None
    """Token of the superuser; None, because the broker asks for no credentials."""
    authority: Path | None = None
    """Authority of its certificate; None, because there is no TLS."""

    def __init__(self, path: Path, name: str, database: str) -> None:
        path.mkdir()
        self.cluster = name
        self._worker = WithPorts(path, (name,), "[]", {name: database})
        self.url = self._worker.service_url(name)
        self.admin_url = self._worker.url(name)

    def start(self) -> None:
        self._worker.start(self.cluster)

    def kill(self) -> None:
        self._worker.kill(self.cluster)

    def stop(self) -> None:
        self._worker.stop()

    def admin(self, method: str, path: str, body: Any = None) -> Any:
        """Call ``/admin/v2/PATH``, with JSON both ways; raises :class:`urllib.error.HTTPError`."""
        request = urllib.request.Request(
            f"{self.admin_url}/admin/v2/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            said = response.read()
        return json.loads(said) if said else None


@contextmanager
def gateways_of(path: Path, *names: str) -> Iterator[dict[str, GatewayBroker]]:
    """A worker for each name, that runs."""
    with served_postgres() as server, databases_of("".join(names), server, "gateway") as databases:
        made = {name: GatewayBroker(path / f"gateway-{name}", name, databases[name]) for name in names}
        try:
            for broker in made.values():
                broker.start()
                broker.admin(
                    "POST",
                    "namespaces/public/default/retention",
                    {"retentionTimeInMinutes": 60, "retentionSizeInMB": 1000},
                )
            yield made
        finally:
            for broker in made.values():
                broker.stop()
