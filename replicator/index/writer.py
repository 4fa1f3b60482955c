"""Writes what the worker knows to Postgres, behind everything else (invariants 9 and 11).

1. Changes are reported to :mod:`replicator.index.changes` and kept by key, so a subscription that moves a thousand
   times a second is written with its newest state only. One task writes them in batches, one batch at a time, so that
   an older state never overtakes a newer one. After many rows it gathers longer (:data:`ROWS_A_SECOND`). The exact
   mapping is read from the store when it is written (:mod:`replicator.index.extents`).
2. If a write fails it is tried again with growing, random pauses for as long as the worker runs; each try is bounded.
3. While the database is away, when more changed than is kept, or when the index is found to be another one than was
   written (emptied, truncated, restored), it is marked as *behind*. Once the database answers, the worker gives all
   that it knows again (``resync``), and extents are compared with the store; what the index has beyond that is
   outdated, and is removed. The same is done when the worker starts.
4. Mappings are thinned in memory as they come. Every :data:`MAPPINGS_BETWEEN_THINNINGS` of a topic and peer, those that
   memory did not keep are deleted here too.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from datetime import datetime
from typing import Final, TypeVar
from uuid import uuid4

import structlog
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_never,
    wait_random_exponential,
)

from replicator.engine.engine import Engine
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.index.audit_queue import AuditQueue
from replicator.index.batches import BatchWriter
from replicator.index.changes import IndexChanges
from replicator.index.database import Database, DatabaseError
from replicator.index.extents import WRITE_SECONDS_MAX, ExtentWriter
from replicator.index.subscription_states import SubscriptionStates
from replicator.running.supervisor import Supervisor
from replicator.running.timeouts import timeout
from snapshots.ack_vector import AckVector
from snapshots.errors import ExtentsCorrupt
from snapshots.mapping import SnapshotMapping
from snapshots.position import Position
from snapshots.repository import (
    AuditEntry,
    DrillRun,
    ExtentKey,
    Head,
    RepositoryUnavailable,
    RowsRefused,
    SnapshotRepository,
)

MAPPINGS_BETWEEN_THINNINGS: Final = 64
"""Most rows of a topic and peer that the index has beyond the mappings in memory."""
PROBE_SECONDS: Final = 5.0
"""Longest time for which the loss of the database is not noticed while there is nothing to write."""
GATHER_SECONDS: Final = 0.1
"""Changes are gathered for this long at least, so that a statement carries many."""
GATHER_SECONDS_MAX: Final = 1.0
ROWS_A_SECOND: Final = 50
"""After many rows were written, changes are gathered for longer, so that no more than this are written in a second.
Where hundreds of topics move, a row is written as seldom as a snapshot of its topic is taken."""
THINNED_SECONDS_MAX: Final = 10.0
"""Longest time for which rows wait for that. Failover epochs and audit entries do not wait."""
GATHER_TIMES: Final = 50
"""Changes are gathered so many times as long as the last write took, up to :data:`GATHER_SECONDS_MAX`. Where everything
changes, each row is written less often: with 4 times, writing took a third of the event loop's time."""
EXTENTS_SECONDS: Final = 2.0
"""The last segment of a mapping that grows is written again this often, while few mappings grow."""
EXTENTS_A_SECOND: Final = 20
"""After many mappings were written, the next write waits so long that no more than this are written in a second, but
not longer than :data:`THINNED_SECONDS_MAX`. A look-up of a position writes the mappings of its topic first."""
LOOK_UP_SECONDS_MAX: Final = 3.0
"""Longest time for the look-up of one position in Postgres. After that, the store answers."""
RETRY_SECONDS_MIN: Final = 0.2
RETRY_SECONDS_MAX: Final = 10.0
LAST_FLUSH_SECONDS_MAX: Final = 3.0

T = TypeVar("T")

log = structlog.get_logger(__name__)


