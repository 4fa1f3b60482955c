"""The engine of one cluster: opens the store, and holds its topics, the writer and the listeners."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb

from replicator.engine.block_cache import CACHE_BYTES_MAX, BlockCache
from replicator.engine.errors import BlockCorrupt, EngineError, NotAllowedError, StoreUnusable, TopicNotFound
from replicator.engine.failover import FailoverRegistry
from replicator.engine.maintenance import INTERVAL_SECONDS, Maintenance
from replicator.engine.partitions import TABLE as PARTITIONED_TABLE
from replicator.engine.partitions import PartitionedTopic, check_new, check_plain, load_partitioned
from replicator.engine.policies import TopicPolicies
from replicator.engine.store import Store, TopicRecord
from replicator.engine.topic import Topic, TopicListener
from replicator.engine.topic_name import parse_topic
from replicator.engine.writer import Committed, Writer


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Limits of one engine. ``store_bytes_max`` is address space, not disk: the file grows as it is written."""

    store_bytes_max: int = 64 * 1024**3
    cache_bytes_max: int = CACHE_BYTES_MAX
    wall_clock_ms: Callable[[], int] = _wall_clock_ms
    maintenance_seconds: float = INTERVAL_SECONDS
    """Between two passes that expire messages, check backlogs and trim logs."""
    policies: TopicPolicies = field(default_factory=TopicPolicies)
    """Of topics that have none of their own. By default nothing expires and nothing is trimmed."""


PARTITIONS_AT_ONCE = 1_000
"""Partitions that are made together: they share a commit, and leave room for others in the writer's queue."""


class Engine:
    """The durable log and the subscriptions of one cluster, in this process.

    Make it with :meth:`open`; it belongs to the event loop on which it was opened.
    """

    def __init__(self, store: Store, settings: EngineSettings) -> None:
        self.cluster = store.cluster
        self.store = store
        self.started_at_ms = settings.wall_clock_ms()
        self._listeners: list[TopicListener] = []
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self._partitioned = load_partitioned(store)
        self._being_made: set[str] = set()
        """Names of topics that the writer is making."""
        self._failover = FailoverRegistry()
        self._policies = settings.policies
        self._cache = BlockCache(settings.cache_bytes_max)
        self.writer = Writer(store, self._on_committed, wall_clock_ms=settings.wall_clock_ms)
        self.maintenance = Maintenance(
            store, self.topics, wall_clock_ms=settings.wall_clock_ms, interval_seconds=settings.maintenance_seconds
        )
        self._listeners.append(self.maintenance)

    @classmethod
    async def open(cls, path: Path, *, cluster: str, settings: EngineSettings | None = None) -> Engine:
        """Open the data directory, made if there is none, and load its topics.

        Raises :class:`StoreUnusable`; nothing is changed then.
        """
        settings = settings or EngineSettings()
        engine = cls(Store(path, cluster=cluster, size_max=settings.store_bytes_max), settings)
        try:
            for record in engine.store.topics():
                try:
                    engine._add(engine._load(record))
                except (BlockCorrupt, lmdb.Error) as error:
                    raise StoreUnusable(
                        f"data directory {path}: topic {record.name} cannot be loaded: {error}; restore a copy"
                    ) from None
        except BaseException:
            await engine.close()
            raise
        engine.maintenance.start()
        return engine

    async def close(self) -> None:
        """Disconnect consumers, commit what is queued, and close the store."""
        await self.maintenance.stop()
        for topic in self._topics.values():
            for subscription in list(topic.subscriptions.values()):
                for consumer in list(subscription.consumers.values()):
                    consumer.close("the worker is stopping")
            await topic.stop("the worker is stopping")
        await self.writer.close()
        self.store.close()

    def add_listener(self, listener: TopicListener) -> None:
        """Tell ``listener`` of everything from now on, and of the subscriptions that are here already."""
        self._listeners.append(listener)
        for topic in self._topics.values():
            for subscription in topic.subscriptions.values():
                listener.on_subscription(topic, subscription)

    def topics(self) -> list[Topic]:
        return list(self._topics.values())

    def find(self, name: str) -> Topic | None:
        """The topic of that name, in any form of the name; raises :class:`InvalidTopicName`."""
        return self._topics.get(str(parse_topic(name)))

    async def topic(self, name: str, *, create: bool = True) -> Topic:
        """The topic of that name; raises :class:`TopicNotFound` unless it may be made, and :class:`NotAllowedError` for
        a partitioned topic, which has no log of its own."""
        full_name = str(parse_topic(name))
        topic = self._topics.get(full_name)
        if topic is not None:
            return topic
        if not create:
            raise TopicNotFound(f"cluster {self.cluster!r} has no topic {full_name!r}")
        check_plain(parse_topic(full_name), self._partitioned)
        self._being_made.add(full_name)
        try:
            record = await self.writer.create_topic(full_name)
        finally:
            self._being_made.discard(full_name)
        topic = self._topics.get(full_name)  # another caller may have made it meanwhile
        if topic is None:
            topic = self._load(record)
            self._add(topic)
        return topic

    def partitions(self, name: str) -> int:
        """How many partitions the topic has; 0 if it is not partitioned, or does not exist."""
        found = self._partitioned.get(str(parse_topic(name)))
        return 0 if found is None else found.partitions

    async def create_partitioned_topic(self, name: str, partitions: int) -> None:
        """Make a partitioned topic and its partitions; with the same number again, those that are missing.

        Raises :class:`InvalidTopicName`, and :class:`NotAllowedError` for a name that is taken, is a partition's, or
        a number that is out of range.
        """
        wanted = check_new(name, partitions)
        existing = self._partitioned.get(wanted.name)
        if existing is None:
            self._check_not_plain(wanted)
            self._partitioned[wanted.name] = wanted  # from here on nobody makes a plain topic of that name
            try:
                await self.writer.put(PARTITIONED_TABLE, wanted.name.encode(), wanted.encode())
            except EngineError:  # one that is cancelled is stored all the same
                del self._partitioned[wanted.name]
                raise
        elif existing != wanted:
            raise NotAllowedError(f"{wanted.name} has {existing.partitions} partitions already")
        for first in range(0, partitions, PARTITIONS_AT_ONCE):
            following = range(first, min(first + PARTITIONS_AT_ONCE, partitions))
            await asyncio.gather(*(self.topic(wanted.partition(index)) for index in following))

    def _check_not_plain(self, wanted: PartitionedTopic) -> None:
        if wanted.name in self._topics or wanted.name in self._being_made:
            raise NotAllowedError(f"{wanted.name} is a topic without partitions: give the partitioned one another name")
        prefix = f"{wanted.name}-partition-"
        for name in (*self._topics, *self._being_made):
            if name.startswith(prefix):
                check_plain(parse_topic(name), {wanted.name: wanted})

    async def remember(self, name: str, value: Any) -> None:
        """Keep a small fact of the worker with the store; read it by ``store.meta``."""
        await self.writer.put("meta", name.encode(), json.dumps(value).encode())

    def _load(self, record: TopicRecord) -> Topic:
        return Topic(record, self.store, self.writer, self._cache, self._listeners, self._failover, self._policies)

    def _add(self, topic: Topic) -> None:
        self._topics[topic.name] = topic
        self._by_id[topic.topic_id] = topic

    def _on_committed(self, committed: Committed) -> None:
        for topic_id, blocks in committed.appended.items():
            self._by_id[topic_id].committed(blocks)
