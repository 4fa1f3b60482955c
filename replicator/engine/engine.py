"""The engine of one cluster: opens the store, and holds its topics, the writer and the listeners."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import lmdb

from replicator.engine.admission import Admission
from replicator.engine.errors import (
    BlockCorrupt,
    EngineError,
    InvalidPartitions,
    NotAllowedError,
    StoreUnusable,
    TopicBusy,
    TopicExists,
    TopicNotFound,
)
from replicator.engine.log.block_cache import CACHE_BYTES_MAX, BlockCache
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import TopicRecord
from replicator.engine.log.writer import Committed, Writer
from replicator.engine.policies import TopicPolicies
from replicator.engine.subscriptions.failover import FailoverRegistry
from replicator.engine.topic import Topic
from replicator.engine.topic_listener import TopicListener
from replicator.engine.topic_name import TopicName, parse_topic
from replicator.engine.topics.catalog import Catalog
from replicator.engine.topics.catalog_index import Appeared, Change, Namespace
from replicator.engine.topics.partitions import TABLE as PARTITIONED_TABLE
from replicator.engine.topics.partitions import PartitionedTopic, check_new, check_plain, load_partitioned, partition_of
from replicator.engine.topics.topic_sweeper import TopicSweeper
from replicator.engine.upkeep.maintenance import INTERVAL_SECONDS, Maintenance
from replicator.running.short_tasks import awaited
from replicator.running.supervisor import Supervisor


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
    maintained: bool = True
    """Whether passes begin when the engine is open. Else whoever opens it starts them, when all are there who hold
    logs back."""
    policies: TopicPolicies = field(default_factory=TopicPolicies)
    """Of topics that have none of their own. By default nothing expires and nothing is trimmed."""


TOPICS_AT_ONCE = 1_000
"""Topics that are made or deleted together: they share a commit, and leave room for others in the writer's queue."""

_T = TypeVar("_T")


