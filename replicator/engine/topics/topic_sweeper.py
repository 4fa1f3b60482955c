"""Task that deletes the remaining rows of deleted topics; see :mod:`replicator.engine.topics.topic_deletion`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Final

import structlog

from replicator.engine.errors import EngineError, StoreFull
from replicator.engine.log.writer import Writer
from replicator.running.supervisor import Supervisor

log = structlog.get_logger(__name__)
FULL_PAUSE_SECONDS: Final = 10.0
"""Pause after a full store has refused to delete rows. Deleting needs room too, and others may make it."""


class TopicSweeper:
    """Deletes the remaining rows of deleted topics in the background, one topic after another."""

    def __init__(self, writer: Writer, supervisor: Supervisor) -> None:
        self._writer = writer
        self._waiting: deque[int] = deque()
        self._task = supervisor.task("topic sweeper", "topic sweeper", self._run, until_done=True)
        self._stopped = False

    def add(self, topic_ids: Iterable[int]) -> None:
        """Queue deleted topics. Their remaining rows are deleted after those of earlier topics."""
        self._waiting.extend(topic_ids)
        if self._waiting and not self._stopped:
            self._task.start()

    async def swept(self) -> None:
        """Wait until all rows of topics that were added before this call are deleted, or the store has failed."""
        await self._task.done()

    async def stop(self) -> None:
        """Stop the task. The next start goes on with the remaining topics."""
        self._stopped = True
        await self._task.stop()

    async def _run(self) -> None:
        told = False
        try:
            while self._waiting:
                try:
                    await self._writer.sweep(self._waiting[0])
                except StoreFull as error:
                    if not told:
                        log.warning("the rows of deleted topics wait for room", reason=str(error))
                    told = True
                    await asyncio.sleep(FULL_PAUSE_SECONDS)
                else:
                    told = False
                    self._waiting.popleft()
        except EngineError as error:  # the store has failed: the next start takes it up
            self._waiting.clear()
            log.warning("deleting of old topics stopped", reason=str(error))
