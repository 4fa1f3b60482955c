"""Two real Apache Pulsar clusters with Pulsar's own geo-replication and replicated subscriptions, under drill.

Each cluster is one process: broker, bookie and metadata store. Both know each other, and one namespace is replicated to
both. Producers and consumers are Pulsar's official client, and consumers ask for a replicated subscription. Links go
both ways, as Pulsar's snapshots need it. What a subscription has acknowledged is polled from its internal stats.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError

from replicator.apache.broker_cursor import parse_ranges
from replicator.drills.errors import DrillError
from replicator.drills.peers.jvm import PeerFailed, jars_missing, version_of
from replicator.drills.peers.pulsar.broker import SETTINGS, TITLE, PulsarBroker
from replicator.drills.peers.together import started_together
from replicator.drills.subscriptions import ALL_KINDS
from replicator.drills.systems.peer import LACKS, PRIMARY, SECONDARY, PeerClusters, PeerKind
from replicator.drills.systems.seen import CopyReader
from replicator.drills.systems.system import Findings, System
from replicator.drills.traffic import pulsar_client
from replicator.drills.traffic.ack_news import AckNews
from replicator.drills.traffic.active import POLL_SECONDS, ActiveCluster, Drill
from replicator.drills.traffic.clients import DrillClients
from replicator.drills.traffic.making import LOG, PULSAR
from replicator.drills.traffic.pulsar_client import PulsarClients

NAME: Final = "pulsar-geo"
NAMESPACE: Final = "drill/default"
TENANT: Final = NAMESPACE.partition("/")[0]
CONFLICT: Final = 409
LINKED_SECONDS_MAX: Final = 60.0
LOOK_SECONDS: Final = 0.1

TUNED: Final[Mapping[str, str]] = {
    # As often as makes a difference: each is a marker in both topics, and an answer of each cluster.
    "replicatedSubscriptionsSnapshotFrequencyMillis": "1000",
    # Three times the default: a subscription whose mark-delete position is behind still finds one.
    "replicatedSubscriptionsSnapshotMaxCachedPerSubscription": "30",
    # Ten times and five times the defaults: what a replicator has on its way, and reads at once.
    "replicationProducerQueueSize": "10000",
    "dispatcherMaxReadBatchSize": "500",
    "journalSyncData": "true",
    "brokerDeleteInactiveTopicsEnabled": "false",
    "webSocketServiceEnabled": "false",
}
JAVA: Final = (
    "-Xms1g",
    "-Xmx1g",
    "-XX:MaxDirectMemorySize=2g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=10",
    "-XX:+ParallelRefProcEnabled",
)


def individually_deleted(text: str) -> list[tuple[str, str]]:
    """Return the runs in a cursor's internal stats. If a run spans ledgers, return only its part in the last one."""
    return [(str(first), str(last)) for first, last in parse_ranges(text, {}).runs()]