class Engine:
    """The durable log and the subscriptions of one cluster, in this process.

    Make it with :meth:`open`; it belongs to the event loop on which it was opened.
    """

    def __init__(self, store: Store, settings: EngineSettings, supervisor: Supervisor | None = None) -> None:
        self.cluster = store.cluster
        self.store = store
        self.started_at_ms = settings.wall_clock_ms()
        self.supervisor = supervisor or Supervisor()
        """Of the tasks of this engine, and of what is built around it."""
        self._own_supervisor = supervisor is None
        self.admission = Admission()
        self._listeners: list[TopicListener[Topic]] = []
        self._topics: dict[str, Topic] = {}
        self._by_id: dict[int, Topic] = {}
        self._being_made: dict[str, asyncio.Task[Topic]] = {}
        """By full name, the topics that the writer is making."""
        self._changing = asyncio.Lock()
        self._changes: set[asyncio.Task[Any]] = set()
        self._failover = FailoverRegistry()
        self._policies = settings.policies
        self._cache = BlockCache(settings.cache_bytes_max)
        self.writer = Writer(store, self._on_committed, wall_clock_ms=settings.wall_clock_ms)
        self.catalog = Catalog(store, self.writer, self)
        self._sweeper = TopicSweeper(self.writer, self.supervisor)
        self.maintenance = Maintenance(
            store,
            self.topics,
            self.supervisor,
            wall_clock_ms=settings.wall_clock_ms,
            interval_seconds=settings.maintenance_seconds,
        )
        self._listeners.append(self.maintenance)

    @classmethod
    async def open(
        cls,
        path: Path,
        *,
        cluster: str,
        settings: EngineSettings | None = None,
        supervisor: Supervisor | None = None,
    ) -> Engine:
        """Open the data directory, made if there is none, and load its topics.

        Raises :class:`StoreUnusable`; nothing is changed then.
        """
        settings = settings or EngineSettings()
        engine = cls(Store(path, cluster=cluster, size_max=settings.store_bytes_max), settings, supervisor)
        try:
            for record in engine.store.topics():
                try:
                    engine._add(record)
                    engine.catalog.index.add_topic(record.name)
                except (BlockCorrupt, lmdb.Error) as error:
                    raise StoreUnusable(
                        f"data directory {path}: topic {record.name} cannot be loaded: {error}; restore a copy"
                    ) from None
            for partitioned in load_partitioned(engine.store).values():
                engine.catalog.index.set_partitioned(partitioned)
            await engine._finish_what_was_begun()
        except BaseException:
            await engine.close()
            raise
        if settings.maintained:
            engine.maintenance.start()
        return engine

    async def _finish_what_was_begun(self) -> None:
        """Make the partitions and delete the rows that a worker which was killed did not come to."""
        self._sweeper.add(self.store.deleted_topics())
        for partitioned in list(self.catalog.index.all_partitioned()):
            if len(self.catalog.index.partitions_here(partitioned.name)) < partitioned.partitions:
                await self._make_partitioned(partitioned, partitioned)

    async def close(self) -> None:
        """Disconnect consumers, commit what is queued, and close the store."""
        await asyncio.gather(*self._changes, *self._being_made.values(), return_exceptions=True)
        await self.maintenance.stop()
        await self._sweeper.stop()
        subscriptions = (each for topic in self._topics.values() for each in topic.subscriptions.values())
        # A store that refuses is no reason not to close: other clusters are then told again.
        await asyncio.gather(*(each.saved() for each in subscriptions if each.to_be_saved), return_exceptions=True)
        for topic in self._topics.values():
            for subscription in list(topic.subscriptions.values()):
                for consumer in list(subscription.consumers.values()):
                    consumer.close("the worker is stopping")
            await topic.stop("the worker is stopping")
        if self._own_supervisor:
            await self.supervisor.stop()
        await self.writer.close()
        self.store.close()

    def add_listener(self, listener: TopicListener[Topic]) -> None:
        """Tell ``listener`` of everything from now on, and of the subscriptions that are here already."""
        self._listeners.append(listener)
        for topic in self._topics.values():
            for subscription in topic.subscriptions.values():
                listener.on_subscription(topic, subscription)
                if subscription.cursor.state.unannounced:
                    listener.on_acknowledged(topic, subscription)

    def remove_listener(self, listener: TopicListener[Topic]) -> None:
        """Tell ``listener`` nothing more."""
        self._listeners.remove(listener)

    @property
    def default_policies(self) -> TopicPolicies:
        """Of topics for which neither they nor their namespaces have others."""
        return self._policies

    def set_default_policies(self, policies: TopicPolicies) -> None:
        """Other policies for topics where neither they nor their namespaces set them; they hold at once."""
        if policies == self._policies:
            return
        self._policies = policies
        for topic in self._topics.values():
            topic.policies.set_default(policies)

    def topics(self) -> list[Topic]:
        """Every topic that has a log; costs as much as there are of them."""
        return [topic for topic in self._topics.values() if topic.deleted is None]

    def find(self, name: str) -> Topic | None:
        """The topic of that name, in any form of the name; raises :class:`InvalidTopicName`."""
        topic = self._topics.get(str(parse_topic(name)))
        return None if topic is None or topic.deleted is not None else topic

    async def topic(self, name: str, *, create: bool = True, by_link: bool = False) -> Topic:
        """The topic of that name, made if its namespace lets those who use topics make them, or a link brings it.

        Raises :class:`TopicNotFound` unless it may be made, and :class:`NotAllowedError` for a partitioned topic, which
        has no log of its own.
        """
        parsed = parse_topic(name)
        full_name = str(parsed)
        while (topic := self._topics.get(full_name)) is not None and topic.deleted is not None:
            async with self._changing:  # until it is gone
                pass
        if topic is not None:
            return topic
        if not create:
            raise TopicNotFound(f"cluster {self.cluster!r} has no topic {full_name!r}")
        if not by_link:
            await self._make_by_policy(parsed)
        return await self._make(parsed)

    async def create_topic(self, name: str) -> Topic:
        """Make a topic. Raises :class:`TopicExists`, :class:`InvalidTopicName`, :class:`NotAllowedError`."""
        parsed = parse_topic(name)

        async def create() -> Topic:
            self._check_new(parsed)
            return await self._make(parsed)

        return await self.alone(create)

    async def delete_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a topic with all that is in it and its subscriptions; returns when it is gone for good.

        What it leaves in the store is deleted afterwards, bit by bit. Clusters that have copies keep them, and what
        they published to it comes back from them if links lead here: delete it there too.
        Raises :class:`TopicNotFound`, :class:`NotAllowedError` for a partitioned topic, and :class:`TopicBusy` while
        producers or consumers are connected; with ``force`` they are disconnected instead.
        """
        full_name = str(parsed := parse_topic(name))

        async def delete() -> None:
            if (whole := self.catalog.index.partitioned(parsed)) is not None:
                raise NotAllowedError(f"{full_name} has {whole.partitions} partitions: delete the partitioned topic")
            topic = self._topics.get(full_name)
            if topic is None:
                raise TopicNotFound(f"cluster {self.cluster!r} has no topic {full_name!r}")
            await self._delete([topic], force=force)

        await self.alone(delete)

    # Partitioned topics.

    def partitions(self, name: str) -> int:
        """How many partitions the topic has; 0 if it is not partitioned, or does not exist."""
        found = self.catalog.index.partitioned(parse_topic(name))
        return 0 if found is None else found.partitions

    async def partitions_for_use(self, name: str) -> int:
        """As :meth:`partitions`, of a topic that somebody is about to use: made if its namespace's policies make
        partitioned topics."""
        parsed = parse_topic(name)
        if self.find(name) is None:
            await self._make_by_policy(parsed, only_partitioned=True)
        return self.partitions(name)

    async def create_partitioned_topic(self, name: str, partitions: int) -> None:
        """Make a partitioned topic and its partitions; with the same number again, those that are missing.

        Raises :class:`InvalidTopicName`, :class:`InvalidPartitions`, and :class:`NotAllowedError` for a name that is
        taken, or is a partition's.
        """
        wanted = check_new(name, partitions)

        async def create() -> None:
            existing = self.catalog.index.partitioned(parse_topic(wanted.name))
            if existing is not None and existing != wanted:
                raise NotAllowedError(f"{wanted.name} has {existing.partitions} partitions already")
            await self._make_partitioned(wanted, existing)

        await self.alone(create)

    async def grow_partitioned_topic(self, name: str, partitions: int) -> None:
        """Give a partitioned topic more partitions; with the number that it has, those that are missing.

        Raises :class:`TopicNotFound`, and :class:`InvalidPartitions` for a number out of range, or fewer than it has.
        """
        wanted = check_new(name, partitions)

        async def grow() -> None:
            existing = self.catalog.index.partitioned(parse_topic(wanted.name))
            if existing is None:
                raise TopicNotFound(f"cluster {self.cluster!r} has no partitioned topic {wanted.name!r}")
            if partitions < existing.partitions:
                raise InvalidPartitions(
                    f"{wanted.name} has {existing.partitions} partitions; it cannot get fewer, not {partitions}"
                )
            await self._make_partitioned(wanted, existing)

        await self.alone(grow)

    async def adopt_partitions(self, name: str, partitions: int) -> int:
        """Another cluster has that many partitions of a topic: have as many here, or more. Returns how many there are.

        Raises as :meth:`create_partitioned_topic` does.
        """
        wanted = check_new(name, partitions)

        async def adopt() -> int:
            existing = self.catalog.index.partitioned(parse_topic(wanted.name))
            if existing is None or existing.partitions < partitions:
                await self._make_partitioned(wanted, existing)
            return self.partitions(name)

        return await self.alone(adopt)

    async def delete_partitioned_topic(self, name: str, *, force: bool = False) -> None:
        """Delete a partitioned topic with all its partitions, in one step; see :meth:`delete_topic`."""
        parsed = parse_topic(name)

        async def delete() -> None:
            whole = self.catalog.index.partitioned(parsed)
            if whole is None:
                raise TopicNotFound(f"cluster {self.cluster!r} has no partitioned topic {str(parsed)!r}")
            await self._delete_partitioned(whole, force=force)

        await self.alone(delete)

    # What the catalog asks.

    async def alone(self, change: Callable[[], Awaitable[_T]]) -> _T:
        """Make a change of the catalog while nobody makes another. The change goes on when its caller gives up."""

        async def make() -> _T:
            async with self._changing:
                return await change()

        task = awaited(make(), name="change of the catalog")
        self._changes.add(task)
        task.add_done_callback(self._changed)
        return await asyncio.shield(task)

    def _changed(self, task: asyncio.Task[Any]) -> None:
        self._changes.discard(task)
        _note_failure(task)

    def names_being_made(self) -> Iterable[str]:
        """Full names of the topics that the writer is making."""
        return self._being_made.keys()

    async def made(self, names: Iterable[str]) -> None:
        """Returns when these topics are not being made any more: they are there, or failed."""
        await asyncio.gather(*(self._being_made[name] for name in names), return_exceptions=True)

    async def delete_all(self, namespace: Namespace, *, force: bool) -> None:
        """Delete every topic of a namespace."""
        for whole in list(namespace.partitioned.values()):
            await self._delete_partitioned(whole, force=force)
        while namespace.topics:
            await self._delete([self._topics[name] for name in namespace.topics[:TOPICS_AT_ONCE]], force=force)

    def namespace_changed(self, namespace: Namespace) -> None:
        """Its policies are others: they hold at once."""
        for name in namespace.topics:
            self._topics[name].policies.apply()
        for listener in list(self._listeners):
            listener.on_namespace_policies(namespace.name)

    async def swept(self) -> None:
        """Returns when nothing is left in the store of the topics that were deleted before."""
        await self._sweeper.swept()

    # Making.

    async def _make_by_policy(self, name: TopicName, *, only_partitioned: bool = False) -> None:
        """What the policies of its namespace say about a topic that is used and does not exist.

        1. A partition of a partitioned topic may always be made: the partitioned topic was.
        2. Where topics are not made by use, it is an error (unless one only asks for the number of partitions).
        3. Where they are made with partitions, the partitioned topic is made; but not of a partition's name.
        """
        policies = self.catalog.policies_of(name.full_namespace)
        namespace = self.catalog.index.namespace(name.full_namespace)
        if namespace is not None and (
            str(name) in namespace.partitioned or partition_of(str(name), namespace.partitioned) is not None
        ):
            return
        if not policies.auto_topic_creation:
            if only_partitioned:
                return
            raise TopicNotFound(
                f"cluster {self.cluster!r} has no topic {str(name)!r}, and its namespace does not make topics by their "
                "use (auto_topic_creation): create it first"
            )
        if policies.auto_partitions and name.partition < 0:
            await self.adopt_partitions(str(name), policies.auto_partitions)

    def _check_new(self, name: TopicName) -> None:
        full_name = str(name)
        if self.catalog.index.partitioned(name) is not None:
            raise TopicExists(f"{full_name} exists, as a partitioned topic")
        if full_name in self._topics or full_name in self._being_made:
            raise TopicExists(f"{full_name} exists already")

    async def _make(self, name: TopicName) -> Topic:
        """The topic of that name. Those who ask at the same time share one making, which goes on when they give up."""
        full_name = str(name)
        if (topic := self._topics.get(full_name)) is not None:
            return topic
        making = self._being_made.get(full_name)
        if making is None:
            self.catalog.check_takes_topics(name.full_namespace)
            namespace = self.catalog.index.namespace(name.full_namespace)
            check_plain(name, {} if namespace is None else namespace.partitioned)
            making = awaited(self._making(full_name), name="making of a topic")
            making.add_done_callback(_note_failure)
            self._being_made[full_name] = making
        return await asyncio.shield(making)

    async def _making(self, full_name: str) -> Topic:
        try:
            topic = self._add(await self.writer.create_topic(full_name))
        finally:
            del self._being_made[full_name]
        self._tell(self.catalog.index.add_topic(full_name))
        return topic

    async def _make_partitioned(self, wanted: PartitionedTopic, existing: PartitionedTopic | None) -> None:
        """Store the number, then make the partitions: whoever finds the number after a crash makes the rest."""
        changes: list[Change] = []
        if existing != wanted:
            namespace = parse_topic(wanted.name).full_namespace
            self.catalog.check_takes_topics(namespace)
            if existing is None:
                self._check_not_plain(wanted)
            made_namespace = self.catalog.index.namespace(namespace) is None
            changes = self.catalog.index.set_partitioned(wanted)  # from here on nobody makes a plain topic of that name
            try:
                await self.writer.put_many(
                    [
                        *self.catalog.rows_of_new(namespace, made_namespace),
                        (PARTITIONED_TABLE, wanted.name.encode(), wanted.encode()),
                    ]
                )
            except EngineError:
                if existing is None:
                    self.catalog.index.remove_partitioned(wanted.name)
                else:
                    self.catalog.index.set_partitioned(existing)
                raise
            for listener in list(self._listeners):
                listener.on_partitions(wanted.name, wanted.partitions)
        for first in range(0, wanted.partitions, TOPICS_AT_ONCE):
            following = range(first, min(first + TOPICS_AT_ONCE, wanted.partitions))
            await asyncio.gather(*(self._make(parse_topic(wanted.partition(index))) for index in following))
        self._tell(changes)

    def _check_not_plain(self, wanted: PartitionedTopic) -> None:
        if wanted.name in self._topics or wanted.name in self._being_made:
            raise NotAllowedError(f"{wanted.name} is a topic without partitions: give the partitioned one another name")
        prefix = f"{wanted.name}-partition-"
        being_made = (name for name in self._being_made if name.startswith(prefix))
        for name in (*self.catalog.index.partitions_here(wanted.name), *being_made):
            check_plain(parse_topic(name), {wanted.name: wanted})

    # Deleting.

    async def _delete_partitioned(self, whole: PartitionedTopic, *, force: bool) -> None:
        topics = [self._topics[name] for name in self.catalog.index.partitions_here(whole.name)]
        await self._delete(topics, whole, force=force)

    async def _delete(self, topics: list[Topic], whole: PartitionedTopic | None = None, *, force: bool) -> None:
        """Delete topics, and the partitioned topic that they are the partitions of, in one transaction."""
        if not force:
            for topic in topics:
                if (busy := topic.busy) is not None:
                    raise TopicBusy(f"{busy} connected: disconnect them first, or use force")
        for topic in topics:
            topic.leave()
        try:
            await asyncio.gather(*(topic.compaction.stop() for topic in topics))
            await self.writer.delete_topics([topic.tail for topic in topics], None if whole is None else whole.name)
        except BaseException:
            for topic in topics:
                topic.stay()
            raise
        changes: list[Change] = []
        for topic in topics:
            del self._topics[topic.name]
            del self._by_id[topic.topic_id]
            changes += self.catalog.index.remove_topic(topic.name)
            topic.gone()
        if whole is not None:
            changes += self.catalog.index.remove_partitioned(whole.name)
        self._sweeper.add([topic.topic_id for topic in topics])
        self._tell(changes)

    def _tell(self, changes: Iterable[Change]) -> None:
        for change in changes:
            for listener in list(self._listeners):
                if isinstance(change, Appeared):
                    listener.on_topic_created(change.name)
                else:
                    listener.on_topic_deleted(change.name)

    async def remember(self, name: str, value: Any) -> None:
        """Keep a small fact of the worker with the store; read it by ``store.meta``."""
        await self.writer.put("meta", name.encode(), json.dumps(value).encode())

    def _add(self, record: TopicRecord) -> Topic:
        """Load a topic."""
        namespace = self.catalog.index.add_namespace(parse_topic(record.name).full_namespace)
        topic = Topic(
            record,
            self.store,
            self.writer,
            self._cache,
            self._listeners,
            self._failover,
            self._policies,
            namespace,
            self.admission,
        )
        self._topics[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        return topic

    def _on_committed(self, committed: Committed) -> None:
        for topic_id, blocks in committed.appended.items():
            try:
                self._by_id[topic_id].committed(blocks)
            except Exception as error:  # noqa: BLE001 - the other topics must hear of theirs, whatever listeners do
                context = {"message": f"topic {topic_id}: not all were told what was appended", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)
        for topic_id, notes in committed.left_out.items():
            self._by_id[topic_id].passed_over(notes)


def _note_failure(task: asyncio.Task[Any]) -> None:
    """Who waits for the task has its error; if nobody does any more, asyncio need not complain about that."""
    if not task.cancelled():
        task.exception()
