"""The engine of one cluster: opens and closes the store, finds topics, and hands on results of the writer.

======================== ===========================================================================
part                     answers for
======================== ===========================================================================
``engine.writer``        committing queued requests
``engine.loaded``        the topics that have a log, their default policies, and listeners to them
``engine.catalog``       tenants and namespaces, and listing their content
``engine.making``        making topics
``engine.by_use``        topics that are made because somebody uses them
``engine.partitioned``   partitioned topics
``engine.deleting``      deleting topics, and sweeping up after them
``engine.origin_stores`` which stores wrote the copies here, and which topics were deleted on purpose
``engine.maintenance``   expiry, quotas and trimming
``engine.admission``     whether new clients are taken
``engine.cluster_settings`` policies and permissions of this cluster, with their version
``engine.kept_settings`` settings of other clusters, kept for them
``engine.turns``         order of clients' work on the event loop
``engine.conflicts``     producers of several clusters that use one name or one sequence id
======================== ===========================================================================
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb

from replicator.engine.admission import Admission
from replicator.engine.cluster_settings.changed import ChangedSettings
from replicator.engine.cluster_settings.kept import KeptSettings
from replicator.engine.cluster_settings.own import OwnSettings
from replicator.engine.errors import BlockCorrupt, StoreUnusable, TopicNotFound
from replicator.engine.log.block_cache import CACHE_BYTES_MAX, BlockCache
from replicator.engine.log.entry import MESSAGE_BYTES_MAX
from replicator.engine.log.segments.settings import SegmentSettings
from replicator.engine.log.store import Store
from replicator.engine.log.writer import Committed, Writer
from replicator.engine.policies import TopicPolicies
from replicator.engine.producing.conflicts import ProducerConflicts
from replicator.engine.producing.duplicate_check import part_differing_duplicates
from replicator.engine.schemas.registry import SchemaRegistry
from replicator.engine.topic import Topic
from replicator.engine.topic_listener import TopicListener
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.catalog import Catalog
from replicator.engine.topics.catalog_changes import CatalogChanges
from replicator.engine.topics.catalog_index import CatalogIndex
from replicator.engine.topics.grants import GrantTable
from replicator.engine.topics.loaded_topics import LoadedTopics
from replicator.engine.topics.origin_stores import OriginStores
from replicator.engine.topics.partitioned_topics import PartitionedTopics
from replicator.engine.topics.partitions import load_partitioned
from replicator.engine.topics.topic_deleting import TopicDeleting
from replicator.engine.topics.topic_making import TopicMaking
from replicator.engine.topics.topics_by_use import TopicsByUse
from replicator.engine.unpacking import Unpacking
from replicator.engine.upkeep.maintenance import INTERVAL_SECONDS, Maintenance
from replicator.running.byte_budget import UNPACKED_BYTES_MAX
from replicator.running.pacing import turns_of_this_loop
from replicator.running.supervisor import Supervisor
from replicator.tracing.tracing import Tracing


def _wall_clock_ms() -> int:
    return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Limits and options of one engine. ``store_bytes_max`` is address space, not disk: the file grows as it is
    written."""

    store_bytes_max: int = 64 * 1024**3
    message_bytes_max: int = MESSAGE_BYTES_MAX
    """Limit of a message that clients publish here, in bytes."""
    namespaces_by_use: bool = True
    """Whether the use of a topic creates its tenant and namespace."""
    segments: SegmentSettings = field(default_factory=SegmentSettings)
    cache_bytes_max: int = CACHE_BYTES_MAX
    wall_clock_ms: Callable[[], int] = _wall_clock_ms
    maintenance_seconds: float = INTERVAL_SECONDS
    """Time between two passes that expire messages, check backlogs and trim logs."""
    maintained: bool = True
    """Whether passes begin when the engine is open. If not, the caller starts them once all holders of logs are
    there."""
    policies: TopicPolicies = field(default_factory=TopicPolicies)
    """Policies of topics that have none of their own. By default nothing expires and nothing is trimmed."""
    unpacked_bytes_max: int = UNPACKED_BYTES_MAX
    """Limit of uncompressed bytes that all clients together may have in work."""
    tracing: Tracing | None = None
    """Makes spans of messages on their way; None without tracing."""