class PulsarGeo(PeerClusters):
    """See :class:`~replicator.drills.systems.system.System`."""

    def __init__(self, kind: PeerKind, brokers: Mapping[str, PulsarBroker], out_dir: Path) -> None:
        topic = f"persistent://{NAMESPACE}/replicator-drill-{time.time_ns() // 1_000_000}"
        super().__init__(
            kind,
            topic,
            start={name: broker.start for name, broker in brokers.items()},
            kill={name: broker.kill for name, broker in brokers.items()},
        )
        self._brokers = brokers
        self._out_dir = out_dir
        self._path = topic.replace("://", "/")

    def clients(self, active: ActiveCluster) -> DrillClients:
        urls = {name: broker.url for name, broker in self._brokers.items()}
        return PulsarClients(urls, active, self._out_dir / LOG)

    def watchers(self, drill: Drill) -> Sequence[Coroutine[Any, Any, None]]:
        return [
            watcher
            for name in self.clusters
            for watcher in (
                CopyReader(drill, name, drill.clients, self.running[name]).run(),
                self._watch_acknowledgements(drill, name),
            )
        ]

    async def findings(self) -> Findings:
        return Findings(
            system=NAME,
            engine="geo-replication",
            sync="mark-delete",
            lacks=LACKS,
            configuration={
                "versions": {"Apache Pulsar": version_of("pulsar"), pulsar_client.PACKAGE: _client_version()},
                **self.kind.configuration,
            },
        )

    async def link(self) -> None:
        """Register each cluster in the other, make the namespace and the topic, and wait until it is replicated."""
        await asyncio.to_thread(self._make_namespaces)
        await asyncio.to_thread(self._make_topic)
        deadline = time.monotonic() + LINKED_SECONDS_MAX
        for name, other in (self.clusters, self.clusters[::-1]):
            while not await asyncio.to_thread(self._is_linked, name, other):
                if time.monotonic() > deadline:
                    raise PeerFailed(
                        f"Pulsar's geo-replication from {name} to {other} had not started after "
                        f"{LINKED_SECONDS_MAX:.0f} s; the log of {name}'s broker "
                        f"ends:\n{self._brokers[name].log_tail()}"
                    )
                await asyncio.sleep(LOOK_SECONDS)

    def _make_namespaces(self) -> None:
        for name, broker in self._brokers.items():
            for other, remote in self._brokers.items():
                if other != name:
                    urls = {"serviceUrl": remote.admin_url, "brokerServiceUrl": remote.url}
                    broker.admin("PUT", f"clusters/{other}", urls)
            broker.admin("PUT", f"tenants/{TENANT}", {"adminRoles": [], "allowedClusters": list(self.clusters)})
            broker.admin("PUT", f"namespaces/{NAMESPACE}", {"replication_clusters": list(self.clusters)})
            kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            broker.admin("POST", f"namespaces/{NAMESPACE}/retention", kept)

    def _make_topic(self) -> None:
        for broker in self._brokers.values():
            try:
                broker.admin("PUT", self._path)
            except HTTPError as error:
                with error:
                    if error.code != CONFLICT:  # the other one's replicator has made it already
                        raise

    def _is_linked(self, name: str, other: str) -> bool:
        stats = self._ask(name, "stats")
        return bool(stats is not None and stats["replication"].get(other, {}).get("connected"))

    def _ask(self, name: str, what: str) -> Any:
        """Ask a cluster; return None if it does not answer, or does not have the topic."""
        try:
            return self._brokers[name].admin("GET", f"{self._path}/{what}")
        except HTTPError as error:
            error.close()
            return None
        except (OSError, ValueError):
            return None

    async def _watch_acknowledgements(self, drill: Drill, name: str) -> None:
        """Watch acknowledgements until nothing more is measured from them."""
        news = {subscription.name: AckNews() for subscription in drill.observations.subscriptions}
        while drill.watching_sync and not drill.finished.is_set():
            await self.running[name].wait()
            if drill.active.name != name:
                stats = await asyncio.to_thread(self._ask, name, "internalStats")
                now = time.monotonic()
                for subscription, cursor in ((stats or {}).get("cursors") or {}).items():
                    if subscription in news:
                        for first, last in news[subscription].news(_state(cursor)):
                            drill.observations.covered(subscription, name, first, last, now)
            await asyncio.sleep(POLL_SECONDS)


def _state(cursor: Mapping[str, Any]) -> dict[str, Any]:
    """Return a cursor's internal stats in the form of :class:`AckNews`. They do not show acknowledgements inside
    batches.
    """
    return {
        "generation": 0,
        "mark_delete": cursor["markDeletePosition"],
        "individually_deleted": individually_deleted(cursor["individuallyDeletedMessages"]),
        "batch_acks": {},
    }


def _client_version() -> str:
    return version(pulsar_client.PACKAGE)


def _check() -> None:
    why = jars_missing("pulsar", TITLE)
    if why is not None:
        raise DrillError(f"--system {NAME}: {why}")
    pulsar_client.load(f"--system {NAME}")


@asynccontextmanager
async def _started(kind: PeerKind, directory: Path) -> AsyncIterator[System]:
    brokers = {name: PulsarBroker(directory / name, name, TUNED, JAVA) for name in (PRIMARY, SECONDARY)}
    try:
        await started_together(*(broker.start for broker in brokers.values()))
        system = PulsarGeo(kind, brokers, directory.parent)
        try:
            await system.link()
        except HTTPError as error:
            with error:
                raise PeerFailed(
                    f"the drill's Pulsar broker at {error.url} answered {error.code}: "
                    f"{error.read().decode(errors='replace')}; see its log in {directory}"
                ) from error
        yield system
    finally:
        await asyncio.gather(*(asyncio.to_thread(broker.stop) for broker in brokers.values()))


PULSAR_GEO: Final = PeerKind(
    name=NAME,
    kinds=ALL_KINDS,
    client=PULSAR,
    configuration={
        "broker": {**SETTINGS, **TUNED},
        "JVM": {"options": " ".join(JAVA)},
        "namespace": {"replication_clusters": f"{PRIMARY}, {SECONDARY}", "retention": "all"},
        "consumers": {"replicate_subscription_state_enabled": "true"},
    },
    both_ways=True,
    check=_check,
    started=_started,
)
