"""Clusters on this machine for a benchmark: temporary data, free ports, real worker processes.

Of two, ``us-east`` is where messages are published, ``eu-west`` where they are copied to. The links go both ways, as in
the default topology, so that snapshots are taken too. :func:`mesh_topology` links any number of clusters.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final, Self

import aiohttp

from replicator.drills.ports import free_ports
from replicator.operating.processes import WorkerProcess, stop_left_postgres
from replicator.topology import Cluster, Link, Topology, default_topology, dump
from replicator.topology.apache import PULSAR_KIND, ApacheSettings
from replicator.topology.fields import START, PipelineSettings, StoreSettings
from replicator.topology.scalars import EMBEDDED
from replicator.topology.traces import TracesSettings

SOURCE: Final = "us-east"
DESTINATION: Final = "eu-west"


class Clusters:
    """Workers of all clusters of ``topology``. An async context manager; on leaving it they are stopped.

    ``directory`` belongs to the caller.
    """

    def __init__(self, directory: Path, topology: Topology) -> None:
        self._topology = replace(topology, store=StoreSettings(on_empty_store=START))  # runs begin on emptied logs
        file = directory / "topology.yaml"
        file.write_text(dump(self._topology))
        self._workers = {
            cluster.name: WorkerProcess(cluster.name, cluster.address, file, log_file=directory / f"{cluster.name}.log")
            for cluster in self._topology.clusters
        }
        self._session: aiohttp.ClientSession

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=30))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()
        await asyncio.gather(*(self.stop(cluster.name) for cluster in self._topology.clusters))

    @property
    def topology(self) -> Topology:
        return self._topology

    def url(self, cluster: str) -> str:
        return f"http://{self._topology.cluster(cluster).address}"

    def client_url(self, cluster: str) -> str:
        return self._topology.cluster(cluster).pulsar_url

    def data(self, cluster: str) -> Path:
        """Return a cluster's data directory. Open a store in it only while the worker does not run."""
        return self._topology.cluster(cluster).data

    def pid(self, cluster: str) -> int | None:
        return self._workers[cluster].pid

    def pids(self) -> list[int]:
        """Return the process ids of running workers and of their Postgres servers, which are not their children."""
        found = [worker.pid for worker in self._workers.values() if worker.running and worker.pid is not None]
        servers = (self.postgres_pid(cluster.name) for cluster in self._topology.clusters)
        return [*found, *(pid for pid in servers if pid is not None)]

    def postgres_pid(self, cluster: str) -> int | None:
        """Return the process id of a cluster's Postgres server; None if it does not run."""
        file = self.data(cluster).absolute() / "postgres" / "postmaster.pid"
        with suppress(OSError, ValueError, IndexError):
            pid = int(file.read_text().split()[0])
            return pid if pid > 0 else None  # a Postgres that makes its database writes a negative number
        return None

    async def start(self, *clusters: str) -> None:
        """Start workers of ``clusters`` that do not run; wait until they are ready. Raise :class:`WorkerFailed`."""
        starting = [self._workers[name] for name in clusters if not self._workers[name].running]
        for worker in starting:
            await worker.start()
        await asyncio.gather(*(worker.ready() for worker in starting))

    async def stop(self, cluster: str) -> None:
        worker = self._workers[cluster]
        if worker.running:
            await worker.stop()
        stop_left_postgres(worker, self._topology.cluster(cluster).data)

    async def empty(self, cluster: str) -> None:
        """Stop a worker and remove its log. Its database stays: making a new one takes longer than a run."""
        await self.stop(cluster)
        shutil.rmtree(self.data(cluster) / "log", ignore_errors=True)

    async def forget(self, cluster: str) -> None:
        """Stop a worker and remove its data directory, with its log and its database."""
        await self.stop(cluster)
        shutil.rmtree(self.data(cluster), ignore_errors=True)

    async def messages(self, cluster: str, topic: str) -> int:
        """Return the number of a topic's confirmed messages in a cluster."""
        async with self._session.get(f"{self.url(cluster)}/replication/v1/topics") as response:
            response.raise_for_status()
            answer = await response.json()
        return next((int(row["messages"]) for row in answer["topics"] if row["name"] == topic), 0)


class TwoClusters(Clusters):
    """Two clusters that are linked both ways.

    ``engine`` carries the links; the driver for ``spark`` is started by the benchmark, not by the workers. ``beside``
    has, by name of the cluster, settings of Apache Pulsar brokers beside which its worker runs.
    """

    def __init__(
        self,
        directory: Path,
        *,
        engine: str = EMBEDDED,
        traces: TracesSettings | None = None,
        beside: Mapping[str, ApacheSettings] = MappingProxyType({}),
    ) -> None:
        made = default_topology(directory, free_ports(2))
        clusters = tuple(
            cluster.model_copy(update={"kind": PULSAR_KIND, "apache": beside[cluster.name]})
            if cluster.name in beside
            else cluster
            for cluster in made.clusters
        )
        pipeline = PipelineSettings(engine=engine, driver="external")
        super().__init__(
            directory, replace(made, clusters=clusters, pipeline=pipeline, traces=traces or TracesSettings())
        )


def mesh_topology(directory: Path, count: int) -> Topology:
    """Return the topology of clusters ``c0``, ``c1`` and so on, with links between any two, both ways."""
    names = [f"c{number}" for number in range(count)]
    clusters = tuple(
        Cluster.model_validate({"name": name, "address": f"127.0.0.1:{port}", "data": str(directory / name)})
        for name, port in zip(names, free_ports(count), strict=True)
    )
    links = tuple(Link(one, other) for one, other in permutations(names, 2))
    return Topology(clusters, links, pipeline=PipelineSettings(engine=EMBEDDED, driver="external"))
