"""Source from which the index gets everything again when it lost something, and which answers its questions to engine
and sync.
"""

from __future__ import annotations

from replicator.engine.engine import Engine
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.failover.service import FailoverService
from replicator.index.changes import IndexChanges
from replicator.sync.service import SubscriptionSync
from replicator.worker.running_links import RunningLinks
from snapshots.ack_vector import AckVector
from snapshots.mapping import SnapshotMapping
from snapshots.position import Position


class IndexSource:
    """Source of all that ``index`` has (invariant 9)."""

    def __init__(
        self,
        engine: Engine,
        index: IndexChanges,
        sync: SubscriptionSync,
        failover: FailoverService,
        links: RunningLinks,
    ) -> None:
        self._engine = engine
        self._index = index
        self._sync = sync
        self._failover = failover
        self._links = links

    def resync(self) -> None:
        """Give everything to the index again: it lost something."""
        self._failover.resync()
        for name, mapping in self._sync.mappings():
            self._index.mapping_recorded(name, mapping)
        for topic in self._engine.topics():
            for name, generation in topic.subscriptions.tombstones.items():
                self._index.subscription_deleted(topic.name, name, generation)
            for subscription in topic.subscriptions.values():
                cursor = subscription.cursor
                self._index.subscription_moved(
                    topic.name,
                    subscription.name,
                    cursor.generation,
                    cursor.mark_delete,
                    replicated=subscription.replicated,
                )
        for link in self._links:
            link.update_index()

    def kept_mappings(self, topic: str, peer: str) -> list[Position]:
        """Return the local positions of the mappings that are in memory: those that the index keeps."""
        return [mapping.local for mapping in self._sync.mappings_of(topic, peer)]

    def mappings(self, topic: str) -> list[SnapshotMapping]:
        """Return the mappings of a topic that are in memory."""
        return self._sync.all_mappings_of(topic)

    def vector(self, topic: Topic, subscription: Subscription) -> AckVector:
        return self._sync.vector(topic, subscription)
