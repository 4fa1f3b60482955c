"""Creating, growing and deleting partitioned topics of one engine. :mod:`.partitions` says what these are.

1. The number of partitions is stored first. From then on no plain topic of that name can be created.
2. Then the partitions are created. After a crash the next start finds the number, and creates the rest.
3. With the first change that names it, a namespace is made in the same transaction.
4. A partitioned topic that this cluster deleted on purpose is not made again only because another cluster has it. It is
   made again with the first message, or if the other cluster's topic was made after that deletion.
5. A new partition of an existing topic gets the subscriptions and policies of an earlier partition: messages may come
   before any consumer connects. Where a link brings the number, replicated subscriptions are left out: the other
   cluster tells of them, and may have deleted one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from replicator.engine.errors import EngineError, InvalidPartitions, InvalidTopicName, NotAllowedError, TopicNotFound
from replicator.engine.lineage import Deletion
from replicator.engine.log.store import Store
from replicator.engine.log.writer import Writer
from replicator.engine.topic import Topic
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.catalog import Catalog
from replicator.engine.topics.catalog_changes import CatalogChanges
from replicator.engine.topics.catalog_index import Change
from replicator.engine.topics.loaded_topics import LoadedTopics
from replicator.engine.topics.origin_stores import OriginStores
from replicator.engine.topics.partitions import SUFFIX, TABLE, PartitionedTopic, base_name, check_new, check_plain
from replicator.engine.topics.topic_deleting import TopicDeleting
from replicator.engine.topics.topic_making import TopicMaking
from snapshots.position import BEFORE_ALL

EQUIPPED_AT_ONCE: Final = 20
"""Limit of new partitions that get subscriptions at the same time. Other tasks of the event loop run in between."""
PARTITIONS_AT_ONCE: Final = 1_000
"""Limit of partitions that are created together. They share a commit, and leave room for others in the writer's
queue."""


class PartitionedTopics:
    """The partitioned topics of one engine."""

    __slots__ = ("_catalog", "_changes", "_cluster", "_deleting", "_loaded", "_making", "_stores", "_writer")

    def __init__(
        self,
        store: Store,
        writer: Writer,
        catalog: Catalog,
        changes: CatalogChanges,
        loaded: LoadedTopics,
        making: TopicMaking,
        deleting: TopicDeleting,
        stores: OriginStores,
    ) -> None:
        self._stores = stores
        self._cluster = store.cluster
        self._writer = writer
        self._catalog = catalog
        self._changes = changes
        self._loaded = loaded
        self._making = making
        self._deleting = deleting

    def count(self, name: str) -> int:
        """Return the number of partitions of a topic; 0 if it is not partitioned, or does not exist."""
        found = self._catalog.index.partitioned(parse_topic(name))
        return 0 if found is None else found.partitions

    def deletions_since(self, name: str) -> Mapping[str, int]:
        """Return the clusters that deleted the partitioned topic ``name`` since it was made here, each with the id of
        its deletion."""
        whole = self._catalog.index.partitioned(parse_topic(name))
        known = {} if whole is None else whole.known
        deleted = self._stores.partitioned_deleted(name)
        return {cluster: each for cluster, each in deleted.items() if each > known.get(cluster, 0)}

    def is_of_deleted(self, partition: str, cluster: str) -> bool:
        """Return whether the topic ``partition`` is a partition of a topic that ``cluster`` deleted since."""
        return parse_topic(partition).partition >= 0 and cluster in self.deletions_since(base_name(partition))

    async def is_back_at(self, name: str, cluster: str, deletion: int) -> None:
        """Note that ``cluster`` has the partitioned topic ``name`` again, after its deletion ``deletion``."""

        async def note() -> None:
            whole = self._catalog.index.partitioned(parse_topic(name))
            if whole is not None and deletion > whole.known.get(cluster, 0):
                changed = replace(whole, known={**whole.known, cluster: deletion})
                await self._writer.put_many([(TABLE, whole.name.encode(), changed.encode())])
                self._catalog.index.set_partitioned(changed)

        # The report of the deletion itself may come later, by the link that carries messages.
        whole = self._catalog.index.partitioned(parse_topic(name))
        if whole is not None and deletion > whole.known.get(cluster, 0):
            await self._changes.alone(note)

    async def learn_deletions(self, told: Sequence[Deletion]) -> None:
        """Record deletions of partitioned topics by this cluster that other clusters remember, and this store does not.

        A topic of such a name that is here was made after its deletion, so it is announced again. Raises the errors of
        the store.
        """
        newer = [each for each in told if each.is_of_partitioned and self._is_news(each)]
        await self._stores.learn_own(newer)
        for each in newer:
            if partitions := self.count(each.topic):
                for listener in list(self._loaded.listeners):
                    listener.on_partitions(each.topic, partitions)

    def _is_news(self, told: Deletion) -> bool:
        """Return whether ``told`` is a deletion by this cluster that this store lacks; False for a malformed name."""
        with suppress(InvalidTopicName):
            known = self._stores.partitioned_deleted(told.topic).get(self._cluster, 0)
            return (
                told.origin == self._cluster and told.incarnation > known and str(parse_topic(told.topic)) == told.topic
            )
        return False

    async def create(self, name: str, partitions: int) -> None:
        """Create a partitioned topic and its partitions. If it exists with the same number, create missing partitions.

        Raises :class:`InvalidTopicName`, :class:`InvalidPartitions`, and :class:`NotAllowedError` for a name that is
        taken, or that is the name of a partition.
        """
        wanted = check_new(name, partitions)

        async def create() -> None:
            existing = self._catalog.index.partitioned(parse_topic(wanted.name))
            if existing is not None and existing != wanted:
                raise NotAllowedError(
                    f"{wanted.name} exists with {existing.partitions} partitions, not {partitions}: use it as it is, "
                    "or take another name"
                )
            await self._make(wanted, existing)

        await self._changes.alone(create)

    async def grow(self, name: str, partitions: int) -> None:
        """Give a partitioned topic more partitions. With its present number, create missing partitions.

        Raises :class:`TopicNotFound`, and :class:`InvalidPartitions` for a number that is out of range or lower than
        the present one.
        """
        wanted = check_new(name, partitions)

        async def grow() -> int:
            existing = self._catalog.index.partitioned(parse_topic(wanted.name))
            if existing is None:
                raise TopicNotFound(f"cluster {self._cluster!r} has no partitioned topic {wanted.name!r}")
            if partitions < existing.partitions:
                raise InvalidPartitions(
                    f"{wanted.name} has {existing.partitions} partitions and cannot get fewer: give at least as many, "
                    f"not {partitions}"
                )
            await self._make(wanted, existing)
            return existing.partitions

        await self._equip(wanted.name, await self._changes.alone(grow), replicated=True)

    async def adopt(
        self,
        name: str,
        partitions: int,
        *,
        unless_deleted: Callable[[], object] = lambda: False,
        known: Mapping[str, int] | None = None,
    ) -> int:
        """Make or grow a topic so that it has as many partitions as in another cluster, or more. Return their number.

        A topic that is not here is not created if ``unless_deleted`` returns a true value. It is called when no
        deletion is under way any more. ``known`` are the deletions that the other cluster knew when its topic was
        created; None stands for all that are known here.

        Raises the errors of :meth:`create`.
        """
        wanted = check_new(name, partitions)

        async def adopt() -> int:
            existing = self._catalog.index.partitioned(parse_topic(wanted.name))
            if existing is None and unless_deleted():
                return 0
            if existing is None or existing.partitions < partitions:
                await self._make(wanted, existing, known)
            return 0 if existing is None else existing.partitions

        before = await self._changes.alone(adopt)
        if before and before < partitions:
            await self._equip(wanted.name, before, replicated=False)
        return self.count(name)

    async def delete(self, name: str, *, force: bool = False) -> None:
        """Delete a partitioned topic with all its partitions, in one step; see :meth:`TopicDeleting.delete`."""
        parsed = parse_topic(name)

        async def delete() -> None:
            whole = self._catalog.index.partitioned(parsed)
            if whole is None:
                raise TopicNotFound(f"cluster {self._cluster!r} has no partitioned topic {str(parsed)!r}")
            await self._deleting.delete_partitioned(whole, force=force)

        await self._changes.alone(delete)

    async def finish(self) -> None:
        """Create partitions that are missing because a worker was killed. Call this before anybody can make changes."""
        for partitioned in list(self._catalog.index.all_partitioned()):
            if len(self._catalog.index.partitions_here(partitioned.name)) < partitioned.partitions:
                await self._make(partitioned, partitioned)

    async def _make(
        self, wanted: PartitionedTopic, existing: PartitionedTopic | None, known: Mapping[str, int] | None = None
    ) -> None:
        """Store the number, then create the partitions. After a crash the next start finds the number, and creates the
        rest."""
        if existing is not None:
            known = existing.known
        elif known is None:
            known = self._stores.partitioned_deleted(wanted.name)
        wanted = replace(wanted, known=dict(known))
        changes: list[Change] = []
        if existing != wanted:
            namespace = parse_topic(wanted.name).full_namespace
            self._catalog.check_takes_topics(namespace)
            if existing is None:
                self._check_not_plain(wanted)
            made_namespace = self._catalog.index.namespace(namespace) is None
            # From here on nobody makes a plain topic of that name.
            changes = self._catalog.index.set_partitioned(wanted)
            try:
                await self._writer.put_many(
                    [
                        *self._catalog.rows_of_new(namespace, made_namespace),
                        (TABLE, wanted.name.encode(), wanted.encode()),
                    ]
                )
            except EngineError:
                if existing is None:
                    self._catalog.index.remove_partitioned(wanted.name)
                else:
                    self._catalog.index.set_partitioned(existing)
                raise
            for listener in list(self._loaded.listeners):
                listener.on_partitions(wanted.name, wanted.partitions)
        for first in range(0, wanted.partitions, PARTITIONS_AT_ONCE):
            following = range(first, min(first + PARTITIONS_AT_ONCE, wanted.partitions))
            await asyncio.gather(*(self._making.make(parse_topic(wanted.partition(index))) for index in following))
        self._loaded.tell(changes)

    async def _equip(self, name: str, before: int, *, replicated: bool) -> None:
        """Copy the policies and subscriptions of a partition below the index ``before`` to all from that index on.

        With ``replicated`` False, leave out replicated subscriptions.
        """
        whole = self._catalog.index.partitioned(parse_topic(name))
        if whole is None or not before:
            return
        found = (self._loaded.by_name.get(whole.partition(index)) for index in range(before))
        first = next((topic for topic in found if topic is not None), None)
        if first is None:
            return
        room = asyncio.Semaphore(EQUIPPED_AT_ONCE)

        async def equip(new: Topic) -> None:
            async with room:
                await _equip(new, first, replicated=replicated)

        new = (self._loaded.by_name.get(whole.partition(index)) for index in range(before, whole.partitions))
        await asyncio.gather(*(equip(topic) for topic in new if topic is not None))

    def _check_not_plain(self, wanted: PartitionedTopic) -> None:
        if wanted.name in self._loaded.by_name or wanted.name in self._changes.being_made:
            raise NotAllowedError(f"{wanted.name} is a topic without partitions: give the partitioned one another name")
        prefix = f"{wanted.name}{SUFFIX}"
        being_made = (name for name in self._changes.being_made if name.startswith(prefix))
        for name in (*self._catalog.index.partitions_here(wanted.name), *being_made):
            check_plain(parse_topic(name), {wanted.name: wanted})


async def _equip(new: Topic, first: Topic, *, replicated: bool) -> None:
    """Copy the policies and subscriptions of the partition ``first`` to a new partition. The copied subscriptions start
    at its first message, because messages may come before the subscriptions are made.
    """
    if first.policies.own is not None and new.policies.own is None:
        await new.policies.set(first.policies.own)
    for subscription in [each for each in first.subscriptions.values() if each.durable]:
        state = subscription.cursor.state
        if state.replicated and not replicated:
            continue
        await new.subscriptions.create(
            subscription.name,
            BEFORE_ALL,
            replicated=state.replicated,
            properties=dict(state.properties),
            read_compacted=state.read_compacted,
        )
