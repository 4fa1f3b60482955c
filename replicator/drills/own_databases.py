"""PostgreSQL servers that the drill runs in the workers' places, so that it can stop them and keep them stopped.

A worker starts its embedded server again by itself within seconds. For the scenario in which the database is away the
drill therefore runs the same server in the same directory itself, and gives the worker its URL.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from replicator.drills.errors import ScenarioImpossible
from replicator.index.embedded_postgres import EmbeddedPostgres
from replicator.topology import EMBEDDED, Topology


def check_databases(topology: Topology) -> None:
    """Raise :class:`ScenarioImpossible` for a database that the drill must not stop."""
    for cluster in topology.clusters:
        if cluster.database != EMBEDDED or cluster.database_file is not None:
            raise ScenarioImpossible(
                f"{topology.path}: clusters.{cluster.name}.database: --scenario postgres-down stops the database, and "
                f"a server that the drill did not start is left alone; write `{EMBEDDED}`"
            )


class OwnDatabases:
    """Database servers of a topology that :func:`check_databases` accepts: one for each cluster."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._servers = {cluster.name: EmbeddedPostgres(cluster.data) for cluster in topology.clusters}
        self._urls: dict[str, str] = {}

    async def start(self) -> None:
        """Start all servers. Raise :class:`EmbeddedPostgresError` if one does not start."""
        for name, server in self._servers.items():
            url = await asyncio.to_thread(server.start)
            assert self._urls.setdefault(name, url) == url, "the worker knows the server by the URL of its first start"

    async def stop(self) -> None:
        for server in self._servers.values():
            await asyncio.to_thread(server.stop)

    def topology(self) -> Topology:
        """Return the topology with the servers' URLs; call it after the first :meth:`start`."""
        clusters = tuple(
            cluster.model_copy(update={"database": self._urls[cluster.name]}) for cluster in self._topology.clusters
        )
        return replace(self._topology, clusters=clusters)
