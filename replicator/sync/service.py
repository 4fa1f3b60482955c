"""Subscription sync of one worker: a :class:`~replicator.sync.topic_sync.TopicSync` for each topic, and what they
share.

It keeps nothing that cannot be found in the log again (invariant 9): mappings come back from the local snapshot
markers, and markers that were not handled before a crash are handled after it.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from typing import Any, Final

from replicator.engine.engine import Engine
from replicator.engine.log.writer import AppendedBlock
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.topic_listener import TopicListener
from replicator.running.pacing import Pace
from replicator.sync.index import Index
from replicator.sync.marker_log import RESTORE_MARKERS_MAX, Counters, MarkerLog
from replicator.sync.routes import DirectRoutes, Routes, TopologyRoutes
from replicator.sync.shared import Shared
from replicator.sync.topic_sync import TopicSync
from replicator.topology import Topology
from snapshots.ack_vector import AckVector
from snapshots.actions import ApplyUpdate, ControllerSettings, ControllerStats
from snapshots.mapping import SnapshotMapping

ALL_MARKERS_MAX: Final = 500_000
"""Most markers that a start reads back from the logs of all topics, which takes half a minute. A cluster that knows
fewer mappings makes them anew."""
KEPT_LIVES_MAX: Final = 100
"""Limit of topics with earlier lives that the status names."""


class SubscriptionSync(TopicListener[Topic]):
    """Keeps the replicated subscriptions of all topics of ``engine`` in step with other clusters.

    ``routes`` has the links to other clusters. Without it there is a link to each of ``peers`` and one from each of
    ``reachable_origins``. With ``exact`` acknowledgements travel by identity, otherwise only mark-delete positions.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        peers: Collection[str] = (),
        reachable_origins: Collection[str] = (),
        routes: Routes | None = None,
        settings: ControllerSettings,
        index: Index,
        exact: bool = True,
    ) -> None:
        incarnation = uuid.uuid4().hex[:12]
        serial = count(1)
        self._shared = Shared(
            engine,
            index,
            routes or DirectRoutes(peers, reachable_origins),
            settings,
            exact,
            next_id=lambda: f"{engine.cluster}-{incarnation}-{next(serial)}",
        )
        self._topics: dict[str, TopicSync] = {}
        self._unresumed: dict[str, Collection[str]] = {}
        """Topics whose start is not over, each with the names whose deletion is not announced in the log."""
        self._passed_over: dict[str, dict[str, Subscription]] = {}
        """By topic and name, subscriptions that changed while their topic was to be deleted."""

    @property
    def settings(self) -> ControllerSettings:
        """Sync settings of the present topology."""
        return self._shared.settings

    @property
    def counted(self) -> Counters:
        """Counters of failures, summed over all topics."""
        return self._shared.counted

    @property
    def is_idle(self) -> bool:
        """Whether no topic has anything to announce or merge, now or later."""
        return all(sync.is_idle for sync in self._topics.values())

    async def start(self) -> None:
        """Start the sync of every topic: read back what was known, and handle what was left unhandled.

        Topics with few markers come first, so that the others can share what is left of the limit. Other tasks run
        meanwhile. An event of a topic whose turn has not come is handled after what was left unhandled of it. Until
        then the topic announces nothing.
        """
        engine, routes = self._shared.engine, self._shared.routes
        starting = engine.loaded.starting
        starting.brought = lambda topic: self._shared.routes.origins(topic)
        starting.merge = lambda topic, subscription, said: self._topics[topic].merge_start(subscription, said)
        pace, left = Pace(engine.turns, engine.turns.own), ALL_MARKERS_MAX
        topics = sorted(engine.topics(), key=lambda topic: len(topic.log.markers))
        unresumed: dict[str, Collection[str]] = {}
        for number, topic in enumerate(topics):
            await pace.step()
            markers_max = min(RESTORE_MARKERS_MAX, left // (len(topics) - number))
            recalled = await MarkerLog(topic, self.counted).recall(
                self._shared.peers(topic), partial(routes.relays, topic.name), markers_max, pace
            )
            left = max(0, left - recalled.markers)
            self._topics[topic.name] = TopicSync(self._shared, topic, recalled.mappings, held=True)
            unresumed[topic.name] = recalled.unannounced
        engine.add_listener(self)
        self._unresumed = unresumed
        for topic in topics:
            await pace.step()
            self._of(topic)

    async def stop(self) -> None:
        await asyncio.gather(*(sync.stop() for sync in self._topics.values()))

    def on_topology(self, topology: Topology) -> None:
        """Use the links and the sync settings of ``topology`` from now on."""
        self._shared.routes = TopologyRoutes(topology, self._shared.engine.cluster)
        settings = self._shared.settings = replace(
            self.settings,
            snapshot_interval_ms=topology.sync.snapshot_interval_ms,
            snapshot_timeout_ms=topology.sync.snapshot_timeout_ms,
            update_interval_ms=topology.sync.update_interval_ms,
        )
        for sync in self._topics.values():
            sync.controller.on_settings(settings)
        for name in list(self._topics):
            self._reroute(name)

    def announce_all(self, topic_name: str | None = None) -> None:
        """Announce the whole state of every replicated subscription of a topic, or of all, and ask for what others
        have."""
        syncs = list(self._topics.values()) if topic_name is None else [self._topics.get(topic_name)]
        for sync in syncs:
            if sync is not None:
                sync.announce_all()

    # Questions.

    def mappings(self) -> Iterator[tuple[str, SnapshotMapping]]:
        """Yield all known snapshot mappings with their topics, to refill an index that lost them."""
        for name in self._topics:
            for mapping in self.all_mappings_of(name):
                yield name, mapping

    def all_mappings_of(self, topic_name: str) -> list[SnapshotMapping]:
        """Return the known snapshot mappings of a topic with all peers."""
        if (sync := self._topics.get(topic_name)) is None:
            return []
        controller = sync.controller
        return [mapping for peer in controller.mapped_peers() for mapping in controller.mappings(peer)]

    def mappings_of(self, topic_name: str, peer: str) -> list[SnapshotMapping]:
        """Return the known snapshot mappings of ``topic`` with one peer, oldest first."""
        sync = self._topics.get(topic_name)
        return [] if sync is None else list(sync.controller.mappings(peer))

    def vector(self, topic: Topic, subscription: Subscription) -> AckVector:
        """Return the exact state of a subscription by identity, as this cluster would announce it."""
        return self._of(topic).whole(subscription)

    def unconsumed(self, topic: Topic, subscription: Subscription) -> AckVector:
        """Return the entries of the log that ``subscription`` has not consumed, as identities.

        For a batch that is partly acknowledged, return the message indexes that *are* acknowledged.
        """
        return self._of(topic).unconsumed(subscription)

    def peers(self, topic: Topic) -> frozenset[str]:
        """Return the clusters that receive announcements about subscriptions of ``topic`` from this cluster."""
        return self._shared.peers(topic)

    @property
    def exact(self) -> bool:
        """Whether acknowledgements travel by identity."""
        return self._shared.exact

    def origins(self, topic_name: str) -> frozenset[str]:
        """Return the clusters whose messages links bring to a topic of this cluster."""
        return frozenset(self._shared.routes.origins(topic_name))

    async def merge_told(self, topic: Topic, update: ApplyUpdate) -> None:
        """Merge a state that another cluster told when it was asked. Return once it is durable.

        Raises :class:`TopicNotFound` if the topic was deleted meanwhile, and the errors of the store.
        """
        topic.check_there()
        await self._of(topic).merge_told(update)

    def counters(self) -> dict[str, int]:
        """Return the sums of the counters over all topics, since the worker started."""
        totals = dict.fromkeys(ControllerStats.__slots__, 0)
        for sync in self._topics.values():
            for name in totals:
                totals[name] += getattr(sync.controller.stats, name)
        totals["updates_ignored"] = self.counted.updates_ignored
        totals["markers_corrupt"] = self.counted.markers_corrupt
        totals["answers_unprovable"] = self.counted.answers_unprovable
        return totals

    def kept_lives(self) -> list[dict[str, Any]]:
        """Return the topics that keep earlier lives here, at most :data:`KEPT_LIVES_MAX`, if only mark-delete positions
        travel."""
        found = islice(self._shared.kept_lives.items(), KEPT_LIVES_MAX)
        return [{"topic": topic, "lives": list(lives)} for topic, lives in found]

    # Events of the engine.

    def on_appended(self, topic: Topic, blocks: Sequence[AppendedBlock]) -> None:
        self._of(topic).on_appended(blocks)

    def on_subscription(self, topic: Topic, subscription: Subscription) -> None:
        if topic.deleted is not None:  # it was just being made
            self._passed_over.setdefault(topic.name, {})[subscription.name] = subscription
            return
        self._of(topic).on_subscription(subscription)
        self._index_state(topic, subscription)

    def on_subscription_deleted(self, topic: Topic, name: str, generation: int | None = None) -> None:
        self._of(topic).on_subscription_deleted(name, generation)
        self._shared.index.subscription_deleted(topic.name, name, generation)

    def on_mark_delete(self, topic: Topic, subscription: Subscription, *, local: bool) -> None:
        self._of(topic).on_mark_delete(subscription, local=local)
        self._index_state(topic, subscription)

    def on_acknowledged(self, topic: Topic, subscription: Subscription) -> None:
        self._of(topic).on_acknowledged(subscription)
        self._index_state(topic, subscription)

    def on_deletion_refused(self, topic: Topic) -> None:
        for name, subscription in self._passed_over.pop(topic.name, {}).items():
            if topic.subscriptions.get(name) is subscription:
                self.on_subscription(topic, subscription)
        self._of(topic).on_deletion_refused()

    def on_log_deleted(self, topic: Topic) -> None:
        """Drop the sync of a deleted topic. Clusters that have copies keep them and are told nothing."""
        sync = self._topics.pop(topic.name, None)
        self._unresumed.pop(topic.name, None)
        self._passed_over.pop(topic.name, None)
        self._shared.kept_lives.pop(topic.name, None)
        if sync is not None:
            sync.discard()
        self._shared.index.topic_deleted(topic.name)

    def on_inherited_policies(self, topic: Topic) -> None:
        self._reroute(topic.name)

    def _reroute(self, name: str) -> None:
        topic, sync = self._shared.engine.find(name), self._topics.get(name)
        if topic is not None and sync is not None:
            sync.on_topology()

    def _index_state(self, topic: Topic, subscription: Subscription) -> None:
        cursor = subscription.cursor
        self._shared.index.subscription_moved(
            topic.name, subscription.name, cursor.generation, cursor.mark_delete, replicated=subscription.replicated
        )

    def _of(self, topic: Topic) -> TopicSync:
        """Return the sync of ``topic``.

        If the topic was deleted meanwhile, return one that does nothing and is not kept: under the name there may be a
        topic that was made anew.
        """
        sync = self._topics.get(topic.name)
        if sync is not None and sync.topic is topic:
            if self._unresumed and (unannounced := self._unresumed.pop(topic.name, None)) is not None:
                sync.resume(unannounced)
            return sync
        made = TopicSync(self._shared, topic)
        if self._shared.engine.loaded.by_id.get(topic.topic_id) is not topic:
            made.discard()
            return made
        if sync is not None:
            sync.discard()
        self._topics[topic.name] = made
        return made