class Engine:
    """The durable log and the subscriptions of one cluster, in this process.

    Make it with :meth:`open`; it belongs to the event loop on which it was opened.
    """

    def __init__(self, store: Store, settings: EngineSettings, supervisor: Supervisor | None = None) -> None:
        self.cluster = store.cluster
        self.store = store
        self.started_at_ms = settings.wall_clock_ms()
        self.supervisor = supervisor or Supervisor()
        """Supervisor of the tasks of this engine, and of parts that are built around it."""
        self._own_supervisor = supervisor is None
        self.turns = turns_of_this_loop()
        self.admission = Admission(settings.message_bytes_max)
        self.tracing = settings.tracing
        self.unpacking = Unpacking(settings.unpacked_bytes_max)
        self.writer = Writer(store, self._on_committed, wall_clock_ms=settings.wall_clock_ms)
        self.conflicts = ProducerConflicts(settings.wall_clock_ms)
        self._changes = changes = CatalogChanges()
        changed = ChangedSettings()
        index = CatalogIndex(changed)
        cache = BlockCache(settings.cache_bytes_max)
        self.loaded = LoadedTopics(
            store, self.writer, index, self.admission, cache, settings.policies, self.turns, self.tracing, changed
        )
        self._by_id = self.loaded.by_id
        grants = GrantTable(store, self.writer, changes, changed)
        self.origin_stores = OriginStores(store, self.writer, self.loaded, settings.wall_clock_ms)
        self.deleting = TopicDeleting(
            store, self.writer, index, changes, self.loaded, self.supervisor, grants, self.origin_stores
        )
        self.catalog = Catalog(store, self.writer, index, changes, self.deleting, self.loaded.namespace_changed, grants)
        self.cluster_settings = OwnSettings(
            store, self.writer, index, grants, self.loaded, changed, settings.wall_clock_ms
        )
        self.kept_settings = KeptSettings(store, self.writer)
        self.making = TopicMaking(self.catalog, changes, self.loaded, self.writer)
        self.partitioned = PartitionedTopics(
            store, self.writer, self.catalog, changes, self.loaded, self.making, self.deleting, self.origin_stores
        )
        self.by_use = TopicsByUse(
            store, self.catalog, self.loaded, self.making, self.partitioned, namespaces=settings.namespaces_by_use
        )
        self.schemas = SchemaRegistry(store, self.writer, settings.wall_clock_ms, self._policies_of, self.unpacking)
        self.maintenance = Maintenance(
            store,
            self.topics,
            self.supervisor,
            wall_clock_ms=settings.wall_clock_ms,
            compact_segments=self.writer.compact_segments,
            interval_seconds=settings.maintenance_seconds,
        )
        self.loaded.listeners.append(self.maintenance)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        cluster: str,
        settings: EngineSettings | None = None,
        supervisor: Supervisor | None = None,
    ) -> Engine:
        """Open the data directory and load its topics. Create the directory if there is none.

        Raises :class:`StoreUnusable`, and changes nothing then.
        """
        settings = settings or EngineSettings()
        store = Store(path, cluster=cluster, size_max=settings.store_bytes_max, segments=settings.segments)
        engine = cls(store, settings, supervisor)
        try:
            engine.conflicts.hidden_differing = await part_differing_duplicates(store)
            for record in engine.store.topics():
                try:
                    engine.loaded.load(record)
                    engine.catalog.index.add_topic(record.name)
                except (BlockCorrupt, lmdb.Error) as error:
                    raise StoreUnusable(
                        f"data directory {path}: topic {record.name} cannot be loaded: {error}; restore a backup "
                        "(docs/backup.md)"
                    ) from None
            for partitioned in load_partitioned(engine.store).values():
                engine.catalog.index.set_partitioned(partitioned)
            engine.deleting.sweeper.add(engine.store.deleted_topics())
            await engine.partitioned.finish()
        except BaseException:
            await engine.close()
            raise
        if settings.maintained:
            engine.maintenance.start()
        return engine

    async def close(self) -> None:
        """Disconnect consumers, commit queued requests, and close the store."""
        await self._changes.stop()
        await self.maintenance.stop()
        await self.deleting.sweeper.stop()
        subscriptions = (each for topic in self.loaded.by_name.values() for each in topic.subscriptions.values())
        # If the store refuses, the engine closes nevertheless: other clusters are then told again.
        await asyncio.gather(*(each.saved() for each in subscriptions if each.to_be_saved), return_exceptions=True)
        for topic in self.loaded.by_name.values():
            for subscription in list(topic.subscriptions.values()):
                for consumer in list(subscription.consumers.values()):
                    consumer.close("the worker is stopping")
            await topic.stop("the worker is stopping")
        if self._own_supervisor:
            await self.supervisor.stop()
        self.unpacking.close()
        await self.schemas.close()
        await self.writer.close()
        self.store.close()

    def add_listener(self, listener: TopicListener[Topic]) -> None:
        """Call ``listener`` on all events from now on, and first with the existing subscriptions."""
        self.loaded.listeners.append(listener)
        for topic in self.loaded.by_name.values():
            for subscription in topic.subscriptions.values():
                listener.on_subscription(topic, subscription)
                if subscription.cursor.state.unannounced:
                    listener.on_acknowledged(topic, subscription)

    def remove_listener(self, listener: TopicListener[Topic]) -> None:
        """Call ``listener`` no more."""
        self.loaded.listeners.remove(listener)

    def topics(self) -> list[Topic]:
        """Return every topic that has a log. The cost grows with their number."""
        return [topic for topic in self.loaded.by_name.values() if topic.deleted is None]

    def find(self, name: str) -> Topic | None:
        """Return the topic ``name``, in any form of the name; None if there is none. Raises
        :class:`InvalidTopicName`."""
        topic = self.loaded.by_name.get(name)
        if topic is None:
            topic = self.loaded.by_name.get(str(parse_topic(name)))
        return None if topic is None or topic.deleted is not None else topic

    async def topic(self, name: str, *, create: bool = True, by_link: bool = False) -> Topic:
        """Return the topic ``name``. Create it if its namespace allows that, or if a link brings it.

        Raises :class:`TopicNotFound` if it may not be created, and :class:`NotAllowedError` for a partitioned topic,
        which has no log of its own.
        """
        parsed = parse_topic(name)
        full_name = str(parsed)
        while (topic := self.loaded.by_name.get(full_name)) is not None and topic.deleted is not None:
            await self._changes.done()  # then it is gone
        if topic is not None:
            return topic
        if not create:
            raise TopicNotFound(
                f"cluster {self.cluster!r} has no topic {full_name!r}: see that the name and the cluster are right, "
                "or create it"
            )
        return await (self.making.make(parsed) if by_link else self.by_use.topic(parsed))

    def _policies_of(self, name: str) -> TopicPolicies:
        """Return the effective policies of a topic name, existing or not. For a partitioned topic, its first
        partition counts."""
        for each in (name, f"{name}-partition-0"):
            if (topic := self.loaded.by_name.get(each)) is not None:
                return topic.policies.effective
        of_namespace = self.catalog.policies_of(parse_topic(name).full_namespace).topic_policies
        default = self.loaded.default_policies
        return default if of_namespace is None else of_namespace.over(default)

    async def remember(self, name: str, value: Any) -> None:
        """Store a small JSON value of the worker under ``name``. ``store.meta`` reads it."""
        await self.writer.put("meta", name.encode(), json.dumps(value).encode())

    def _on_committed(self, committed: Committed) -> None:
        for note, positions in committed.noted:
            try:
                note(positions)
            except Exception as error:  # noqa: BLE001 - all must hear of what was appended
                context = {"message": "positions were not noted", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        for topic_id, blocks in committed.appended.items():
            try:
                topic = self._by_id[topic_id]
                topic.committed(blocks)
                self.conflicts.on_committed(topic, blocks)
            except Exception as error:  # noqa: BLE001 - the other topics must hear of theirs, whatever listeners do
                context = {"message": f"topic {topic_id}: not all were told what was appended", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        if committed.other_content:
            self.conflicts.on_other_content(self._by_id, committed.other_content)
        for topic_id, notes in committed.left_out.items():
            self._by_id[topic_id].passed_over(notes)
