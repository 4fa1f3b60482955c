"""Keeps the number of partitions of a topic the same at both ends of a link.

Invariants: the number never falls; the larger number wins at both ends; the destination knows of partitions before it
gets blocks of them, so that they never pass for topics of their own there.

1. Connected: every partitioned topic that the link carries is announced to the destination, some in each request.
2. The destination makes what it does not have, grows what has fewer, and answers with the numbers that it has then.
3. Where it has more, the source grows. Where it refuses (the name is a plain topic there) the reason is kept for the
   link's status until the next connection; the partitions' blocks are refused too, and halt one by one.
4. A topic that becomes partitioned or grows later is announced before the next frame of blocks. So is, once more, a
   topic of which a frame has a partition's first block: the destination may have deleted it since, with its number.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final, Protocol

import structlog

from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.links.transport import PartitionsReply

TOPICS_AT_ONCE: Final = 500
"""Announced in one request: with the longest names 200 kB, below what an HTTP server takes."""

log = structlog.get_logger(__name__)


class Transport(Protocol):
    """What it needs of the connection."""

    async def announce_partitions(self, topics: dict[str, int]) -> PartitionsReply: ...


class PartitionAnnouncer:
    """For one link. ``carries`` says whether the link carries a topic of that name."""

    def __init__(self, engine: Engine, to: str, carries: Callable[[str], bool]) -> None:
        self._engine = engine
        self._to = to
        self._carries = carries
        self._unannounced: dict[str, None] = {}
        self.refused: dict[str, str] = {}
        """By topic, why the two ends do not have the same partitions."""

    def on_connected(self) -> None:
        """What the destination has is not known: announce everything."""
        self.refused.clear()
        self._unannounced = {each.name: None for each in self._engine.catalog.index.all_partitioned()}

    def changed(self, name: str) -> None:
        """A topic was partitioned or grew, or may be carried from now on."""
        self._unannounced[name] = None

    def forget(self, name: str) -> None:
        """The topic was deleted."""
        self._unannounced.pop(name, None)
        self.refused.pop(name, None)

    async def announce(self, transport: Transport) -> None:
        """Announce what was not announced. Raises what the transport does; the next connection announces all."""
        while self._unannounced:
            numbers: dict[str, int] = {}
            for name in list(islice(self._unannounced, TOPICS_AT_ONCE)):
                del self._unannounced[name]
                if self._carries(name) and (partitions := self._engine.partitioned.count(name)):
                    numbers[name] = partitions
            if not numbers:
                continue
            reply = await transport.announce_partitions(numbers)
            for name, partitions in reply.partitions.items():
                if name in numbers:
                    await self._answered(name, partitions)
            for name, (code, message) in reply.refused.items():
                if name in numbers:
                    self._note_refused(name, f"{code}: {message}")

    async def _answered(self, name: str, partitions: int) -> None:
        self.refused.pop(name, None)
        if 0 < self._engine.partitioned.count(name) < partitions:
            try:
                await self._engine.partitioned.adopt(name, partitions)
            except EngineError as error:
                self._note_refused(name, f"{self._to} has {partitions} partitions: {error}")

    def _note_refused(self, name: str, reason: str) -> None:
        if self.refused.get(name) != reason:
            log.error("link: partitions differ", cluster=self._engine.cluster, to=self._to, topic=name, reason=reason)
        self.refused[name] = reason
