"""The task that deletes what deleted topics left behind; see :mod:`replicator.engine.topics.topic_deletion`."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import structlog

from replicator.engine.errors import EngineError
from replicator.engine.log.writer import Writer
from replicator.running.supervisor import Supervisor

log = structlog.get_logger(__name__)


class TopicSweeper:
    """Deletes what deleted topics left behind, one topic after another, beside everything else."""

    def __init__(self, writer: Writer, supervisor: Supervisor) -> None:
        self._writer = writer
        self._waiting: deque[int] = deque()
        self._task = supervisor.task("topic sweeper", "topic sweeper", self._run, until_done=True)
        self._stopped = False

    def add(self, topic_ids: Iterable[int]) -> None:
        """These topics are deleted; begin with what they left when the ones before them are done."""
        self._waiting.extend(topic_ids)
        if self._waiting and not self._stopped:
            self._task.start()

    async def swept(self) -> None:
        """Returns when nothing is left of what was deleted before this call, or the store takes no writes."""
        await self._task.done()

    async def stop(self) -> None:
        """What is left is taken up at the next start."""
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
