"""Parts of a running worker. All of them exist from its start to its end.

Two are optional: the bridge, which only a worker beside Apache Pulsar has, and traces.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

from replicator.apache.bridge import ApacheBridge
from replicator.apache.errors import BridgeError
from replicator.apache.native_replication import NativeOrigins
from replicator.api.linked_sources import LinkedSources
from replicator.engine.engine import Engine
from replicator.engine.errors import NotAllowedError, Redirect
from replicator.engine.restored import restored_mark
from replicator.engine.staging.service import StagingService
from replicator.failover.service import FailoverService
from replicator.index.database import Database
from replicator.index.rebuild import IndexRebuild
from replicator.index.writer import IndexWriter
from replicator.operating.binding import WorkerError
from replicator.peering.claim_checker import ClaimChecker
from replicator.running.supervisor import Supervisor
from replicator.security.asking import worker_url
from replicator.sync.service import SubscriptionSync
from replicator.sync.use_elsewhere import RemoteUse
from replicator.topology import Cluster, Topology
from replicator.worker.asking_peers import PeerHighWaters
from replicator.worker.mending import BlockRepair
from replicator.worker.pipeline_driver import PipelineDriver
from replicator.worker.running_links import RunningLinks
from replicator.worker.settings_teller import SettingsPublisher
from replicator.worker.store_watch import StoreWatch
from replicator.worker.taking_states import StateRecovery
from replicator.worker.tracing import WorkerTraces
from replicator.worker.watchdog import Watchdog

MARKS_ELSEWHERE: Final = "marks elsewhere"
"""The row of ``meta`` with the first answers of other clusters about messages of this cluster's brokers."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of the worker of one cluster."""

    supervisor: Supervisor
    database: Database
    engine: Engine
    index: IndexWriter
    rebuild: IndexRebuild
    sync: SubscriptionSync
    links: RunningLinks
    failover: FailoverService
    staging: StagingService
    driver: PipelineDriver
    sources: LinkedSources
    mending: BlockRepair
    use_elsewhere: RemoteUse
    watchdog: Watchdog
    settings: SettingsPublisher
    states: StateRecovery
    stores: StoreWatch
    claim_checker: ClaimChecker
    bridge: ApacheBridge | None = None
    traces: WorkerTraces | None = None

    @property
    def cluster(self) -> str:
        return self.engine.cluster

    def link_opened(self, source: str) -> None:
        """Tell the parts that the link from ``source`` to this cluster has opened a stream."""
        self.links.opened(source)
        self.failover.link_opened(source)
        self.settings.opened(source)


def service_urls(topology: Topology) -> Mapping[str, Redirect]:
    """Return the URLs at which clients of the binary protocol connect to each cluster."""
    return {cluster.name: Redirect(cluster.pulsar_url, cluster.pulsar_tls_url) for cluster in topology.clusters}


def client_origins(topology: Topology) -> Mapping[str, str]:
    """Return, for each cluster, the origin of messages that clients publish there."""
    return {name: topology.origin_of_clients(name) for name in topology.names}


def other_workers(topology: Topology, name: str) -> Mapping[str, str]:
    """Return the URLs of the other clusters' workers."""
    return {each.name: worker_url(each.address) for each in topology.clusters if each.name != name}


def other_addresses(topology: Topology, name: str) -> Mapping[str, str]:
    """Return the HTTP addresses of the other clusters, by name."""
    return {cluster: at for cluster, at in addresses(topology).items() if cluster != name}


def addresses(topology: Topology) -> Mapping[str, str]:
    """Return the HTTP address of each cluster."""
    return {cluster.name: cluster.address for cluster in topology.clusters}


def bridge_of(topology: Topology, cluster: Cluster, engine: Engine) -> ApacheBridge | None:
    """Return the bridge of a worker beside Apache Pulsar, or None. Such a worker serves no clients; the brokers do.

    Raises :class:`WorkerError` if the brokers' settings cannot be used.
    """
    if cluster.apache is None or cluster.broker_origin is None:
        return None
    engine.admission.clients_elsewhere = NotAllowedError(
        f"the worker of {cluster.name} serves no clients: they use the Apache Pulsar brokers that it runs beside, at "
        f"{cluster.apache.service_url}"
    )
    restored = restored_mark(engine.store)
    elsewhere = PeerHighWaters(
        other_addresses(topology, cluster.name),
        cluster.broker_origin,
        engine.store.meta(MARKS_ELSEWHERE),
        partial(engine.remember, MARKS_ELSEWHERE),
        restore_id="" if restored is None else restored.restore_id,
    )
    try:
        natives = NativeOrigins(topology, cluster.name)
        return ApacheBridge(engine, cluster.apache, cluster.broker_origin, elsewhere.of, natives)
    except BridgeError as error:
        raise WorkerError(
            f"clusters.{cluster.name}.apache: the credentials or certificates for the brokers cannot be used: {error}"
        ) from None
