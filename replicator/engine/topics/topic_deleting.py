"""Deleting topics: one, a partitioned one with its partitions, or all topics in a namespace.

Invariant (DESIGN §3): 1, topics that are deleted together go in one transaction, and nobody finds them from then on.

1. Clients are disconnected, and the topic takes nothing more. If the store refuses the deletion, the topic stays.
   A deletion that depends on the topic's messages is decided from here on, when what was on its way is stored. The
   transaction of step 2 is refused if messages came after that.
2. One transaction takes the topics out of the catalog (:mod:`replicator.engine.topics.topic_deletion`).
3. The remaining rows of the topics are deleted later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from replicator.engine.errors import EngineError, LogMoved, NotAllowedError, TopicBusy, TopicNotFound
from replicator.engine.log.store import Store
from replicator.engine.log.writer import Writer
from replicator.engine.topic import Topic
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.catalog_changes import CatalogChanges
from replicator.engine.topics.catalog_index import CatalogIndex, Change, Namespace
from replicator.engine.topics.grants import GrantTable
from replicator.engine.topics.loaded_topics import LoadedTopics
from replicator.engine.topics.origin_stores import OriginStores
from replicator.engine.topics.partitions import PartitionedTopic
from replicator.engine.topics.topic_sweeper import TopicSweeper
from replicator.running.supervisor import Supervisor

TOPICS_AT_ONCE: Final = 1_000
"""Limit of topics that are deleted together. They share a commit, and leave room for others in the writer's queue."""
DECISIONS_MAX: Final = 10
"""Most decisions about one deletion. A deletion is decided again if the topic got messages meanwhile, which only links
and commits that were under way can bring."""


class TopicDeleting:
    """Deletes topics of one engine, and sweeps up after them."""

    __slots__ = ("_changes", "_cluster", "_grants", "_index", "_loaded", "_stores", "_writer", "sweeper")

    def __init__(
        self,
        store: Store,
        writer: Writer,
        index: CatalogIndex,
        changes: CatalogChanges,
        loaded: LoadedTopics,
        supervisor: Supervisor,
        grants: GrantTable,
        stores: OriginStores,
    ) -> None:
        self._cluster = store.cluster
        self._stores = stores
        self._writer = writer
        self._index = index
        self._changes = changes
        self._grants = grants
        self._loaded = loaded
        self.sweeper = TopicSweeper(writer, supervisor)
        """Task that deletes the remaining rows of deleted topics."""

    async def delete(
        self,
        name: str,
        *,
        force: bool = False,
        keeps_grants: bool = False,
        on_purpose: bool = True,
        check: Callable[[Topic], None] | None = None,
    ) -> None:
        """Delete a topic with its messages and subscriptions. When this returns, the deletion is durable.

        Rows that the topic leaves in the store are deleted afterwards, in steps. Other clusters keep their copies of
        the topic, and what they published to it comes back by links to this cluster. So delete the topic there, too.

        With ``keeps_grants``, the topic's permissions stay, because a link is expected to bring the topic back. Without
        ``on_purpose``, the deletion is not announced to other clusters: nobody asked for it, and the topic is made
        again.

        ``check`` raises an error if the messages of the topic may not be lost. It is called with the topic that is to
        be deleted, once before anything is done, and again when no message is on its way any more. Its error stops the
        deletion, and the topic stays.

        Raises :class:`TopicNotFound` if there is no such topic, :class:`NotAllowedError` if the topic is partitioned,
        and :class:`TopicBusy` if producers or consumers are connected. With ``force`` they are disconnected instead.
        """
        full_name = str(parsed := parse_topic(name))

        async def delete() -> None:
            if (whole := self._index.partitioned(parsed)) is not None:
                raise NotAllowedError(f"{full_name} has {whole.partitions} partitions: delete the partitioned topic")
            topic = self._loaded.by_name.get(full_name)
            if topic is None:
                raise TopicNotFound(f"cluster {self._cluster!r} has no topic {full_name!r}")
            if check is not None:
                check(topic)  # clients stay connected if it is refused already
            await self._delete([topic], force=force, keeps_grants=keeps_grants, on_purpose=on_purpose, check=check)

        await self._changes.alone(delete)

    async def delete_partitioned(self, whole: PartitionedTopic, *, force: bool) -> None:
        """Delete a partitioned topic with all its partitions, in one step, as a part of the caller's change."""
        topics = [self._loaded.by_name[name] for name in self._index.partitions_here(whole.name)]
        known = whole.known.get(self._cluster, 0), self._stores.partitioned_deleted(whole.name).get(self._cluster, 0)
        await self._delete(topics, whole, force=force, above=max(known))

    async def delete_all(self, namespace: Namespace, *, force: bool) -> None:
        """Delete every topic of a namespace, as a part of the caller's change."""
        for whole in list(namespace.partitioned.values()):
            await self.delete_partitioned(whole, force=force)
        while namespace.topics:
            await self._delete([self._loaded.by_name[name] for name in namespace.topics[:TOPICS_AT_ONCE]], force=force)

    async def _delete(
        self,
        topics: list[Topic],
        whole: PartitionedTopic | None = None,
        *,
        force: bool,
        keeps_grants: bool = False,
        on_purpose: bool = True,
        above: int = 0,
        check: Callable[[Topic], None] | None = None,
    ) -> None:
        """Delete topics, and the partitioned topic that they are the partitions of, in one transaction.

        The id of the partitioned topic's deletion is higher than ``above``, whatever the clock says.
        """
        if not force:
            for topic in topics:
                if (busy := topic.busy) is not None:
                    raise TopicBusy(
                        f"a topic that is to be deleted is in use, as {busy} connected: disconnect them first, or use "
                        "force"
                    )
        for topic in topics:
            topic.leave()
        try:
            await asyncio.gather(*(topic.compaction.stop() for topic in topics))
            if not keeps_grants:
                names = [topic.name for topic in topics]
                if whole is not None:
                    names = [*dict.fromkeys([*names, whole.name, *self._grants.of_partitions(whole.name)])]
                await self._grants.revoke_all(names)
            tails = [topic.tail for topic in topics]
            earlier = {topic.topic_id: self._stores.earlier_lives(topic) for topic in topics}
            name = None if whole is None else whole.name
            for decision in range(1, DECISIONS_MAX + 1):
                messages: dict[int, int] = {}
                if check is not None:
                    for topic in topics:
                        messages[topic.topic_id] = await self._writer.messages_ever(topic.tail)
                        check(topic)
                try:
                    noted = await self._writer.delete_topics(
                        tails, name, noted=on_purpose, earlier=earlier, above=above, messages=messages
                    )
                    break
                except LogMoved:
                    if decision == DECISIONS_MAX:
                        raise
        except BaseException:
            for topic in topics:
                topic.stay()
            raise
        changes: list[Change] = []
        for topic in topics:
            self._loaded.remove(topic)
            changes += self._index.remove_topic(topic.name)
            topic.gone()
        if whole is not None:
            changes += self._index.remove_partitioned(whole.name)
        self.sweeper.add([topic.topic_id for topic in topics])
        self._stores.topics_deleted([topic.topic_id for topic in topics], noted)
        self._loaded.tell(changes)
        with suppress(EngineError):  # the topics are deleted; the next deletion also deletes the forgotten rows
            await self._stores.save()
