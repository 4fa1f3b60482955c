"""Mending damaged blocks of a running worker by the copies of other clusters, as they are found.

Invariants (DESIGN §3): 2, what is put in place of a damaged block is that block, by its checksums; 11, so many damaged
blocks are remembered at most.

1. Whoever reads a damaged block is refused, and its place is noted: by links, dispatchers, Spark's readers, on any
   thread.
2. The other clusters are asked for it, one after another (:mod:`replicator.backup.repairing`). Where none gives it,
   they are asked again after a while.
3. The writer puts it in its place, and those who stopped at it go on.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from replicator.backup.repairing import copy_of
from replicator.engine.engine import Engine
from replicator.engine.errors import BlockCorrupt, StoreFailed, StoreFull
from replicator.engine.topic import Topic
from replicator.running.supervisor import Supervisor
from replicator.running.timeouts import timeout
from snapshots.position import Position

RETRY_SECONDS: Final = 60.0
NOTED_MAX: Final = 1_000

log = structlog.get_logger(__name__)


class Mending:
    """Of one worker. ``on_mended`` is told of a topic of which a block is whole again."""

    def __init__(self, engine: Engine, supervisor: Supervisor, on_mended: Callable[[Topic], None]) -> None:
        self._engine = engine
        self._on_mended = on_mended
        self._peers: Mapping[str, str] = {}
        self._noted: dict[tuple[int, Position], str] = {}
        """By topic id and position, why it could not be mended yet."""
        self._wake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._task = supervisor.task("mending", "mending of damaged blocks", self._run)
        self.mended = 0

    def start(self) -> None:
        self._engine.store.on_damaged = self._damaged
        self._task.start()

    async def stop(self) -> None:
        self._engine.store.on_damaged = None
        await self._task.stop()

    def change(self, peers: Mapping[str, str]) -> None:
        """Where the other clusters' workers are, by name."""
        self._peers = dict(peers)

    def status(self) -> dict[str, object]:
        """What is damaged now, and how many blocks were mended since the start."""
        names = {(topic_id, at): self._engine.loaded.by_id.get(topic_id) for topic_id, at in self._noted}
        damaged = [
            {"topic": topic.name, "position": str(at), "reason": self._noted[topic_id, at]}
            for (topic_id, at), topic in names.items()
            if topic is not None
        ]
        return {"mended": self.mended, "damaged": damaged}

    def _damaged(self, topic_id: int, position: Position) -> None:
        """On any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the worker has ended
            self._loop.call_soon_threadsafe(self._note, topic_id, position)

    def _note(self, topic_id: int, position: Position) -> None:
        if len(self._noted) < NOTED_MAX and (topic_id, position) not in self._noted:
            self._noted[topic_id, position] = ""
            self._wake.set()

    async def _run(self) -> None:
        while True:
            self._wake.clear()
            for topic_id, position in list(self._noted):
                await self._mend(topic_id, position)
            with contextlib.suppress(TimeoutError):
                async with timeout(RETRY_SECONDS if self._noted else None):
                    await self._wake.wait()

    async def _mend(self, topic_id: int, position: Position) -> None:
        topic = self._engine.loaded.by_id.get(topic_id)
        before = Position(position.ledger, position.entry - 1)
        reason = ""
        try:
            heads = [] if topic is None else self._engine.store.block_heads(topic_id, before, position, blocks_max=1)
            if topic is None or not heads:  # it was deleted, or trimmed
                del self._noted[topic_id, position]
                return
            block, reason = await asyncio.to_thread(copy_of, heads[0], topic.name, self._peers)
            if block is not None:
                await self._engine.writer.replace_block(topic_id, heads[0].first, block)
                self._noted.pop((topic_id, position), None)
                self.mended += 1
                log.warning("a damaged block was mended", topic=topic.name, position=str(heads[0].first))
                self._on_mended(topic)
                return
        except (BlockCorrupt, StoreFailed, StoreFull) as error:
            reason = str(error)
        if self._noted.get((topic_id, position)) != reason:
            self._noted[topic_id, position] = reason
            log.error("a damaged block cannot be mended", topic_id=topic_id, position=str(position), reason=reason)
