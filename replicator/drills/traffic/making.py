"""Which client libraries a drill can use for its producers and consumers, by the names of ``--client``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from replicator.apache.credentials import showing_of
from replicator.client.authentication import Showing
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
    """Raises :class:`DrillError` for a name that is not known, :class:`ClientMissing` if it is not installed."""
    if name not in CLIENTS:
        raise DrillError(f"--client is {' or '.join(CLIENTS)}, not {name!r}")
    if name == PULSAR:
        pulsar_client.load()


def make_clients(
    name: str, topology: Topology, active: ActiveCluster, out_dir: Path, access: ClientAccess, *, topics: int = 1
) -> DrillClients:
    """Those of that name, for the clusters of ``topology``; raises as :func:`check_client`. ``access`` is for workers;
    brokers are shown what the workers beside them show."""
    check_client(name)
    if name == OWN:
        return OwnClients({cluster.name: cluster.pulsar_url for cluster in topology.clusters}, access, topics=topics)
    urls: dict[str, str] = {}
    shown: dict[str, Showing] = {}
    for cluster in topology.clusters:
        brokers = cluster.apache
        urls[cluster.name] = cluster.pulsar_url if brokers is None else brokers.service_url
        shown[cluster.name] = access.showing() if brokers is None else showing_of(brokers)
    return PulsarClients(urls, active, out_dir / LOG, shown)
