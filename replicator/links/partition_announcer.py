"""Keeps the number of partitions of a topic the same at both ends of a link.

Invariants: the number never falls; the larger number wins at both ends; the destination knows of partitions before it
gets blocks of them, so that they never pass for topics of their own there; a partitioned topic that the destination
deleted on purpose does not come back without a message.

1. Connected: every partitioned topic that the link carries is announced to the destination, some in each request. The
   announcement is *idle*: it says that no message follows (:mod:`replicator.peering.partitions`).
2. The destination makes what it does not have, grows what has fewer, and answers with the numbers that it has then. It
   does not make again what it deleted on purpose, and answers so.
3. Where it has more, the source grows. Where it refuses (the name is a plain topic there) the reason is kept for the
   link's status until the next connection; the partitions' blocks are refused too, and halt one by one.
4. A topic that becomes partitioned or grows later is announced before the next frame of blocks, which is idle, too. An
   operator may have made it here, or this cluster got it from a third one that does not know of a deletion.
5. Before a frame with a partition's first block, its topic is announced once more, and never idle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final, Protocol

import structlog

from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.engine.lineage import Deletion
from replicator.engine.topic_name import parse_topic
from replicator.peering.partitions import PartitionsReply, PartitionsReport
from snapshots.position import BEFORE_ALL

TOPICS_AT_ONCE: Final = 500
"""Most topics announced in one request. With the longest names it has 200 kB, less than an HTTP server's limit."""

log = structlog.get_logger(__name__)


class Transport(Protocol):
    """Interface of the connection, as :class:`PartitionAnnouncer` uses it."""

    async def announce_partitions(self, told: PartitionsReport) -> PartitionsReply: ...


class PartitionAnnouncer:
    """Announces numbers of partitions over one link. ``carries`` returns whether the link carries a topic."""

    def __init__(self, engine: Engine, to: str, carries: Callable[[str], bool]) -> None:
        self._engine = engine
        self._to = to
        self._carries = carries
        self._unannounced: dict[str, bool] = {}
        """Topics to announce, each with whether a message follows."""
        self.refused: dict[str, str] = {}
        """For each topic with different partitions at the two ends, the reason."""

    def on_connected(self) -> None:
        """Announce everything: nobody knows what the destination has."""
        self.refused.clear()
        self._unannounced = {each.name: False for each in self._engine.catalog.index.all_partitioned()}

    def changed(self, name: str) -> None:
        """Announce a topic that was partitioned or grew, or that the link may carry from now on."""
        self._unannounced.setdefault(name, False)

    def messages_follow(self, name: str) -> None:
        """Announce a topic again, because the next frame has the first block of a partition."""
        self._unannounced[name] = True

    def forget(self, name: str) -> None:
        """Forget a topic that was deleted."""
        self._unannounced.pop(name, None)
        self.refused.pop(name, None)

    async def announce(self, transport: Transport) -> None:
        """Announce what was not announced. Raises the transport's errors; the next connection announces all."""
        while self._unannounced:
            idle: dict[str, int] = {}
            others: dict[str, int] = {}
            for name in list(islice(self._unannounced, TOPICS_AT_ONCE)):
                messages_follow = self._unannounced.pop(name)
                if self._carries(name) and (partitions := self._engine.partitioned.count(name)):
                    (others if messages_follow else idle)[name] = partitions
            for told in (self._told(idle, idle=True), self._told(others)):
                if told.topics:
                    await self._take(told, await transport.announce_partitions(told))

    def _told(self, topics: Mapping[str, int], *, idle: bool = False) -> PartitionsReport:
        index, stores = self._engine.catalog.index, self._engine.origin_stores
        known = {name: whole.known for name in topics if (whole := index.partitioned(parse_topic(name))) is not None}
        deleted = {name: dict(stores.partitioned_deleted(name)) for name in topics}
        return PartitionsReport(topics, idle, known, deleted)

    async def _take(self, told: PartitionsReport, reply: PartitionsReply) -> None:
        for name, partitions in reply.partitions.items():
            if name in told.topics:
                await self._answered(name, partitions)
        for name, (code, message) in reply.refused.items():
            if name in told.topics:
                self._note_refused(name, f"{code}: {message}")
        try:
            await self._learn(told, reply)
        except EngineError as error:  # the next connection tells it again
            log.warning("deletions not noted", cluster=self._engine.cluster, of=self._to, reason=str(error))

    async def _learn(self, told: PartitionsReport, reply: PartitionsReply) -> None:
        """Record which topics the destination deleted, and which deleted ones it has again."""
        at_ms = self._engine.writer.wall_clock_ms()
        deleted = [
            Deletion(name, self._to, each, BEFORE_ALL, at_ms)
            for name, each in reply.deleted.items()
            if name in told.topics
        ]
        if deleted:
            await self._engine.origin_stores.take(self._to, {}, [], deleted)
        for name, deletions in told.deleted.items():
            if reply.partitions.get(name, 0) > 0:
                await self._engine.partitioned.is_back_at(name, self._to, deletions.get(self._to, 0))

    async def _answered(self, name: str, partitions: int) -> None:
        self.refused.pop(name, None)
        if 0 < self._engine.partitioned.count(name) < partitions:
            try:
                await self._engine.partitioned.adopt(name, partitions, unless_deleted=lambda: True)
            except EngineError as error:
                self._note_refused(name, f"{self._to} has {partitions} partitions: {error}")

    def _note_refused(self, name: str, reason: str) -> None:
        if self.refused.get(name) != reason:
            log.error("link: partitions differ", cluster=self._engine.cluster, to=self._to, topic=name, reason=reason)
        self.refused[name] = reason
