"""Writes mappings and states to Postgres, behind everything else (invariants 9 and 11).

1. Changes are kept by key, so a subscription that moves a thousand times a second is written with its newest state
   only. One task writes them in batches, one batch at a time, so that an older state never overtakes a newer one.
2. If a write fails it is tried again with growing, random pauses for as long as the worker runs; each try is bounded.
3. While the database is away, or when more changed than is kept, the index is marked as *behind*. Once the database
   answers, the worker gives all that it knows again (``resync``); what the index has beyond that is outdated, such as
   mappings that were thinned since, and is removed. The same is done when the worker starts, and now and then.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final, TypeVar

import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_never,
    wait_random_exponential,
)

from replicator.database import Database, DatabaseError
from snapshots.mapping import SnapshotMapping
from snapshots.position import Position
from snapshots.repository import RepositoryUnavailable, RowsRefused, SnapshotRepository, SubscriptionState

WAITING_MAX: Final = 100_000
"""Changes kept while the database is slow: tens of megabytes. Past it the index is behind and is written anew. What a
resync gives does not count: the worker has it in memory already."""
MAPPINGS_BETWEEN_RESYNCS: Final = 50_000
"""So many mappings later, most were thinned: hours of a busy topic."""
BATCH_MAX: Final = 5_000
PROBE_SECONDS: Final = 5.0
"""How long a database that is away goes unnoticed while there is nothing to write."""
GATHER_SECONDS: Final = 0.1
"""Changes are gathered for this long, so that a statement carries many."""
WRITE_SECONDS_MAX: Final = 60.0
"""For one batch; the database's own limit on a statement is shorter, but a server that vanished keeps to none."""
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
        self._deleted_topics: dict[str, None] = {}
        """Whose rows in the database are to be deleted, before what waits is written."""
        self._stale: set[str] = set()
        """Those of them of which rows wait that came before the deletion."""
        self._behind = True  # what was written before this process started may be incomplete
        self._resyncing = False
        self._mappings_since_resync = 0
        self._writing = asyncio.Lock()
        self.rows_refused = 0
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._changed.set()
        self._task = asyncio.get_running_loop().create_task(self._run(), name="index writer")
        self._task.add_done_callback(_report)

    async def stop(self) -> None:
        """Write what is waiting, if the database takes it at once."""
        if self._task is None:
            return
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if self._database.state != "up":
            return
        try:
            async with asyncio.timeout(LAST_FLUSH_SECONDS_MAX):
                await self._flush()
        except (RepositoryUnavailable, DatabaseError, TimeoutError):
            pass  # the next start writes it from the log

    # What there is to write.

    def mapping_recorded(self, topic: str, mapping: SnapshotMapping) -> None:
        self._drop_stale(topic)
        self._mappings[topic, mapping.peer, mapping.local] = (topic, mapping)
        self._mappings_since_resync += 1
        self._note()

    def subscription_moved(
        self, topic: str, name: str, generation: int, mark_delete: Position, *, replicated: bool
    ) -> None:
        self._drop_stale(topic)
        self._states[topic, name] = SubscriptionState(topic, name, generation, mark_delete, replicated)
        self._note()

    def subscription_deleted(self, topic: str, name: str) -> None:
        self._drop_stale(topic)
        self._states[topic, name] = None
        self._note()

    def topic_deleted(self, topic: str) -> None:
        """Nothing of it is left; what comes after this call is of another topic of the name."""
        if self._behind:
            return  # everything is written anew, and what is not written then is deleted
        self._deleted_topics[topic] = None
        self._stale.add(topic)
        self._note()

    def _drop_stale(self, topic: str | None = None) -> None:
        """Drop what waits of topics that were deleted; all of them at once, and only before it matters to ``topic``."""
        if not self._stale or (topic is not None and topic not in self._stale):
            return
        self._mappings = {key: row for key, row in self._mappings.items() if key[0] not in self._stale}
        self._states = {key: row for key, row in self._states.items() if key[0] not in self._stale}
        self._stale.clear()

    def _clear(self) -> None:
        self._mappings.clear()
        self._states.clear()
        self._deleted_topics.clear()
        self._stale.clear()

    def _note(self) -> None:
        is_full = len(self._mappings) + len(self._states) > WAITING_MAX
        if not self._resyncing and (is_full or self._mappings_since_resync > MAPPINGS_BETWEEN_RESYNCS):
            self._clear()
            self._mappings_since_resync = 0
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
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(PROBE_SECONDS):
                    await self._changed.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._changed.clear()
            retrying = AsyncRetrying(
                retry=retry_if_exception_type((RepositoryUnavailable, DatabaseError, TimeoutError)),
                wait=wait_random_exponential(multiplier=RETRY_SECONDS_MIN, max=RETRY_SECONDS_MAX),
                stop=stop_never,
                before_sleep=self._note_failure,
            )
            async for attempt in retrying:
                with attempt:
                    if self._database.state != "up":
                        self._behind = True
                        await self._database.recover()
                        log.info("database is up", cluster=self._cluster)
                    await self._flush()
                    async with asyncio.timeout(WRITE_SECONDS_MAX):
                        await self._repository().now()  # an idle worker notices too when its database has gone

    def _note_failure(self, retry_state: RetryCallState) -> None:
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        reason = str(error) or "no answer in time"
        if self._database.state != "down":
            log.warning("database is away; the index will catch up", cluster=self._cluster, reason=reason)
        self._database.mark_down(reason)

    async def _flush(self) -> None:
        """Write everything that waits; what a failed statement did not write waits again."""
        async with self._writing:
            if self._behind:
                await self._write_anew()
            await self._write_waiting()

    async def _write_anew(self) -> None:
        repository = self._repository()
        async with asyncio.timeout(WRITE_SECONDS_MAX):
            began = await repository.now()
        self._clear()
        self._resyncing = True
        try:
            self._resync()
        finally:
            self._resyncing = False
        self._behind = False
        self._mappings_since_resync = 0
        try:
            await self._write_waiting()
            if not self._behind:
                async with asyncio.timeout(WRITE_SECONDS_MAX):
                    await repository.prune_not_written_since(began)
        except BaseException:
            self._behind = True
            raise

    async def _write_waiting(self) -> None:
        """What comes while it writes is left to the next time, when more has been gathered."""
        await self._delete_topics()
        batches = (len(self._mappings) + BATCH_MAX - 1) // BATCH_MAX, (len(self._states) + BATCH_MAX - 1) // BATCH_MAX
        for _ in range(max(batches)):
            await self._delete_topics()
            mappings = _take(self._mappings)
            states = _take(self._states)
            try:
                async with asyncio.timeout(WRITE_SECONDS_MAX):
                    await self._write(mappings, states)
            except BaseException:
                gone = self._deleted_topics  # since these were taken
                self._mappings = {**{key: row for key, row in mappings.items() if key[0] not in gone}, **self._mappings}
                self._states = {**{key: row for key, row in states.items() if key[0] not in gone}, **self._states}
                raise

    async def _delete_topics(self) -> None:
        """What waits after this may be of topics that were made anew, so it must not be written before."""
        while self._deleted_topics:
            self._drop_stale()
            topics = _take(self._deleted_topics)
            try:
                async with asyncio.timeout(WRITE_SECONDS_MAX):
                    await self._repository().delete_topics(list(topics))
            except BaseException:
                self._deleted_topics = {**topics, **self._deleted_topics}
                raise

    async def _write(self, mappings: _Mappings, states: _States) -> None:
        try:
            await self._write_batch(mappings, states)
        except RowsRefused:
            # One row that the database will never take must not keep the others out.
            for key, mapping in mappings.items():
                await self._write_row(key, {key: mapping}, {})
            for name, state in states.items():
                await self._write_row(name, {}, {name: state})

    async def _write_row(self, key: tuple[Any, ...], mappings: _Mappings, states: _States) -> None:
        try:
            await self._write_batch(mappings, states)
        except RowsRefused as error:
            self.rows_refused += 1
            log.warning("row refused by the database", key=[str(part) for part in key], reason=str(error))

    async def _write_batch(self, mappings: _Mappings, states: _States) -> None:
        repository = self._repository()
        await repository.record_mappings(list(mappings.values()))
        await repository.save_subscription_states([state for state in states.values() if state is not None])
        for (topic, name), state in states.items():
            if state is None:
                await repository.delete_subscription_state(topic, name)

    def _repository(self) -> SnapshotRepository:
        if self._database.engine is None:
            raise RepositoryUnavailable(self._database.detail or "the database was not reached yet")
        return SnapshotRepository(self._database.engine, self._cluster)


def _take(waiting: dict[K, V]) -> dict[K, V]:
    """Remove and return up to :data:`BATCH_MAX` items, the oldest first."""
    keys = list(waiting)[:BATCH_MAX]
    return {key: waiting.pop(key) for key in keys}


def _report(task: asyncio.Task[None]) -> None:
    """The writer ends when it is cancelled; anything else is a defect that must not pass in silence."""
    if not task.cancelled() and task.exception() is not None:
        log.error("index writer ended", exc_info=task.exception())
