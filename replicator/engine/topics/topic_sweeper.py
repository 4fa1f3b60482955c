"""Task that deletes the remaining rows of deleted topics; see :mod:`replicator.engine.topics.topic_deletion`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import structlog

from replicator.engine.errors import EngineError
from replicator.engine.log.writer import Writer
from replicator.running.supervisor import Supervisor

log = structlog.get_logger(__name__)


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
        """Wait until all rows of topics that were added before this call are deleted, or the store takes no writes."""
        await self._task.done()

    async def stop(self) -> None:
        """Stop the task. The next start goes on with the remaining topics."""
        self._stopped = True
        await self._task.stop()

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._writer.sweep(self._waiting[0])
                self._waiting.popleft()
        except EngineError as error:  # the store takes no writes: the next start takes it up
            self._waiting.clear()
            log.warning("deleting of old topics stopped", reason=str(error))
