"""Apache Pulsar brokers of a drill, with a worker beside each: started and killed as one, as what kills a region does.

``--kind pulsar`` has brokers in every cluster, ``--kind mixed`` in all but the second: what serves after the failover
is of the other kind then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

from replicator.drills.errors import DrillError
from replicator.drills.peers.jvm import PeerFailed, jars_missing
from replicator.drills.peers.pulsar.broker import TITLE, PulsarBroker
from replicator.drills.peers.together import started_together
from replicator.drills.workers import OwnWorkers
from replicator.operating.processes import WorkerFailed
from replicator.topology import Cluster, Topology
from replicator.topology.apache import EMBEDDED_KIND, PULSAR_KIND, ApacheSettings

MIXED: Final = "mixed"
KINDS: Final = (EMBEDDED_KIND, PULSAR_KIND, MIXED)
SETTINGS: Final[Mapping[str, str]] = {"brokerDeleteInactiveTopicsEnabled": "false", "webSocketServiceEnabled": "false"}
"""Settings of the brokers, beyond those of :mod:`replicator.drills.peers.pulsar.broker`."""


def check_brokers(kind: str) -> None:
    """Raise :class:`DrillError` if brokers cannot run here."""
    if why := jars_missing("pulsar", TITLE):
        raise DrillError(f"--kind {kind}: {why}")


def beside_brokers(cluster: Cluster) -> bool:
    """Return whether the clients of a cluster are connected to brokers."""
    return cluster.broker_origin is not None


def kind_of(topology: Topology) -> str:
    """Return the kind of the topology's clusters, one of :data:`KINDS`."""
    beside = [beside_brokers(cluster) for cluster in topology.clusters]
    return PULSAR_KIND if all(beside) else MIXED if any(beside) else EMBEDDED_KIND


class OwnBrokers:
    """Brokers of those clusters of ``topology`` that get some by ``kind``. Their files are under ``directory``."""

    def __init__(
        self, topology: Topology, kind: str, namespace: str, subscriptions: Sequence[str], directory: Path
    ) -> None:
        """Prepare the brokers. ``subscriptions`` are those whose state is replicated; those by which the drill itself
        reads are not among them.
        """
        names = [name for number, name in enumerate(topology.names) if kind == PULSAR_KIND or number != 1]
        self._namespace = namespace
        self._subscriptions = tuple(subscriptions)
        self._topology = topology
        self._brokers = {name: PulsarBroker(directory / f"broker-{name}", name, SETTINGS) for name in names}

    def topology(self) -> Topology:
        """Return the topology, with the clusters that have brokers set to be beside them."""
        return replace(self._topology, clusters=tuple(map(self._beside, self._topology.clusters)))

    def _beside(self, cluster: Cluster) -> Cluster:
        broker = self._brokers.get(cluster.name)
        if broker is None:
            return cluster
        places = {"service_url": broker.url, "admin_url": broker.admin_url}
        apache = ApacheSettings.model_validate({**places, "subscriptions": list(self._subscriptions)})
        return cluster.model_copy(update={"kind": PULSAR_KIND, "apache": apache})

    async def start(self) -> None:
        """Start all brokers, and make the drill's namespace. Raise :class:`DrillError`."""
        try:
            await started_together(*(broker.start for broker in self._brokers.values()))
            await asyncio.gather(*(asyncio.to_thread(self._make_namespace, each) for each in self._brokers.values()))
        except HTTPError as error:
            with error:
                raise DrillError(
                    f"the drill's Pulsar broker at {error.url} answered {error.code}: "
                    f"{error.read().decode(errors='replace')}; see its log in the drill's directory"
                ) from error
        except PeerFailed as error:
            raise DrillError(str(error)) from error

    def _make_namespace(self, broker: PulsarBroker) -> None:
        broker.admin("PUT", f"namespaces/{self._namespace}")
        kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
        broker.admin("POST", f"namespaces/{self._namespace}/retention", kept)

    async def kill(self, name: str) -> None:
        """Kill the cluster's broker, as ``kill -9`` does; do nothing if it has none."""
        if (broker := self._brokers.get(name)) is not None:
            await asyncio.to_thread(broker.kill)

    async def start_again(self, name: str) -> None:
        """Start the cluster's broker again. Raise :class:`WorkerFailed`."""
        if (broker := self._brokers.get(name)) is None:
            return
        try:
            await started_together(broker.start)
        except PeerFailed as error:
            raise WorkerFailed(
                f"the broker of {name} did not start again after the drill had killed it: {error}"
            ) from error

    async def stop(self) -> None:
        await asyncio.gather(*(asyncio.to_thread(broker.stop) for broker in self._brokers.values()))


class WorkersBesideBrokers(OwnWorkers):
    """Workers, each killed and started again with its brokers, which are started and stopped elsewhere."""

    def __init__(self, topology: Topology, files: Mapping[str, Path], logs: Path, brokers: OwnBrokers) -> None:
        super().__init__(topology, files, logs)
        self._brokers = brokers

    async def kill(self, name: str) -> None:
        self.running[name].clear()
        await asyncio.gather(self._brokers.kill(name), super().kill(name))

    async def start_again(self, name: str) -> None:
        await self._brokers.start_again(name)
        await super().start_again(name)
