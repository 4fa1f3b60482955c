"""The replicator beside Apache Pulsar brokers under drill: clusters of ``kind: pulsar``, and embedded ones among them.

What differs from a drill of embedded clusters (:mod:`replicator.drills.systems.own`):

1. Clients are Pulsar's official ones, at the brokers. Brokers tell nobody where a message was first published, so
   copies are seen by a reader of the drill's own, by the numbers of messages, as with systems of others.
2. What is acknowledged at brokers is read from the cursors that they show.
3. What the brokers of a cluster have counts, and not what its worker has of it: of copies, what a reader there saw; of
   subscriptions, what the brokers show. So a drill begins to measure, and is over, when that is in step.
4. Workers and brokers have positions of their own, so ``replicator verify`` does not say what lies at brokers: it does
   not run. That everything arrived, once and in order, is seen by the drill's consumers.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from typing import Any, ClassVar, Final

from replicator.apache.admin import BrokerAdmin
from replicator.apache.broker_cursor import parse_cursor
from replicator.apache.errors import BridgeError
from replicator.apache.names import reading_subscription
from replicator.apache.shown import TopicInternals
from replicator.drills.brokers import beside_brokers
from replicator.drills.systems.own import OwnSystem
from replicator.drills.systems.seen import CopyReader, high_water, high_water_of_clients
from replicator.drills.traffic.ack_news import AckNews
from replicator.drills.traffic.ack_watcher import AckWatcher
from replicator.drills.traffic.active import POLL_SECONDS, Drill
from replicator.topology import Cluster
from replicator.topology.apache import ApacheSettings
from snapshots.position import Position
from snapshots.position_set import PositionSet

LACKS: Final = ("verify", "subscription_updates")


class BesideSystem(OwnSystem):
    """See :class:`~replicator.drills.systems.system.System`."""

    lacks: ClassVar[tuple[str, ...]] = LACKS

    def _starts_slowly(self) -> bool:
        """Return True: bridges find a topic at brokers, and make it at others, only when it has messages."""
        return True

    def watchers(self, drill: Drill) -> Sequence[Coroutine[Any, Any, None]]:
        found: list[Coroutine[Any, Any, None]] = []
        for name in self.cast.pair:
            running, cluster = self.running[name], self._topology.cluster(name)
            found.append(CopyReader(drill, name, drill.clients, running).run())
            if cluster.apache is not None:
                found.append(CursorWatcher(drill, name, cluster.apache, running).run())
            else:
                found.append(AckWatcher(drill, name, cluster.url, running).run())
        return found

    async def high_waters(self, drill: Drill, name: str, *, origin: str) -> Sequence[Position]:
        return [high_water(drill.observations, name, origin)]

    async def last_high_waters(self, drill: Drill, name: str, *, origin: str) -> Sequence[Position]:
        return [await high_water_of_clients(drill, name, origin)]

    async def unsettled_work(self, drill: Drill) -> str | None:
        left = await super().unsettled_work(drill)
        if left is not None:
            return left
        names = [each.name for each in drill.observations.subscriptions]
        serving = drill.active.name
        for name in sorted({serving} | self._topology.reached_from(serving, self.topics[0])):
            if (cluster := self._topology.cluster(name)).apache is not None:
                left = await self._left_at_brokers(cluster, names) or self._uncopied(drill, name)
                if left is not None:
                    return left
        return None

    async def _left_at_brokers(self, cluster: Cluster, subscriptions: Sequence[str]) -> str | None:
        assert cluster.apache is not None
        try:
            async with BrokerAdmin(cluster.apache) as admin:
                internals = await admin.internals(self.topics[0])
        except BridgeError as error:
            return f"{cluster.name}: {error}"
        return left_at_brokers(cluster.name, internals, [reading_subscription(cluster.name), *subscriptions])

    def _uncopied(self, drill: Drill, name: str) -> str | None:
        """Return in words which messages the reader at the brokers of ``name`` has not seen yet, or None."""
        for origin in sorted(self._topology.reaching(name, self.topics[0]) & set(self.cast.pair)):
            if high_water(drill.observations, name, origin) < high_water(drill.observations, origin, origin):
                return f"messages of {origin} are not all at the brokers of {name}"
        return None

    async def _verified(self) -> None:
        return None

    def _more(self) -> dict[str, Any]:
        return {"kinds": {each.name: _kind(each) for each in self._topology.clusters}}


def _kind(cluster: Cluster) -> str:
    return f"{cluster.kind}, a worker beside a broker" if beside_brokers(cluster) else cluster.kind


def left_at_brokers(cluster: str, internals: TopicInternals, subscriptions: Sequence[str]) -> str | None:
    """Return in words which part of a topic is not acknowledged at the brokers of a cluster, or None. Pure."""
    for name in subscriptions:
        if name not in internals.cursors:
            return f"{name} is missing at the brokers of {cluster}"
        cursor = parse_cursor(internals.cursors[name], internals.last_entries, name)
        entries = PositionSet()
        for ledger, last in internals.last_entries.items():
            if last >= 0:
                entries.add_range(ledger, 0, last)
        if left := len(cursor.not_among(entries)):
            return f"{name} has a backlog of {left:,} entries at the brokers of {cluster}"
    return None


class CursorWatcher:
    """Records what is acknowledged at the brokers of a cluster, while clients are elsewhere."""

    def __init__(self, drill: Drill, cluster: str, settings: ApacheSettings, running: asyncio.Event) -> None:
        self._drill = drill
        self._cluster = cluster
        self._settings = settings
        self._running = running

    async def run(self) -> None:
        """Record acknowledgements until nothing more is measured from them."""
        drill = self._drill
        news = {subscription.name: AckNews() for subscription in drill.observations.subscriptions}
        async with BrokerAdmin(self._settings) as admin:
            while drill.watching_sync and not drill.finished.is_set():
                await self._running.wait()
                if drill.active.name != self._cluster:
                    await self._look(admin, news)
                await asyncio.sleep(POLL_SECONDS)

    async def _look(self, admin: BrokerAdmin, news: dict[str, AckNews]) -> None:
        try:
            internals = await admin.internals(self._drill.topic)
        except BridgeError:  # it is not there yet, or was killed
            return
        now = time.monotonic()
        for name in news.keys() & internals.cursors.keys():
            cursor = parse_cursor(internals.cursors[name], internals.last_entries, name)
            state = {
                "generation": 0,
                "mark_delete": str(cursor.mark_delete),
                "individually_deleted": [(str(first), str(last)) for first, last in cursor.beyond.runs()],
                "batch_acks": {},
            }
            for first, last in news[name].news(state):
                self._drill.observations.covered(name, self._cluster, first, last, now)
