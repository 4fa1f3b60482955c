"""Two Apache Pulsar clusters with a worker of ours beside each (``kind: pulsar``), for group ``peers``.

1. The backlog is published at A as for Pulsar's own geo-replication: the same entries, brokers with the same settings.
2. Before each copy both workers end; their data, the bridge's subscription at A and the topic at B are deleted. Brokers
   run on. Then both workers start with nothing, and A's bridge reads from the first entry. B's ledger says what B has.
   If A's worker is ready first, the clock already runs while it reads.
3. After the last copy the workers go on, for the lag.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final
from urllib.error import HTTPError

import aiohttp

from bench.arrival import Arrival, arrival_during
from bench.cases import Case
from bench.clusters import DESTINATION, SOURCE, TwoClusters
from bench.disk import settle
from bench.lag import TOPIC, Lag, lag_between
from bench.network import publish_rates
from bench.pairs import Pair, System
from bench.pulsar_pair import (
    BACKLOG_NAMESPACE,
    JAVA,
    LOOK_EVERY_SECONDS,
    SETTINGS,
    check_messages,
    entries,
    missing,
    topic_path,
)
from replicator.apache.names import reading_subscription
from replicator.drills.peers.pulsar.broker import PulsarBroker
from replicator.topology.apache import ApacheSettings

HEAD_START: Final = 0.02


class BridgePair:
    """:class:`bench.pairs.Pair` of two Apache Pulsar clusters with a worker of ours beside each."""

    def __init__(self, brokers: Mapping[str, PulsarBroker], clusters: TwoClusters) -> None:
        self._brokers = brokers
        self._clusters = clusters
        self._entries = 0

    def pids(self) -> Iterable[int]:
        brokers = [broker.pid for broker in self._brokers.values() if broker.pid is not None]
        return [*brokers, *self._clusters.pids()]

    def make_namespaces(self) -> None:
        for broker in self._brokers.values():
            broker.admin("PUT", "tenants/bench", {"adminRoles": [], "allowedClusters": [broker.cluster]})
            broker.admin("PUT", f"namespaces/{BACKLOG_NAMESPACE}", {"replication_clusters": [broker.cluster]})
            kept = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
            broker.admin("POST", f"namespaces/{BACKLOG_NAMESPACE}/retention", kept)

    async def fill(self, case: Case) -> None:
        await publish_rates(self._brokers[SOURCE].url, case)
        self._entries = await entries(self._brokers[SOURCE], case)
        check_messages(self._brokers[SOURCE], case)

    async def copy(self, case: Case) -> Arrival:
        await self._forget(case)
        await settle()
        there = partial(self._arrived, case)
        arrived = await arrival_during(
            self._clusters.start(SOURCE, DESTINATION), there, self._entries, LOOK_EVERY_SECONDS
        )
        check_messages(self._brokers[DESTINATION], case)
        return arrived

    async def _arrived(self, case: Case) -> int:
        """Return the number of entries at B; 1 if B has none, but A's worker has read over :data:`HEAD_START` of all.

        That 1 ends the time in which the destination counts as empty.
        """
        found = await entries(self._brokers[DESTINATION], case)
        if found:
            return found
        read = 0
        with suppress(aiohttp.ClientError):  # it does not answer before it is ready
            read = await self._clusters.messages(SOURCE, case.topic)
        return int(read > HEAD_START * case.messages)

    async def lag(self) -> Lag:
        return await lag_between(self._brokers[SOURCE].url, self._brokers[DESTINATION].url, TOPIC)

    async def _forget(self, case: Case) -> None:
        for name in (SOURCE, DESTINATION):
            await self._clusters.forget(name)
        deleted = (
            (DESTINATION, f"{topic_path(case)}?force=true"),
            (SOURCE, f"{topic_path(case)}/subscription/{reading_subscription(SOURCE)}?force=true"),
        )
        for name, what in deleted:
            with suppress(HTTPError):  # before the first copy it is not there
                self._brokers[name].admin("DELETE", what)


@asynccontextmanager
async def _started(directory: Path) -> AsyncIterator[Pair]:
    brokers = {name: PulsarBroker(directory / f"broker-{name}", name, SETTINGS, JAVA) for name in (SOURCE, DESTINATION)}
    try:
        for broker in brokers.values():
            broker.start()  # in between nothing else runs in this loop
        beside = {
            name: ApacheSettings(service_url=broker.url, admin_url=broker.admin_url) for name, broker in brokers.items()
        }
        async with TwoClusters(directory, beside=beside) as clusters:
            pair = BridgePair(brokers, clusters)
            pair.make_namespaces()
            yield pair
    finally:
        for broker in brokers.values():
            broker.stop()


BRIDGE: Final = System(
    "bridge",
    "replicator beside two Apache Pulsar 4.0.0, journal synced",
    "synced in both brokers, and by both workers: each group of the journal",
    missing,
    _started,
    ours=True,
)
