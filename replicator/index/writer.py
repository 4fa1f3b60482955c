"""Writes what the worker knows to Postgres, behind everything else (invariants 9 and 11).

1. Changes are kept by key (:mod:`replicator.index.waiting`), so a subscription that moves a thousand times a second is
   written with its newest state only. One task writes them in batches, one batch at a time, so that an older state
   never overtakes a newer one. The exact mapping is read from the store when it is written
   (:mod:`replicator.index.extents`).
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
from collections.abc import Awaitable, Callable, Collection, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
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
from replicator.index.batches import BatchWriter
from replicator.index.database import Database, DatabaseError
from replicator.index.extents import WRITE_SECONDS_MAX, ExtentWriter
from replicator.index.subscription_states import SubscriptionStates
from replicator.index.waiting import Waiting
from replicator.running.supervisor import Supervisor
from snapshots import markers
from snapshots.ack_vector import AckVector
from snapshots.errors import ExtentsCorrupt
from snapshots.mapping import SnapshotMapping
from snapshots.position import Position
from snapshots.repository import (
    AuditEntry,
    ExtentKey,
    FailoverEpoch,
    Head,
    LinkState,
    RepositoryUnavailable,
    RowsRefused,
    SnapshotRepository,
    SubscriptionState,
)

MAPPINGS_BETWEEN_THINNINGS: Final = 64
"""So many rows of a topic and peer the index may have beyond those in memory."""
PROBE_SECONDS: Final = 5.0
"""How long a database that is away goes unnoticed while there is nothing to write."""
GATHER_SECONDS: Final = 0.1
"""Changes are gathered for this long, so that a statement carries many."""
EXTENTS_SECONDS: Final = 2.0
"""The last segment of a mapping that grows is written again this often."""
LOOK_UP_SECONDS_MAX: Final = 3.0
"""Who asks for one position is answered by then, if need be from the store."""
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
        self._waiting = Waiting()
        self.states = SubscriptionStates(engine, vector)
        self._batches = BatchWriter(self.states)
        self.extents = None if engine is None else ExtentWriter(engine)
        self._extents_due = 0.0
        self._behind = True  # what was written before this process started may be incomplete
        self._head: Head | None = None
        """What the index was known by when everything had been written."""
        self._resyncing = False
        self._unthinned: dict[tuple[str, str], int] = {}
        """Mappings of a topic and peer since those that memory dropped were deleted."""
        self.writing = asyncio.Lock()
        """Held by who writes."""
        self._extents_refused = 0
        self._changed = asyncio.Event()
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
            async with asyncio.timeout(LAST_FLUSH_SECONDS_MAX):
                await self.flush()
        except (RepositoryUnavailable, DatabaseError, TimeoutError):
            pass  # the next start writes it from the log

    # What there is to write.

    def mapping_recorded(self, topic: str, mapping: SnapshotMapping) -> None:
        self._waiting.mapping(topic, mapping)
        if self._kept is not None:
            self._unthinned[topic, mapping.peer] = self._unthinned.get((topic, mapping.peer), 0) + 1
        self._note()

    def extents_recorded(
        self, topic: str, origin: str, incarnation: int, origin_first: Position, local_first: Position, entries: int
    ) -> None:
        """A block was copied, and is durable. Costs nothing but a note: the positions are read from the store."""
        if self.extents is not None:
            self.extents.grown(ExtentKey(topic, origin, incarnation))

    def extents_trimmed(self, topic: str, local_through: Position) -> None:
        """The log of ``topic`` is gone up to ``local_through``."""
        if self.extents is not None:
            self.extents.trimmed(topic, local_through)

    def subscription_moved(
        self,
        topic: str,
        name: str,
        generation: int,
        mark_delete: Position,
        *,
        replicated: bool,
    ) -> None:
        """What is acknowledged beyond the mark-delete position is counted when the state is written."""
        self._waiting.state(topic, name, SubscriptionState(topic, name, generation, mark_delete, replicated))
        self._note()

    def subscription_deleted(self, topic: str, name: str, generation: int | None = None) -> None:
        """With a ``generation`` its tombstone is kept."""
        buried = None if generation is None else SubscriptionState.buried(topic, name, generation)
        self._waiting.state(topic, name, buried)
        self._note()

    def topic_deleted(self, topic: str) -> None:
        """Nothing of it is left; what comes after this call is of another topic of the name."""
        if self.extents is not None:
            self.extents.topic_deleted(topic)
        for key in [key for key in self._unthinned if key[0] == topic]:
            del self._unthinned[key]
        if self._behind:
            return  # everything is written anew, and what is not written then is deleted
        self._waiting.topic_deleted(topic)
        self._note()

    def link_state(
        self,
        link_key: str,
        topic: str,
        *,
        state: str,
        acknowledged: Position,
        backlog_entries: int,
        detail: str = "",
    ) -> None:
        """What a link has to say of a topic; told again in a resync, else the index forgets it then."""
        self._waiting.link(LinkState(link_key, topic, state, acknowledged, backlog_entries, detail))
        self._note()

    def link_gone(self, link_key: str) -> None:
        """The link was taken away, or is another one from now on, which tells anew how far its topics are."""
        if self._behind:
            return  # everything is written anew, and what is not written then is deleted
        self._waiting.link_gone(link_key)
        self._note()

    def failover_epoch(
        self,
        record: markers.FailoverEpoch,
        *,
        completed_at: datetime | None = None,
        report: Mapping[str, Any] | None = None,
    ) -> None:
        """What the marker of an epoch says; ``report`` is what the failover reported."""
        said = {"writer": record.writer, "record_id": record.record_id, "serving": dict(record.serving)}
        started_at = datetime.fromtimestamp(record.at_ms / 1000, UTC)
        self._waiting.epoch(
            FailoverEpoch(
                record.epoch,
                record.source,
                record.target,
                record.kind,
                started_at,
                completed_at,
                {**said, **(report or {})},
            )
        )
        self._note()

    def audit(self, actor: str, action: str, subject: str, detail: Mapping[str, Any] | None = None) -> None:
        """Somebody did something to this cluster. Kept in Postgres alone: it is written late rather than not, but what
        a crash takes while the database is away is lost."""
        self._waiting.audit(AuditEntry(uuid4(), datetime.now(UTC), actor, action, subject, detail))
        self._note()

    @property
    def entries_dropped(self) -> int:
        """Failover epochs and audit entries that were never written: the database was away for too long."""
        return self._waiting.dropped

    @property
    def rows_refused(self) -> int:
        """Rows that the database did not take, and that are not in the index therefore."""
        return self._batches.rows_refused + self._extents_refused

    def _note(self) -> None:
        if not self._resyncing:
            self._waiting.check_limit()
            if self._waiting.overflowed:
                self._waiting.overflowed = False
                self._behind = True
        self._changed.set()

    # Reading, for people and tools.

    async def mappings(self, topic: str) -> list[SnapshotMapping]:
        """The mappings of a topic as Postgres has them, after what is waiting was written.

        Raises :class:`RepositoryUnavailable`.
        """
        self._check_up()
        await self.flush(extents=False)
        return await self.repository().mappings(topic)

    async def to_local(self, key: ExtentKey, position: Position) -> Position | None:
        """Where the entry of an origin lies here, as Postgres has it, after what is waiting of it was written.

        Raises :class:`RepositoryUnavailable`.
        """
        return await self._look_up(key.topic, lambda repository: repository.to_local(key, position))

    async def to_origin(self, topic: str, position: Position) -> tuple[ExtentKey, Position] | None:
        """What the entry at a position here was at its origin; None if it was not copied. As :meth:`to_local`."""
        return await self._look_up(topic, lambda repository: repository.to_origin(topic, position))

    async def _look_up(self, topic: str, ask: Callable[[SnapshotRepository], Awaitable[T]]) -> T:
        self._check_up()
        if self._behind or self.extents is None or topic in self.extents.held:
            raise RepositoryUnavailable("the index is being brought up to date")
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS_MAX):
                async with self.writing:
                    await self._delete_gone()
                    await self.extents.write(self.repository(), topic=topic)
                return await ask(self.repository())
        except (TimeoutError, ExtentsCorrupt) as error:
            raise RepositoryUnavailable(str(error) or f"no answer in {LOOK_UP_SECONDS_MAX:.0f} s") from None

    def _check_up(self) -> None:
        if self._database.state != "up":
            raise RepositoryUnavailable(self._database.detail)

    # Writing.

    async def _run(self) -> None:
        self._changed.set()  # a run before this one may have ended with changes that it had seen and not written
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause()):
                    await self._changed.wait()
            await asyncio.sleep(GATHER_SECONDS)
            self._changed.clear()
            retrying = AsyncRetrying(
                retry=retry_if_exception_type(Exception),  # a defect must not end the index for good
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
                    await self.flush(extents=asyncio.get_running_loop().time() >= self._extents_due)
                    await self._check_head()

    async def _check_head(self) -> None:
        """An idle worker notices, too, that its database has gone, or is not the one that it has written."""
        async with asyncio.timeout(WRITE_SECONDS_MAX):
            head = await self.repository().head()
        if not self._behind and head != self._head:
            log.warning("the index was emptied or restored; it is written anew", cluster=self._cluster)
            self._behind = True
            self._changed.set()

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
        """Write everything that waits; what a failed statement did not write waits again."""
        async with self.writing:
            if self._behind:
                await self._write_anew()
            await self._write_waiting()
            await self._thin()
            if extents and self.extents is not None:
                self._extents_due = asyncio.get_running_loop().time() + EXTENTS_SECONDS
                try:
                    await self.extents.write(self.repository())
                except RowsRefused as error:
                    self._extents_refused += 1
                    log.warning("extents refused by the database", reason=str(error))

    async def _write_anew(self) -> None:
        repository = self.repository()
        async with asyncio.timeout(WRITE_SECONDS_MAX):
            began = await repository.now()
        self._waiting.clear()
        self._resyncing = True
        try:
            self._resync()
        finally:
            self._resyncing = False
        self._behind = False
        self._unthinned.clear()
        if self.extents is not None:
            self.extents.check_all()
            self._extents_due = 0.0
        try:
            await self._write_waiting()
            if not self._behind:
                async with asyncio.timeout(WRITE_SECONDS_MAX):
                    await repository.prune_not_written_since(began)
                    await repository.mark(uuid4())
                    self._head = await repository.head()
        except BaseException:
            self._behind = True
            raise

    async def _write_waiting(self) -> None:
        """What comes while it writes is left to the next time, when more has been gathered."""
        await self._delete_gone()
        batches = len(self._waiting)
        while batches > 0:
            await self._delete_gone()
            changes = self._waiting.take()
            if not changes:
                return
            batches -= len(changes)
            try:
                async with asyncio.timeout(WRITE_SECONDS_MAX):
                    await self._batches.write(self.repository(), changes)
            except BaseException:
                self._waiting.give_back(changes)
                raise

    async def _delete_gone(self) -> None:
        """What waits after this may be of topics and links that were made anew, so it must not be written before."""
        while self._waiting.gone_links:
            key = next(iter(self._waiting.gone_links))
            async with asyncio.timeout(WRITE_SECONDS_MAX):
                await self.repository().delete_link(key)
            self._waiting.gone_links.pop(key, None)
        while topics := self._waiting.take_deleted_topics():
            try:
                async with asyncio.timeout(WRITE_SECONDS_MAX):
                    await self.repository().delete_topics(topics)
            except BaseException:
                self._waiting.give_back_deleted_topics(topics)
                raise

    async def _thin(self) -> None:
        """Step 4 of the module's docstring."""
        if self._kept is None:
            return
        for (topic, peer), count in list(self._unthinned.items()):
            if count >= MAPPINGS_BETWEEN_THINNINGS:
                async with asyncio.timeout(WRITE_SECONDS_MAX):
                    await self.repository().keep_mappings(topic, peer, self._kept(topic, peer))
                if (topic, peer) in self._unthinned:
                    self._unthinned[topic, peer] -= count

    def repository(self) -> SnapshotRepository:
        if self._database.engine is None:
            raise RepositoryUnavailable(self._database.detail or "the database was not reached yet")
        return SnapshotRepository(self._database.engine, self._cluster)