class IndexWriter:
    """The index of one worker.

    ``resync`` is called to be given everything again; it calls back with each piece. ``engine`` has the extents and the
    cursors; without it there is no exact mapping in the index. ``kept`` gives the local positions of the snapshot
    mappings of a topic and peer that are in memory; ``vector`` the exact state of a subscription, by origin.
    """

    def __init__(
        self,
        database: Database,
        *,
        cluster: str,
        resync: Callable[[], None],
        engine: Engine | None = None,
        kept: Callable[[str, str], Collection[Position]] | None = None,
        vector: Callable[[Topic, Subscription], AckVector] | None = None,
    ) -> None:
        supervisor = Supervisor() if engine is None else engine.supervisor
        self._database = database
        self._cluster = cluster
        self._resync = resync
        self._kept = kept
        self.states = SubscriptionStates(engine, vector)
        self._batches = BatchWriter(self.states)
        self.extents = None if engine is None else ExtentWriter(engine)
        audit_queue = None if engine is None else AuditQueue(engine)
        self.changes = IndexChanges(self.extents, counts_mappings=kept is not None, audit_queue=audit_queue)
        """Changes that the services of the worker reported."""
        self._extents_due = 0.0
        self._head: Head | None = None
        """Head of the index in Postgres after everything had been written."""
        self.writing = asyncio.Lock()
        """Held by who writes."""
        self._extents_refused = 0
        self.rows_written = 0
        """Rows that were written, or tried, since the start."""
        self._task = supervisor.task("index writer", "index writer", self._run)

    def start(self) -> None:
        self._task.start()

    async def stop(self) -> None:
        """Write what is waiting, if the database takes it at once."""
        if not self._task.running:
            return
        await self._task.stop()
        if self._database.state != "up":
            return
        try:
            async with timeout(LAST_FLUSH_SECONDS_MAX):
                await self.flush()
        except (RepositoryUnavailable, DatabaseError, TimeoutError):
            pass  # the next start writes it from the log

    @property
    def rows_refused(self) -> int:
        """Rows that the database did not take, and that are not in the index therefore."""
        return self._batches.rows_refused + self._extents_refused

    # Reading, for people and tools.

    async def mappings(self, topic: str) -> list[SnapshotMapping]:
        """Write the waiting changes, and return the mappings of a topic from Postgres.

        Raises :class:`RepositoryUnavailable`.
        """
        self._check_up()
        await self.flush(extents=False)
        return await self.repository().mappings(topic)

    async def mappings_of(self, topics: Collection[str]) -> dict[str, list[SnapshotMapping]]:
        """Write all waiting rows, then return the snapshot mappings of ``topics`` from Postgres, by topic.

        Raises :class:`RepositoryUnavailable` if Postgres does not answer.
        """
        self._check_up()
        await self.flush(extents=False)
        return await self.repository().mappings_of(topics)

    async def audit_log(self, *, since: datetime | None = None, newest: int = 100) -> list[AuditEntry]:
        """Write all waiting rows, then return the cluster's audit log, the newest entry first.

        Raises :class:`RepositoryUnavailable` if Postgres does not answer.
        """
        self._check_up()
        await self.flush(extents=False)
        return await self.repository().audit_log(since=since, newest=newest)

    async def drill_runs(self, *, newest: int) -> list[DrillRun]:
        """Return the drills that this database has, the newest first. Raises :class:`RepositoryUnavailable`."""
        self._check_up()
        return await self.repository().drill_runs(newest=newest)

    async def drill_run(self, run_id: str) -> DrillRun | None:
        """Return a stored drill with its report; None if there is no such drill.

        Raises :class:`RepositoryUnavailable` if Postgres does not answer.
        """
        self._check_up()
        return await self.repository().drill_run(run_id)

    async def to_local(self, key: ExtentKey, position: Position) -> Position | None:
        """Return the position in this log of an origin's entry, from Postgres; None if the entry was not copied.

        Waiting rows of the topic are written first. Raises :class:`RepositoryUnavailable` if Postgres does not answer.
        """
        return await self._look_up(key.topic, lambda repository: repository.to_local(key, position))

    async def to_origin(self, topic: str, position: Position) -> tuple[ExtentKey, Position] | None:
        """Return origin and origin position of the entry at ``position``, from Postgres; None if the entry was not
        copied.

        Waiting rows of the topic are written first. Raises :class:`RepositoryUnavailable` if Postgres does not answer.
        """
        return await self._look_up(topic, lambda repository: repository.to_origin(topic, position))

    async def _look_up(self, topic: str, ask: Callable[[SnapshotRepository], Awaitable[T]]) -> T:
        self._check_up()
        if self.changes.behind or self.extents is None or topic in self.extents.held:
            raise RepositoryUnavailable(
                "the index of positions in Postgres is being brought up to date: try again in a moment"
            )
        try:
            async with timeout(LOOK_UP_SECONDS_MAX):
                async with self.writing:
                    await self._delete_gone()
                    await self.extents.write(self.repository(), topic=topic)
                return await ask(self.repository())
        except (TimeoutError, ExtentsCorrupt) as error:
            raise RepositoryUnavailable(
                str(error) or f"Postgres did not answer within {LOOK_UP_SECONDS_MAX:.0f} s"
            ) from None

    def _check_up(self) -> None:
        if self._database.state != "up":
            raise RepositoryUnavailable(self._database.detail)

    # Writing.

    async def _run(self) -> None:
        self.changes.noted.set()  # a run before this one may have ended with changes that it had seen and not written
        loop = asyncio.get_running_loop()
        took, rows = 0.0, 0
        while True:
            with contextlib.suppress(TimeoutError):
                async with timeout(self._pause()):
                    await self.changes.noted.wait()
            await self._gather(took, rows)
            self.changes.noted.clear()
            self.changes.urgent.clear()
            retrying = AsyncRetrying(
                retry=retry_if_exception_type(Exception),  # a defect must not end the index for good
                wait=wait_random_exponential(multiplier=RETRY_SECONDS_MIN, max=RETRY_SECONDS_MAX),
                stop=stop_never,
                before_sleep=self._note_failure,
            )
            async for attempt in retrying:
                with attempt:
                    if self._database.state != "up":
                        self.changes.behind = True
                        await self._database.recover()
                        log.info("database is up", cluster=self._cluster)
                    began, written, anew = loop.time(), self.rows_written, self.changes.behind
                    await self.flush(extents=began >= self._extents_due)
                    took, rows = loop.time() - began, 0 if anew else self.rows_written - written
                    await self._check_head()

    async def _gather(self, took: float, rows: int) -> None:
        """Let changes gather after a write that ``took`` so long, of so many ``rows``."""
        pause = max(GATHER_SECONDS, min(GATHER_TIMES * took, GATHER_SECONDS_MAX))
        await asyncio.sleep(pause)
        with contextlib.suppress(TimeoutError):
            async with timeout(min(rows / ROWS_A_SECOND, THINNED_SECONDS_MAX) - pause):
                await self.changes.urgent.wait()

    async def _check_head(self) -> None:
        """Compare the head in the database with the last written one. Write everything again if they differ.

        So an idle worker also notices that its database has gone or was replaced.
        """
        async with timeout(WRITE_SECONDS_MAX):
            head = await self.repository().head()
        if not self.changes.behind and head != self._head:
            log.warning("the index was emptied or restored; it is written anew", cluster=self._cluster)
            self.changes.behind = True
            self.changes.noted.set()

    def _pause(self) -> float:
        if self.extents is None or not self.extents.waiting:
            return PROBE_SECONDS
        return max(0.0, min(PROBE_SECONDS, self._extents_due - asyncio.get_running_loop().time()))

    def _note_failure(self, retry_state: RetryCallState) -> None:
        error = retry_state.outcome.exception() if retry_state.outcome is not None else None
        reason = str(error) or "no answer in time"
        if not isinstance(error, RepositoryUnavailable | DatabaseError | TimeoutError):
            log.error("index writer failed; it begins anew", cluster=self._cluster, exc_info=error)
        elif self._database.state != "down":
            log.warning("database is away; the index will catch up", cluster=self._cluster, reason=reason)
        self._database.mark_down(reason)

    async def flush(self, *, extents: bool = True) -> None:
        """Write to the database everything that waits; what a failed statement did not write waits again.

        Without ``extents``, the extents go on waiting.
        """
        async with self.writing:
            if self.changes.behind:
                await self._write_anew()
            await self._write_waiting()
            await self._thin_mappings()
            if extents and self.extents is not None:
                began, written = asyncio.get_running_loop().time(), self.extents.mappings_written
                self._extents_due = began + EXTENTS_SECONDS
                try:
                    await self.extents.write(self.repository())
                except RowsRefused as error:
                    self._extents_refused += 1
                    log.warning("extents refused by the database", reason=str(error))
                self._extents_due = began + extents_pause(self.extents.mappings_written - written)

    async def _write_anew(self) -> None:
        repository = self.repository()
        async with timeout(WRITE_SECONDS_MAX):
            began = await repository.now()
        self.changes.waiting.clear()
        self.changes.resyncing = True
        try:
            self._resync()
        finally:
            self.changes.resyncing = False
        self.changes.behind = False
        self.changes.unthinned.clear()
        if self.extents is not None:
            self.extents.check_all()
            self._extents_due = 0.0
        try:
            await self._write_waiting()
            if not self.changes.behind:
                async with timeout(WRITE_SECONDS_MAX):
                    await repository.prune_not_written_since(began)
                    await repository.mark(uuid4())
                    self._head = await repository.head()
        except BaseException:
            self.changes.behind = True
            raise

    async def _write_waiting(self) -> None:
        """Write the changes that wait now. Changes that come meanwhile wait for the next time."""
        await self._delete_gone()
        batches = len(self.changes.waiting)
        while batches > 0:
            await self._delete_gone()
            changes = self.changes.waiting.take()
            if not changes:
                return
            batches -= len(changes)
            self.rows_written += len(changes)
            try:
                async with timeout(WRITE_SECONDS_MAX):
                    await self._batches.write(self.repository(), changes)
            except BaseException:
                self.changes.waiting.give_back(changes)
                raise
            self.changes.written(changes)

    async def _delete_gone(self) -> None:
        """Delete links and topics that are gone. Later changes may be about new ones of the same name, so this comes
        first."""
        while self.changes.waiting.gone_links:
            key = next(iter(self.changes.waiting.gone_links))
            async with timeout(WRITE_SECONDS_MAX):
                await self.repository().delete_link(key)
            self.changes.waiting.gone_links.pop(key, None)
        while topics := self.changes.waiting.take_deleted_topics():
            try:
                async with timeout(WRITE_SECONDS_MAX):
                    await self.repository().delete_topics(topics)
            except BaseException:
                self.changes.waiting.give_back_deleted_topics(topics)
                raise

    async def _thin_mappings(self) -> None:
        """Step 4 of the module's docstring."""
        if self._kept is None:
            return
        for (topic, peer), count in list(self.changes.unthinned.items()):
            if count >= MAPPINGS_BETWEEN_THINNINGS:
                async with timeout(WRITE_SECONDS_MAX):
                    await self.repository().keep_mappings(topic, peer, self._kept(topic, peer))
                if (topic, peer) in self.changes.unthinned:
                    self.changes.unthinned[topic, peer] -= count

    def repository(self) -> SnapshotRepository:
        if self._database.engine is None:
            raise RepositoryUnavailable(self._database.detail or "the database was not reached yet")
        return SnapshotRepository(self._database.engine, self._cluster)


def extents_pause(written: int) -> float:
    """Return the seconds between the beginnings of two writes of extents, if the first wrote so many mappings. Pure."""
    return max(EXTENTS_SECONDS, min(written / EXTENTS_A_SECOND, THINNED_SECONDS_MAX))
