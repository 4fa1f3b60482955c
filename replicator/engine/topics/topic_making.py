"""Creating topics that have a log, for users, for links, or as partitions.

Invariant: a name is a plain topic or a partitioned one, never both (:mod:`replicator.engine.topics.partitions`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from replicator.engine.errors import TopicExists
from replicator.engine.log.writer import Writer
from replicator.engine.topic import Topic
from replicator.engine.topic_name import TopicName, parse_topic
from replicator.engine.topics.catalog import Catalog
from replicator.engine.topics.catalog_changes import CatalogChanges
from replicator.engine.topics.loaded_topics import LoadedTopics
from replicator.engine.topics.partitions import check_plain


class TopicMaking:
    """Makes topics of one engine."""

    __slots__ = ("_catalog", "_changes", "_loaded", "_writer", "listeners")

    def __init__(self, catalog: Catalog, changes: CatalogChanges, loaded: LoadedTopics, writer: Writer) -> None:
        self._catalog = catalog
        self._changes = changes
        self._loaded = loaded
        self._writer = writer
        self.listeners: list[Callable[[str], None]] = []
        """Functions that are called with the full name of each topic that was made."""

    async def create(self, name: str) -> Topic:
        """Create a topic. Raise :class:`TopicExists`, :class:`InvalidTopicName` or :class:`NotAllowedError`."""
        parsed = parse_topic(name)

        async def create() -> Topic:
            self._check_new(parsed)
            return await self.make(parsed)

        return await self._changes.alone(create)

    async def make(self, name: TopicName) -> Topic:
        """Return the topic ``name``, created if there is none. Concurrent callers share one creation, which goes on if
        they are cancelled."""
        full_name = str(name)
        if (topic := self._loaded.by_name.get(full_name)) is not None:
            return topic
        making = self._changes.being_made.get(full_name)
        if making is not None:
            return await asyncio.shield(making)
        self._catalog.check_takes_topics(name.full_namespace)
        namespace = self._catalog.index.namespace(name.full_namespace)
        check_plain(name, {} if namespace is None else namespace.partitioned)
        return await self._changes.made_by(full_name, self._make(full_name))

    def is_being_made(self, name: str) -> bool:
        """Return whether a topic of that name is being created now."""
        return name in self._changes.being_made

    async def make_again(self, name: TopicName, incarnation: int) -> Topic:
        """Create a topic again that this cluster lost by a restore, in the life ``incarnation``. Nobody else may use it
        yet."""
        return await self._changes.made_by(str(name), self._make(str(name), incarnation))

    async def _make(self, full_name: str, incarnation: int | None = None) -> Topic:
        try:
            topic = self._loaded.load(await self._writer.create_topic(full_name, incarnation=incarnation))
        finally:
            del self._changes.being_made[full_name]
        self._loaded.tell(self._catalog.index.add_topic(full_name))
        for listener in list(self.listeners):
            listener(full_name)
        return topic

    def _check_new(self, name: TopicName) -> None:
        full_name = str(name)
        if self._catalog.index.partitioned(name) is not None:
            raise TopicExists(f"{full_name} exists, as a partitioned topic")
        if full_name in self._loaded.by_name or full_name in self._changes.being_made:
            raise TopicExists(f"{full_name} exists already")
