"""Mending damaged blocks of a running worker by the copies of other clusters, as they are found.

Invariants (DESIGN §3): 2, what is put in place of a damaged block is that block, by its checksums; 11, so many damaged
blocks are remembered at most.

1. Whoever reads a damaged block is refused, and its place is noted: by links, dispatchers, Spark's readers, on any
   thread.
2. The other clusters are asked for it, one after another (:mod:`replicator.backup.repairing`). Where none gives it,
   they are asked again after a while.
3. The writer puts it in its place, and those who stopped at it go on.

``replicator verify --fix`` asks for single blocks at once (:meth:`BlockRepair.mend`), in the same way.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from enum import StrEnum
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


class Outcome(StrEnum):
    """Outcome for a block that was to be mended. A block that is gone was trimmed, or deleted with its topic."""

    MENDED = "mended"
    SOUND = "sound"
    GONE = "gone"
    LEFT = "left"


log = structlog.get_logger(__name__)


class BlockRepair:
    """Mending of one worker's blocks. ``on_mended`` is called with a topic when one of its blocks is whole again."""

    def __init__(self, engine: Engine, supervisor: Supervisor, on_mended: Callable[[Topic], None]) -> None:
        self._engine = engine
        self._on_mended = on_mended
        self._peers: Mapping[str, str] = {}
        self._noted: dict[tuple[int, Position], str] = {}
        """Reason why a block could not be mended yet, by topic id and position."""
        self._one_by_one = asyncio.Lock()
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
        """Set the addresses of the other clusters' workers, by name."""
        self._peers = dict(peers)

    def status(self) -> dict[str, object]:
        """Return the blocks that are damaged now, and how many were mended since the start."""
        names = {(topic_id, at): self._engine.loaded.by_id.get(topic_id) for topic_id, at in self._noted}
        damaged = [
            {"topic": topic.name, "position": str(at), "reason": self._noted[topic_id, at]}
            for (topic_id, at), topic in names.items()
            if topic is not None
        ]
        return {"mended": self.mended, "damaged": damaged}

    def _damaged(self, topic_id: int, position: Position) -> None:
        """Note a damaged block; called on any thread."""
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

    async def mend(self, topic: Topic, position: Position) -> tuple[Outcome, str]:
        """Mend the block that holds ``position`` now, if it is damaged. Return also the reason if it is left."""
        before = Position(position.ledger, position.entry - 1)
        async with self._one_by_one:
            try:
                blocks, _ = self._engine.store.read_blocks(topic.topic_id, before, position, bytes_max=0)
            except BlockCorrupt as error:
                damage = str(error)
            else:
                return (Outcome.SOUND if blocks else Outcome.GONE), ""
            done, reason = await self._replaced(topic, position)
            if done is Outcome.LEFT:
                return done, damage if reason == damage else f"{damage}; {reason}"
            self._noted.pop((topic.topic_id, position), None)
            return done, ""

    async def _mend(self, topic_id: int, position: Position) -> None:
        async with self._one_by_one:
            if (topic_id, position) not in self._noted:  # it was mended while others were
                return
            topic = self._engine.loaded.by_id.get(topic_id)
            done, reason = (Outcome.GONE, "") if topic is None else await self._replaced(topic, position)
            if done is not Outcome.LEFT:
                self._noted.pop((topic_id, position), None)
            elif self._noted.get((topic_id, position)) != reason:
                self._noted[topic_id, position] = reason
                log.error("a damaged block cannot be mended", topic_id=topic_id, position=str(position), reason=reason)

    async def _replaced(self, topic: Topic, position: Position) -> tuple[Outcome, str]:
        """Fetch the block from a cluster that has it, and put it in its place; return the reason if that is
        impossible.
        """
        before = Position(position.ledger, position.entry - 1)
        try:
            heads = self._engine.store.block_heads(topic.topic_id, before, position, blocks_max=1)
            if not heads:  # it was deleted, or trimmed
                return Outcome.GONE, ""
            block, reason = await asyncio.to_thread(copy_of, heads[0], topic.name, self._peers)
            if block is None:
                return Outcome.LEFT, reason
            await self._engine.writer.replace_block(topic.topic_id, heads[0].first, block)
        except (BlockCorrupt, StoreFailed, StoreFull) as error:
            return Outcome.LEFT, str(error)
        self.mended += 1
        log.warning("a damaged block was mended", topic=topic.name, position=str(heads[0].first))
        self._on_mended(topic)
        return Outcome.MENDED, ""
