"""Client libraries for a drill's producers and consumers, by their names for ``--client``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from replicator.apache.credentials import showing_of
from replicator.client.authentication import ConnectionSecurity
from replicator.drills.errors import DrillError
from replicator.drills.traffic import pulsar_client
from replicator.drills.traffic.active import ActiveCluster
from replicator.drills.traffic.clients import DrillClients
from replicator.drills.traffic.own_client import OwnClients
from replicator.drills.traffic.pulsar_client import PulsarClients
from replicator.drills.traffic.showing import ClientAccess
from replicator.topology import Topology

OWN: Final = "own"
PULSAR: Final = "pulsar"
CLIENTS: Final = (OWN, PULSAR)
LOG: Final = "client.log"


def check_client(name: str) -> None:
    """Raise :class:`DrillError` for an unknown name, or :class:`ClientMissing` if the client is not installed."""
    if name not in CLIENTS:
        raise DrillError(f"--client must be {' or '.join(CLIENTS)}, not {name!r}")
    if name == PULSAR:
        pulsar_client.load()


def make_clients(
    name: str, topology: Topology, active: ActiveCluster, out_dir: Path, access: ClientAccess, *, topics: int = 1
) -> DrillClients:
    """Return the clients of that name for the clusters of ``topology``; raise like :func:`check_client`. ``access`` is
    for workers; brokers get the credentials of the workers beside them.
    """
    check_client(name)
    if name == OWN:
        return OwnClients({cluster.name: cluster.pulsar_url for cluster in topology.clusters}, access, topics=topics)
    urls: dict[str, str] = {}
    shown: dict[str, ConnectionSecurity] = {}
    for cluster in topology.clusters:
        brokers = cluster.apache
        urls[cluster.name] = cluster.pulsar_url if brokers is None else brokers.service_url
        shown[cluster.name] = access.showing() if brokers is None else showing_of(brokers)
    return PulsarClients(urls, active, out_dir / LOG, shown)
