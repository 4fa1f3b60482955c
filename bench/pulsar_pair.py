"""Two Apache Pulsar clusters of a process each, with Pulsar's own geo-replication, for group ``peers``.

1. The backlog is published at A with our own client, so in the same entries as ours. Its namespace is A's alone.
2. For a copy, B is added to the clusters of the namespace: the broker's replicator begins with the first entry. What B
   has is asked of its ledger, in entries, which the replicator passes on whole.
3. Then B is taken away again and its topic deleted. So brokers are warm from the second copy on.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.error import HTTPError

from bench.arrival import Arrival, NotArrived, arrival
from bench.cases import Case
from bench.disk import settle
from bench.lag import Lag, lag_between
from bench.network import publish_rates
from bench.pairs import Pair, System
from replicator.drills.peers.jvm import PeerFailed, jars_missing
from replicator.drills.peers.pulsar.broker import TITLE, PulsarBroker

SOURCE: Final = "a"
DESTINATION: Final = "b"
BACKLOG_NAMESPACE: Final = "bench/default"
LAG_NAMESPACE: Final = "bench/lag"
LAG_TOPIC: Final = f"persistent://{LAG_NAMESPACE}/lag"
LOOK_EVERY_SECONDS: Final = 0.02
"""A look is a request to the admin paths, which costs the broker a millisecond or two; copies take seconds."""
CHANGE_SECONDS_MAX: Final = 60.0
"""Limit of the time until a change of policy takes effect."""
NOT_FOUND: Final = 404

SETTINGS: Final[Mapping[str, str]] = {
    # A replicator that is new begins with the oldest entry: a backlog is what is to be copied. That is "earliest"; this
    # version compares it with the earliest message's id, though.
    "replicationStartAt": "-1:-1:-1",
    # What a replicator has on its way, and reads at once: ten times and five times the defaults.
    "replicationProducerQueueSize": "10000",
    "dispatcherMaxReadBatchSize": "500",
    "dispatcherMaxReadSizeBytes": str(32 * 1024 * 1024),
    # Topics are deleted between copies.
    "brokerDeleteInactiveTopicsEnabled": "false",
    "webSocketServiceEnabled": "false",
}
"""Broker settings beyond those of ``replicator/drills/peers/pulsar/broker.py``; the journal's are added."""
JAVA: Final = (
    "-Xms2g",
    "-Xmx2g",
    "-XX:MaxDirectMemorySize=4g",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=10",
    "-XX:+ParallelRefProcEnabled",
    "-XX:+DisableExplicitGC",
    "-Dio.netty.recycler.maxCapacityPerThread=4096",
)
"""Memory and collector as the distribution's ``pulsar_env.sh`` sets them."""


