"""What becomes of a topic that somebody uses and that does not exist, by the policies of its namespace.

0. Where namespaces are not made by use, one that is not there is an error, also for who makes the topic by name.
1. A partition of a partitioned topic may always be made: the partitioned topic was.
2. Where topics are not made by use, it is an error (unless one only asks for the number of partitions).
3. Where they are made with partitions, the partitioned topic is made; but not of a partition's name.
"""

from __future__ import annotations

from replicator.engine.errors import TopicNotFound
from replicator.engine.log.store import Store
from replicator.engine.topic import Topic
from replicator.engine.topic_name import TopicName, parse_topic
from replicator.engine.topics.catalog import Catalog
from replicator.engine.topics.loaded_topics import LoadedTopics
from replicator.engine.topics.partitioned_topics import PartitionedTopics
from replicator.engine.topics.partitions import partition_of
from replicator.engine.topics.topic_making import TopicMaking


class TopicsByUse:
    """Makes topics of one engine because somebody uses them."""

    __slots__ = ("_catalog", "_cluster", "_loaded", "_making", "_partitioned", "makes_namespaces")

    def __init__(
        self,
        store: Store,
        catalog: Catalog,
        loaded: LoadedTopics,
        making: TopicMaking,
        partitioned: PartitionedTopics,
        *,
        namespaces: bool = True,
    ) -> None:
        """``namespaces``: whether those are made by use too."""
        self.makes_namespaces = namespaces
        self._cluster = store.cluster
        self._catalog = catalog
        self._loaded = loaded
        self._making = making
        self._partitioned = partitioned

    async def topic(self, name: TopicName) -> Topic:
        """The topic of that name, made if its namespace lets its use make it.

        Raises :class:`TopicNotFound` else, and :class:`NotAllowedError` for a partitioned topic.
        """
        await self._make_by_policy(name)
        return await self._making.make(name)

    async def partitions(self, name: str) -> int:
        """As :meth:`PartitionedTopics.count`, of a topic that somebody is about to use: made if its namespace's
        policies make partitioned topics."""
        parsed = parse_topic(name)
        topic = self._loaded.by_name.get(str(parsed))
        if topic is None or topic.deleted is not None:
            await self._make_by_policy(parsed, only_partitioned=True)
        return self._partitioned.count(name)

    def check_namespace(self, namespace: str) -> None:
        """Raises :class:`NamespaceNotFound` for one that is not there, where their use does not make them. Links bring
        topics whether or not it is: that is how a namespace comes to another cluster."""
        if not self.makes_namespaces:
            self._catalog.namespace(namespace)

    async def _make_by_policy(self, name: TopicName, *, only_partitioned: bool = False) -> None:
        """Raises :class:`TopicNotFound` for a topic that its use does not make, unless ``only_partitioned``."""
        self.check_namespace(name.full_namespace)
        policies = self._catalog.policies_of(name.full_namespace)
        namespace = self._catalog.index.namespace(name.full_namespace)
        if namespace is not None and (
            str(name) in namespace.partitioned or partition_of(str(name), namespace.partitioned) is not None
        ):
            return
        if not policies.auto_topic_creation:
            if only_partitioned:
                return
            raise TopicNotFound(
                f"cluster {self._cluster!r} has no topic {str(name)!r}, and its namespace does not make topics by "
                "their use (auto_topic_creation): create it first"
            )
        if policies.auto_partitions and name.partition < 0:
            await self._partitioned.adopt(str(name), policies.auto_partitions)
