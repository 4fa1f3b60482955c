"""Writes mappings and states to Postgres, behind everything else.

Invariant 9: nothing waits for it. Changes are kept by key, so a subscription that moves a thousand times a second is
written with its newest state only. While the database is away, or when more changed than is kept, the index is
marked as behind; once the database answers, the worker gives all that it knows again (``resync``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_never,
    wait_exponential_jitter,
)

from replicator.database import Database, DatabaseError
from snapshots.mapping import SnapshotMapping
from snapshots.position import Position
from snapshots.repository import RepositoryUnavailable, SnapshotRepository, SubscriptionState

WAITING_MAX: Final = 100_000
"""Changes kept while the database is slow: tens of megabytes. Past it the index is behind and is written anew."""
BATCH_MAX: Final = 5_000
GATHER_SECONDS: Final = 0.1
"""Changes are gathered for this long, so that a statement carries many."""
RETRY_SECONDS_MIN: Final = 0.2
RETRY_SECONDS_MAX: Final = 10.0
LAST_FLUSH_SECONDS_MAX: Final = 3.0

K = TypeVar("K")
V = TypeVar("V")
_Mappings = dict[tuple[str, str, Position], tuple[str, SnapshotMapping]]
_States = dict[tuple[str, str], SubscriptionState | None]

log = structlog.get_logger(__name__)


class IndexWriter:
    """The index of one worker. ``resync`` is called to be given everything again; it calls back with each piece."""

    def __init__(self, database: Database, *, cluster: str, resync: Callable[[], None]) -> None:
        self._database = database
        self._cluster = cluster
        self._resync = resync
        self._mappings: _Mappings = {}
        self._states: _States = {}
        self._behind = True  # what was written before this process started may be incomplete
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._changed.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="index writer")

    async def stop(self) -> None:
        """Write what is waiting, if the database takes it at once."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        try:
            async with asyncio.timeout(LAST_FLUSH_SECONDS_MAX):
                await self._flush()
        except (RepositoryUnavailable, DatabaseError, TimeoutError):
            pass  # the next start writes it from the log

    # What there is to write.

    def mapping_recorded(self, topic: str, mapping: SnapshotMapping) -> None:
        self._mappings[topic, mapping.peer, mapping.local] = (topic, mapping)
        self._note()

    def subscription_moved(
        self, topic: str, name: str, generation: int, mark_delete: Position, *, replicated: bool
    ) -> None:
        self._states[topic, name] = SubscriptionState(topic, name, generation, mark_delete, replicated)
        self._note()

    def subscription_deleted(self, topic: str, name: str) -> None:
        self._states[topic, name] = None
        self._note()

    def _note(self) -> None:
        if len(self._mappings) + len(self._states) > WAITING_MAX:
            self._mappings.clear()
            self._states.clear()
            self._behind = True
        self._changed.set()

    # Reading, for people and tools.

    async def mappings(self, topic: str) -> list[SnapshotMapping]:
        """The mappings of a topic as Postgres has them, after what is waiting was written.

        Raises :class:`RepositoryUnavailable`.
        """
        if self._database.state != "up":
            raise RepositoryUnavailable(self._database.detail)
        await self._flush()
        return await self._repository().mappings(topic)

    # Writing.

    async def _run(self) -> None:
        while True:
            await self._changed.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._changed.clear()
            retrying = AsyncRetrying(
                retry=retry_if_exception_type((RepositoryUnavailable, DatabaseError)),
                wait=wait_exponential_jitter(initial=RETRY_SECONDS_MIN, max=RETRY_SECONDS_MAX),
                stop=stop_never,
                before_sleep=self._note_failure,
            )
            async for attempt in retrying:
                with attempt:
                    if self._database.state != "up":
                        await self._database.upgrade()
                        self._behind = True
                        log.info("database is up", cluster=self._cluster)
                    await self._flush()

    def _note_failure(self, retry_state: RetryCallState) -> None:
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        if self._database.state != "down":
            log.warning("database is away; the index will catch up", cluster=self._cluster, reason=str(error))
        self._database.mark_down(str(error))

    async def _flush(self) -> None:
        """Write everything that waits; what a failed statement did not write waits again."""
        if self._behind:
            self._behind = False
            self._resync()
        repository = self._repository()
        while self._mappings or self._states:
            mappings = _take(self._mappings)
            states = _take(self._states)
            try:
                await repository.record_mappings(list(mappings.values()))
                await repository.save_subscription_states([state for state in states.values() if state is not None])
                for (topic, name), state in states.items():
                    if state is None:
                        await repository.delete_subscription_state(topic, name)
            except BaseException:
                self._mappings = {**mappings, **self._mappings}
                self._states = {**states, **self._states}
                raise

    def _repository(self) -> SnapshotRepository:
        assert self._database.engine is not None
        return SnapshotRepository(self._database.engine, self._cluster)


def _take(waiting: dict[K, V]) -> dict[K, V]:
    """Remove and return up to :data:`BATCH_MAX` items, the oldest first."""
    keys = list(waiting)[:BATCH_MAX]
    return {key: waiting.pop(key) for key in keys}
