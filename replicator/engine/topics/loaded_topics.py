"""Topics of one engine that have a log, by name and by id, and listeners to the catalog's changes.

A topic that is being deleted stays here until the store has deleted it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from replicator.engine.admission import Admission
from replicator.engine.cluster_settings.changed import ChangedSettings
from replicator.engine.log.block_cache import BlockCache
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import TopicRecord
from replicator.engine.log.writer import Writer
from replicator.engine.policies import TopicPolicies
from replicator.engine.subscriptions.failover import FailoverRegistry
from replicator.engine.subscriptions.starting import Starting
from replicator.engine.topic import Topic
from replicator.engine.topic_listener import TopicListener
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.catalog_index import CatalogIndex, Change, Namespace, TopicAdded
from replicator.running.pacing import Pace, turns_of_this_loop
from replicator.running.turns import FairScheduler
from replicator.tracing.tracing import Tracing


class LoadedTopics:
    """Loads topics, keeps them, and tells listeners of the catalog's changes."""

    __slots__ = (
        "_admission",
        "_changed",
        "_compaction_turn",
        "_dispatch_turns",
        "_failover",
        "_index",
        "_store",
        "_tracing",
        "_turns",
        "_writer",
        "by_id",
        "by_name",
        "cache",
        "default_policies",
        "listeners",
        "starting",
    )

    def __init__(
        self,
        store: Store,
        writer: Writer,
        index: CatalogIndex,
        admission: Admission,
        cache: BlockCache,
        default_policies: TopicPolicies,
        turns: FairScheduler,
        tracing: Tracing | None = None,
        changed: ChangedSettings | None = None,
    ) -> None:
        """Create an empty set of topics. ``changed`` gets table ``policies`` and the name of each topic whose own
        policies changed."""
        self._changed = changed or ChangedSettings()
        self._store = store
        self._writer = writer
        self._index = index
        self._admission = admission
        self._tracing = tracing
        self._turns = turns
        self.cache = cache
        """Cache of the most recently read blocks of all topics."""
        self._failover = FailoverRegistry()
        self._dispatch_turns = turns_of_this_loop()
        self._compaction_turn = asyncio.Lock()
        self.starting = Starting()
        self.default_policies = default_policies
        self.by_name: dict[str, Topic] = {}
        """Topics by their full names."""
        self.by_id: dict[int, Topic] = {}
        self.listeners: list[TopicListener[Topic]] = []

    def load(self, record: TopicRecord) -> Topic:
        """Load a topic. The catalog's index learns of its namespace now, but not yet of the topic."""
        topic = Topic(
            record,
            self._store,
            self._writer,
            self.cache,
            self.listeners,
            self._failover,
            self.starting,
            self.default_policies,
            self._index.add_namespace(parse_topic(record.name).full_namespace),
            self._admission,
            self._dispatch_turns,
            self._compaction_turn,
            self._tracing,
        )
        topic.policies.on_own = partial(self._changed, "policies", topic.name)
        topic.policies.changing = self._changed.changing
        self.by_name[topic.name] = topic
        self.by_id[topic.topic_id] = topic
        return topic

    def load_again(self, topic: Topic) -> Topic:
        """Load a topic anew, after its rows below the end of its log were changed. Return the new object.

        Nobody may use ``topic`` afterwards, and no client may be connected to it.
        """
        return self.load(TopicRecord(topic.topic_id, topic.name, topic.incarnation))

    def remove(self, topic: Topic) -> None:
        """Remove a topic that the store has deleted."""
        del self.by_name[topic.name]
        del self.by_id[topic.topic_id]
        if topic.policies.own is not None:
            self._changed("policies", topic.name)

    async def set_default_policies(self, policies: TopicPolicies) -> None:
        """Set the policies of topics for which neither they nor their namespaces set any.

        They are in effect for all topics when this returns. Clients have their turn meanwhile.
        """
        if policies == self.default_policies:
            return
        self.default_policies = policies
        pace = Pace(self._turns)
        for topic in list(self.by_name.values()):
            topic.policies.set_default(policies)
            await pace.step()

    async def namespace_changed(self, namespace: Namespace) -> None:
        """Apply changed policies of a namespace to its topics. Clients have their turn meanwhile."""
        pace = Pace(self._turns)
        for listener in list(self.listeners):  # first: a link must announce schemas before it copies a topic anew
            listener.on_namespace_policies(namespace.name)
        for name in list(namespace.topics):
            if (topic := self.by_name.get(name)) is None:
                continue  # deleted meanwhile
            topic.policies.apply()
            for listener in list(self.listeners):
                listener.on_inherited_policies(topic)
            await pace.step()

    def tell(self, changes: Iterable[Change]) -> None:
        """Tell listeners which topics consumers can subscribe to now, and which not any more."""
        for change in changes:
            for listener in list(self.listeners):
                if isinstance(change, TopicAdded):
                    listener.on_topic_created(change.name)
                else:
                    listener.on_topic_deleted(change.name)
