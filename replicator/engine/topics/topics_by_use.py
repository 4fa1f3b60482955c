"""Creation of a topic because a client uses it, by the policies of its namespace.

0. If namespaces are not created by use, a missing namespace is an error, even for a client that creates the topic
   explicitly.
1. A partition of an existing partitioned topic may always be created.
2. If topics are not created by use, a missing topic is an error, except for a request for its number of partitions.
3. If topics are created with partitions, the partitioned topic is created, unless its name is that of a partition.
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
    """Creates topics of one engine because clients use them."""

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
        """Remember the parts of the engine. ``namespaces`` says whether namespaces are created by use, too."""
        self.makes_namespaces = namespaces
        self._cluster = store.cluster
        self._catalog = catalog
        self._loaded = loaded
        self._making = making
        self._partitioned = partitioned

    async def topic(self, name: TopicName) -> Topic:
        """Return the topic ``name``. Create it if its namespace allows creation by use.

        Raises :class:`TopicNotFound` otherwise, and :class:`NotAllowedError` for a partitioned topic.
        """
        await self._make_by_policy(name)
        return await self._making.make(name)

    async def partitions(self, name: str) -> int:
        """Return the number of partitions, as :meth:`PartitionedTopics.count` does, for a client that is about to use
        the topic. First create the partitioned topic if the namespace's policies create such topics by use."""
        parsed = parse_topic(name)
        topic = self._loaded.by_name.get(str(parsed))
        if topic is None or topic.deleted is not None:
            await self._make_by_policy(parsed, only_partitioned=True)
        return self._partitioned.count(name)

    def check_namespace(self, namespace: str) -> None:
        """Raise :class:`NamespaceNotFound` for a missing namespace if namespaces are not created by use. Links do not
        check this, because they bring namespaces to other clusters."""
        if not self.makes_namespaces:
            self._catalog.namespace(namespace)

    async def _make_by_policy(self, name: TopicName, *, only_partitioned: bool = False) -> None:
        """Create a topic if the policies allow it. Otherwise raise :class:`TopicNotFound`, unless
        ``only_partitioned``."""
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