class PulsarPair:
    """:class:`bench.pairs.Pair` of two Pulsar clusters with Pulsar's own geo-replication."""

    def __init__(self, source: PulsarBroker, destination: PulsarBroker) -> None:
        self._source = source
        self._destination = destination
        self._entries = 0

    def pids(self) -> Iterable[int]:
        return [broker.pid for broker in (self._source, self._destination) if broker.pid is not None]

    def link(self) -> None:
        """Register B at A, and create the namespaces of both. Replication goes from A to B only.

        It goes at first only for the lag's namespace. The backlog's is local until :meth:`copy` switches it on.
        """
        remote = {"serviceUrl": self._destination.admin_url, "brokerServiceUrl": self._destination.url}
        self._source.admin("PUT", f"clusters/{DESTINATION}", remote)
        for broker, clusters in ((self._source, [SOURCE, DESTINATION]), (self._destination, [DESTINATION])):
            broker.admin("PUT", "tenants/bench", {"adminRoles": [], "allowedClusters": clusters})
            for namespace, its_clusters in ((BACKLOG_NAMESPACE, [broker.cluster]), (LAG_NAMESPACE, clusters)):
                broker.admin("PUT", f"namespaces/{namespace}", {"replication_clusters": its_clusters})
                kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
                broker.admin("POST", f"namespaces/{namespace}/retention", kept)

    async def fill(self, case: Case) -> None:
        await publish_rates(self._source.url, case)
        self._entries = await entries(self._source, case)
        check_messages(self._source, case)

    async def copy(self, case: Case) -> Arrival:
        await settle()
        self._replicate_to(SOURCE, DESTINATION)
        arrived = await arrival(partial(entries, self._destination, case), self._entries, LOOK_EVERY_SECONDS)
        check_messages(self._destination, case)
        self._replicate_to(SOURCE)
        await self._forget(case)
        return arrived

    async def lag(self) -> Lag:
        return await lag_between(self._source.url, self._destination.url, LAG_TOPIC)

    def _replicate_to(self, *clusters: str) -> None:
        self._source.admin("POST", f"namespaces/{BACKLOG_NAMESPACE}/replication", list(clusters))

    async def _forget(self, case: Case) -> None:
        """Wait until A's replicator, which would make B's topic again, has ended; then delete that topic."""
        async with asyncio.timeout(CHANGE_SECONDS_MAX):
            while self._source.admin("GET", f"{topic_path(case)}/stats")["replication"]:  # noqa: ASYNC110 - another process
                await asyncio.sleep(0.1)
            while _of_topic(self._destination, case, "stats") is not None:
                try:
                    self._destination.admin("DELETE", f"{topic_path(case)}?force=true")
                except HTTPError as error:
                    error.close()  # it is still in use, or gone
                await asyncio.sleep(0.1)


def topic_path(case: Case) -> str:
    return case.topic.replace("://", "/")


def _of_topic(broker: PulsarBroker, case: Case, what: str) -> Any:
    """Return the JSON of a topic's admin path ``what``, such as ``stats``; None if the broker has no such topic."""
    try:
        return broker.admin("GET", f"{topic_path(case)}/{what}")
    except HTTPError as error:
        with error:
            if error.code != NOT_FOUND:
                raise
        return None


async def entries(broker: PulsarBroker, case: Case) -> int:
    """Return the number of entries of the case's topic that the broker has stored; 0 if it has no such topic."""
    stats = _of_topic(broker, case, "internalStats")
    return 0 if stats is None else int(stats["numberOfEntries"])


def check_messages(broker: PulsarBroker, case: Case) -> None:
    """Raise :class:`NotArrived` unless the broker counted as many messages as the case has."""
    messages = int(broker.admin("GET", f"{topic_path(case)}/stats")["msgInCounter"])
    if messages != case.messages:
        raise NotArrived(f"{broker.cluster} has all entries, but {messages} of {case.messages} messages")


def missing() -> str | None:
    """Return why Pulsar brokers cannot run here; None if they can."""
    return jars_missing("pulsar", TITLE)


@asynccontextmanager
async def _started(directory: Path, *, synced: bool) -> AsyncIterator[Pair]:
    settings = {**SETTINGS, "journalSyncData": str(synced).lower()}
    brokers = [PulsarBroker(directory / name, name, settings, JAVA) for name in (SOURCE, DESTINATION)]
    try:
        for broker in brokers:
            broker.start()  # in between nothing else runs in this loop
        pair = PulsarPair(*brokers)
        try:
            pair.link()
        except HTTPError as error:
            with error:
                raise PeerFailed(f"{error.url}: {error.code} {error.read().decode(errors='replace')}") from error
        yield pair
    finally:
        for broker in brokers:
            broker.stop()


SYSTEMS: Final = (
    System(
        "pulsar-synced",
        "Apache Pulsar 4.0.0, geo-replication, journal synced",
        "synced in both clusters: each group of the journal",
        missing,
        partial(_started, synced=True),
    ),
    System(
        "pulsar",
        "Apache Pulsar 4.0.0, geo-replication, journal not synced",
        "in the page cache of both clusters: a power cut loses it",
        missing,
        partial(_started, synced=False),
    ),
)
