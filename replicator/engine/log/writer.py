"""The one writer of a store: a thread that commits the appends of many topics in one synced transaction.

Invariants (DESIGN §3): 1, nothing is confirmed before the transaction that holds it is committed and synced; 11, the
queue is bounded in bytes. :mod:`replicator.engine.log.commit.group` describes what one transaction does.

1. Take the queued requests, up to a limit. If all of them write rows only, wait a moment: these rows often cause
   appends, which follow at once.
2. Write the requests as one group, and commit. If entries must first be decompressed to be compared, roll back,
   decompress them outside of the transaction, and write the group again.
3. Give the results to the event loop, once for each group.

If a commit fails, nothing of the group was written, and each request gets the error. If the store is full, the group is
written in halves, so that only requests that do not fit are refused. After a failed sync nobody knows what reached the
disk, so the writer confirms nothing more.

Before step 2 the writer reserves the disk space that the transaction may need (:mod:`replicator.engine.log.room`). If
there is not enough, the requests are refused before anything is written, and the writer goes on.
"""

from __future__ import annotations

import asyncio
import queue
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import lmdb

from replicator.engine.errors import EngineError, StoreFailed, StoreFull
from replicator.engine.latencies import Latencies
from replicator.engine.lineage import Deletion
from replicator.engine.log.block import BlockHeader, BlockKind, Buffer
from replicator.engine.log.commit.appending import ID_SALTS
from replicator.engine.log.commit.compacting import MOVED_BYTES_MAX
from replicator.engine.log.commit.group import CommitGroup
from replicator.engine.log.gathered_puts import GatheredPuts
from replicator.engine.log.left_out import Hole
from replicator.engine.log.requests import (
    AppendedBlock,
    BeginLifeRequest,
    Committed,
    CompactSegmentsRequest,
    CopiedBlock,
    CopyRequest,
    Counted,
    CreateTopicRequest,
    DeleteTopicsRequest,
    DropInactiveRequest,
    Extent,
    KeepBothRequest,
    OpenProducerRequest,
    PublishRequest,
    PublishStagedRequest,
    PutBackRequest,
    PutManyRequest,
    PutRequest,
    ReclaimRequest,
    RecountRequest,
    RelabelRequest,
    ReplaceBlockRequest,
    Request,
    StagedPart,
    SweepRequest,
    Tail,
    TerminateRequest,
    TrimRequest,
)
from replicator.engine.log.room import APPENDS, TableRoom, most_bytes
from replicator.engine.log.segments.segments import NoRoom
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import HighWater, TopicRecord
from replicator.engine.producing.contents import Contents, ContentsNeeded
from replicator.engine.producing.deduplication import Numbered
from replicator.engine.producing.publish_order import Turn
from snapshots.position import Position

__all__ = ["AppendedBlock", "Committed", "CopiedBlock", "Extent", "Tail", "Writer"]

GROUP_BYTES_MAX: Final = 32 * 1024 * 1024
"""Bounds the memory and the time of one transaction."""
GROUP_PUBLISH_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of producers' entries in one group. A producer keeps so much unconfirmed under way, and no more. If all of it
were one group, the producer would wait while the group is written, and the writer while the next entries come. Links
keep more under way."""
GROUP_REQUESTS_MAX: Final = 4096
QUEUE_BYTES_MAX: Final = 128 * 1024 * 1024
"""Past this, publishers wait."""
ROWS_WAIT_SECONDS: Final = 0.0005
"""What tells other clusters of an acknowledgement follows the save of its cursor by less."""
OPENINGS_MAX: Final = 16
"""How often one group is rolled back to decompress entries. Once is usual, but a decision may lead to other entries.
Beyond that, entries that are not decompressed count as different."""
COMPACTION_PAUSE_SECONDS: Final = 1 / 16
"""After a step of :data:`~replicator.engine.log.commit.compacting.MOVED_BYTES_MAX`: 32 MiB a second at most. After a
larger block it is longer."""


class Writer:
    """Queues requests from the event loop and commits them on a thread of its own.

    ``on_committed`` is called on the event loop after each group, before the requests' futures are done.
    """

    def __init__(
        self,
        store: Store,
        on_committed: Callable[[Committed], None],
        *,
        wall_clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._store = store
        self._on_committed = on_committed
        self.wall_clock_ms = wall_clock_ms
        self._loop = asyncio.get_running_loop()
        self._queue: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._queued_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._entrance = asyncio.Lock()
        self._entering = 0
        """How many callers wait for room: whoever comes later must wait behind them."""
        self._last_id = int(store.meta("last_id") or 0)
        self.failed: str | None = None
        """Why no request is taken any more; None while requests are taken."""
        self._broken = False
        self._contents = Contents()
        self.commits = 0
        self.gathered = GatheredPuts(lambda writes, cleared: self.put_many(writes, cleared=cleared))
        self.latencies = Latencies()
        """Histograms of the whole worker. The writer has them because every part of the worker has the writer at
        hand."""
        map_size = int(store.env.info()["map_size"])
        self.disk_room = TableRoom(store.data_file, map_size, store.table_bytes, store.free_pages_bytes)
        self._beyond_limit: int | None = None
        """Bytes of the last append that was refused because the store had reached its limit; None if none was."""
        self._thread = threading.Thread(target=self._run, name=f"writer-{store.cluster}", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Commit what is queued, then end the thread."""
        self._queue.put(None)
        self.failed = self.failed or "the store is closed"
        await asyncio.to_thread(self._thread.join)
        self.disk_room.close()

    def disk_status(self) -> dict[str, Any]:
        """Return the free bytes of the disk and of the reserve. ``full`` says why a full disk refuses messages, or is
        None."""
        status = self.disk_room.status()
        return {**status, "full": status["full"] or self._store.segments.full()}

    def beyond_limit(self) -> str | None:
        """Return why the store's limit ``store.size_max`` refuses messages, or None if the size refused last would
        fit now."""
        refused = self._beyond_limit
        return None if refused is None or self._store.has_room(refused) else self._limit_reached()

    def _limit_reached(self) -> str:
        return f"the store has reached its limit of {self._store.size_max} bytes (store.size_max)"

    async def publish(
        self,
        tail: Tail,
        kind: BlockKind,
        entries: Sequence[bytes],
        batch_sizes: Sequence[int],
        numbered: Sequence[Numbered] | None = None,
        turn: Turn | None = None,
        only: frozenset[str] | None = None,
        noted: Callable[[Sequence[Position]], None] | None = None,
    ) -> list[Position]:
        """Append entries of this cluster's own; returns their positions once they are durable. ``only`` are the other
        clusters that may have them, if not all may. ``noted`` is told the positions before anybody is told of the
        block.

        With ``numbered``, those that are here already are left out: ``DUPLICATE`` is returned for them. With ``turn``
        they are refused when what went before them is.
        """
        size = sum(map(len, entries))
        request = PublishRequest(
            self._loop.create_future(),
            size,
            tail=tail,
            kind=kind,
            entries=entries,
            batch_sizes=batch_sizes,
            numbered=numbered,
            turn=turn,
            only=only,
            noted=noted,
        )
        positions: list[Position] = await self._submit(request)
        return positions

    async def copy(
        self,
        tail: Tail,
        blocks: Sequence[CopiedBlock],
        *,
        numbered: bool = False,
        writes: Sequence[tuple[str, bytes, bytes | None]] = (),
    ) -> list[Extent]:
        """Append blocks of another origin, but for what is here already, and set or (with None) delete rows, in one
        transaction; returns the extents written.

        With ``numbered``, deduplication notes the sequence ids that come in.
        """
        size = sum(len(copied.block) for copied in blocks)
        extents: list[Extent] = await self._submit(
            CopyRequest(self._loop.create_future(), size, tail=tail, blocks=blocks, numbered=numbered, writes=writes)
        )
        return extents

    async def publish_staged(
        self, parts: Sequence[StagedPart], writes: Sequence[tuple[str, bytes, bytes | None]]
    ) -> list[tuple[Position, Position] | None]:
        """Append entries of this cluster's own to several topics, and set or (with None) delete rows, all at once.

        Returns the first and last position of each part, None for one whose topic was deleted or terminated.
        """
        size = sum(len(entry) for part in parts for entry in part.entries)
        found: list[tuple[Position, Position] | None] = await self._submit(
            PublishStagedRequest(self._loop.create_future(), size, parts=parts, writes=writes)
        )
        return found

    async def put(self, table: str, key: bytes, value: bytes | None) -> None:
        """Set or (with None) delete one row."""
        await self._submit(PutRequest(self._loop.create_future(), len(value or b""), table=table, key=key, value=value))

    async def put_many(
        self, writes: Sequence[tuple[str, bytes, bytes | None]], *, cleared: Sequence[tuple[str, bytes]] = ()
    ) -> None:
        """In one transaction delete every row under the ``cleared`` prefixes, then set or (with None) delete rows."""
        size = sum(len(value or b"") for _, _, value in writes)
        await self._submit(PutManyRequest(self._loop.create_future(), size, writes=writes, cleared=cleared))

    async def open_producer(self, tail: Tail, name: str, *, epoch: int | None, numbered: bool) -> int:
        """Save the topic's epoch, unless it is None. Returns the highest sequence id of that producer name, after all
        that was published before this call; -1 if there is none, or without ``numbered``."""
        highest: int = await self._submit(
            OpenProducerRequest(self._loop.create_future(), tail=tail, name=name, epoch=epoch, numbered=numbered)
        )
        return highest

    async def drop_inactive_producers(self, tail: Tail) -> None:
        """Forget the sequence ids of producers that are not connected and were not seen for long."""
        await self._submit(DropInactiveRequest(self._loop.create_future(), tail=tail))

    async def trim(self, topic_id: int, upto: Position, tail: Tail | None = None) -> None:
        """Delete a topic's oldest blocks as far as they lie at or below ``upto``, some in each transaction."""
        more = True
        while more:
            more = await self._submit(TrimRequest(self._loop.create_future(), topic_id=topic_id, upto=upto, tail=tail))

    async def reclaim(
        self,
        tail: Tail,
        last: Position,
        blocks: Sequence[tuple[BlockHeader, bytes]],
        *,
        holes: Sequence[Hole],
        upto: Position,
        numbered: bool,
    ) -> None:
        """Append blocks of this cluster's own that the log lost, at the positions that they had; ``last`` is the log's
        LAC. What nobody has are ``holes``; up to ``upto`` all is accounted for then.

        Raises :class:`NotReclaimed`.
        """
        await self._submit(
            ReclaimRequest(
                self._loop.create_future(),
                sum(len(block) for _, block in blocks),
                tail=tail,
                last=last,
                blocks=blocks,
                holes=holes,
                upto=upto,
                numbered=numbered,
            )
        )

    async def keep_both(
        self, tail: Tail, lives: Mapping[str, HighWater], holes: Mapping[str, Hole] | None = None
    ) -> None:
        """Take up a later life of a topic at each origin in ``lives``. The earlier lives stay in the log as closed
        history.

        ``holes`` are the missing ranges of the earlier lives. Raises :class:`NotAllowedError` if an origin is this
        cluster, and :class:`IncarnationMismatch` if a life is not later than the life here. Then nothing was changed.
        """
        await self._submit(KeepBothRequest(self._loop.create_future(), tail=tail, lives=lives, holes=holes or {}))

    async def put_back(
        self,
        tail: Tail,
        incarnation: int,
        blocks: Sequence[tuple[BlockHeader, bytes]],
        *,
        after: Position,
        holes: Sequence[Hole],
        upto: Position,
        numbered: bool,
    ) -> None:
        """Put lost blocks of this cluster below the end of a topic's log, at the positions that they had.

        All blocks are of the life ``incarnation``, and lie above ``after``. ``holes`` are the ranges that no cluster
        has. Afterwards every position of that life up to ``upto`` is a block or a hole. What the event loop knows of
        the topic does not change, so load the topic again. Raises :class:`NotReclaimed` if a block does not belong to
        that life, or if its positions are taken.
        """
        request = PutBackRequest(
            self._loop.create_future(),
            sum(len(block) for _, block in blocks),
            tail=tail,
            incarnation=incarnation,
            after=after,
            blocks=blocks,
            holes=holes,
            upto=upto,
            numbered=numbered,
        )
        await self._submit(request)

    async def recount(self, tail: Tail, counted: Counted) -> None:
        """Correct the counts of entries and messages before each block of a topic, after :meth:`put_back`.

        Each transaction corrects a limited number of blocks. ``counted`` is what retention had deleted from the topic.
        """
        left: Counted | None = counted
        while left is not None:
            left = await self._submit(RecountRequest(self._loop.create_future(), tail=tail, counted=left))

    async def relabel(self, topic_id: int, blocks: Sequence[Position], incarnation: int) -> None:
        """Change the life to which the blocks of this cluster at these first positions belong.

        What the event loop knows of the topic does not change. Raises :class:`BlockCorrupt` if a block is damaged.
        """
        future = self._loop.create_future()
        await self._submit(RelabelRequest(future, topic_id=topic_id, blocks=blocks, incarnation=incarnation))

    async def begin_life(self, tail: Tail, *, above: int, incarnation: int | None = None) -> TopicRecord:
        """Begin a new life of a topic, and return its new record. What the log has stays there as an earlier life.

        The new life is ``incarnation``, or else a new id above the id ``above``. What the event loop knows of the topic
        does not change, so load the topic again.
        """
        request = BeginLifeRequest(self._loop.create_future(), tail=tail, above=above, incarnation=incarnation)
        record: TopicRecord = await self._submit(request)
        return record

    async def create_topic(self, name: str, *, incarnation: int | None = None) -> TopicRecord:
        """The topic's record, made if there is none; with ``incarnation`` one that was here before a restore."""
        record: TopicRecord = await self._submit(
            CreateTopicRequest(self._loop.create_future(), name=name, incarnation=incarnation)
        )
        return record

    async def delete_topics(
        self,
        tails: Sequence[Tail],
        partitioned: str | None = None,
        *,
        noted: bool = False,
        earlier: Mapping[int, Mapping[int, Position]] | None = None,
    ) -> list[Deletion]:
        """Remove topics from the catalog, with their partitioned topic. Requests that were queued before are done
        before.

        If ``noted``, the same transaction records the deletion of each topic that has blocks of this cluster. It also
        records the deletion of the ``earlier`` lives: by topic id, the last position of each incarnation. Return these
        records.
        """
        noted_ms = self.wall_clock_ms() if noted else None
        found: list[Deletion] = await self._submit(
            DeleteTopicsRequest(
                self._loop.create_future(),
                tails=tails,
                partitioned=partitioned,
                earlier=earlier or {},
                noted_ms=noted_ms,
            )
        )
        return found

    async def terminate(self, tail: Tail) -> None:
        """What producers published before this call is stored; what they publish after it is refused, for ever."""
        await self._submit(TerminateRequest(self._loop.create_future(), tail=tail))

    async def sweep(self, topic_id: int) -> None:
        """Delete what a deleted topic left behind, some in each transaction."""
        more = True
        while more:
            more = await self._submit(SweepRequest(self._loop.create_future(), topic_id=topic_id))

    async def replace_block(self, topic_id: int, first: Position, block: bytes) -> None:
        """Put the bytes of a block, which was verified, in place of those that are damaged at its position.

        Raises :class:`BlockCorrupt` for one with another head.
        """
        await self._submit(
            ReplaceBlockRequest(self._loop.create_future(), len(block), topic_id=topic_id, first=first, block=block)
        )

    async def compact_segments(self, *, quiet_only: bool = True) -> None:
        """Make those segments free in which little lives, and nothing changes, at a bounded rate; and those whose files
        were deleted under the worker."""
        if not self._store.segments.space.segments:
            return
        moved: int | None = await self._submit(
            CompactSegmentsRequest(self._loop.create_future(), begins=True, quiet_only=quiet_only)
        )
        while moved is not None:
            await asyncio.sleep(COMPACTION_PAUSE_SECONDS * max(1.0, moved / MOVED_BYTES_MAX))
            moved = await self._submit(CompactSegmentsRequest(self._loop.create_future()))

    def begin_publish(
        self,
        tail: Tail,
        entries: Sequence[Buffer],
        batch_sizes: Sequence[int],
        size_bytes: int,
        numbered: Sequence[Numbered] | None,
        turn: Turn,
    ) -> asyncio.Future[list[Position]] | None:
        """Begin :meth:`publish` of messages for all clusters, and return the future of its result. Return None if the
        caller would have to wait for room in the queue, or if the writer has failed."""
        if self._entering or self._queued_bytes > QUEUE_BYTES_MAX:
            return None
        request = PublishRequest(
            self._loop.create_future(),
            size_bytes,
            tail=tail,
            entries=entries,
            batch_sizes=batch_sizes,
            numbered=numbered,
            turn=turn,
        )
        try:
            self._put(request)
        except StoreFailed:
            return None
        return request.future

    async def _submit(self, request: Request) -> Any:
        if self._entering or self._queued_bytes > QUEUE_BYTES_MAX:
            await self._enter(request)
        else:
            self._put(request)
        return await request.future

    async def _enter(self, request: Request) -> None:
        """Put a request into the queue as soon as there is room.

        Requests enter in the order in which they came, so that no publish overtakes one that waits.
        """
        self._entering += 1
        try:
            async with self._entrance:
                while self._queued_bytes > QUEUE_BYTES_MAX:
                    self._room.clear()
                    await self._room.wait()
                self._put(request)
        finally:
            self._entering -= 1

    def _put(self, request: Request) -> None:
        if self.failed is not None:
            raise StoreFailed(self.failed)
        request.submitted = time.perf_counter()
        self._queued_bytes += request.bytes
        self._queue.put(request)

    # From here on: the writer thread.

    def _run(self) -> None:
        last = False
        while not last:
            group, last = self._take_group()
            if not group:
                continue
            try:
                committed = self._commit(group)
            except Exception as error:  # noqa: BLE001 - a thread that died here would leave everybody waiting
                self._broken = True
                self.failed = f"the store failed and confirms nothing more until a restart: {error}"
                committed = self._refuse(group, StoreFailed(self.failed))
            self._loop.call_soon_threadsafe(self._finish, committed)

    def _take_group(self) -> tuple[list[Request], bool]:
        request = self._queue.get()
        group: list[Request] = []
        taken = published = 0
        rows_wait_until: float | None = None
        while request is not None:
            group.append(request)
            taken += request.bytes
            if isinstance(request, PublishRequest):
                published += request.bytes
            if taken >= GROUP_BYTES_MAX or published >= GROUP_PUBLISH_BYTES_MAX or len(group) >= GROUP_REQUESTS_MAX:
                return group, False
            try:
                request = self._queue.get_nowait()
            except queue.Empty:
                if not all(isinstance(each, PutManyRequest) for each in group):
                    return group, False
                now = time.monotonic()
                rows_wait_until = rows_wait_until or now + ROWS_WAIT_SECONDS
                try:
                    request = self._queue.get(timeout=max(0, rows_wait_until - now))
                except queue.Empty:
                    return group, False
        return group, True

    def _commit(self, group: list[Request], openings: int = 0) -> Committed:
        """Write a group as one transaction, or in parts if the store or the disk cannot take all. Return the results.

        ``openings`` counts how often the group was rolled back so far, to decompress entries and compare their
        contents.
        """
        if self._broken:
            return self._refuse(group, StoreFailed(self.failed))
        if (displaced := self._store.displaced()) is not None:
            self._broken = True
            self.failed = displaced
            return self._refuse(group, StoreFailed(displaced))
        appends = [request for request in group if isinstance(request, APPENDS)]
        append_bytes = sum(request.bytes for request in appends)
        if append_bytes and not self._store.has_room(append_bytes):
            return self._commit_in_halves(group)
        if self._beyond_limit is not None and append_bytes >= self._beyond_limit:
            self._beyond_limit = None
        in_segments = self._store.segments.settings.sizes(append_bytes)
        if (full := self._take_room(group, in_segments, appends=bool(appends))) is not None:
            return self._commit_what_fits(group, appends, in_segments, full)
        contents = self._contents
        batch = CommitGroup(
            self._store, self._last_id, self.wall_clock_ms(), secrets.randbelow(ID_SALTS), append_bytes, contents
        )
        try:
            with self._store.commit_lock, self._store.env.begin(write=True) as txn:
                batch.write(txn, group)
        except ContentsNeeded:
            batch.roll_back()
            if len(group) > 1 and contents.wants_too_much:
                contents.settle()
                return self._commit_in_halves(group)
            if openings < OPENINGS_MAX:
                contents.open_wanted()
            else:
                contents.closed = True
            return self._commit(group, openings + 1)
        except lmdb.MapFullError:
            batch.roll_back()
            return self._commit_in_halves(group)
        except NoRoom as error:
            batch.roll_back()
            return self._commit_in_halves(group, str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody may wait for ever or be confirmed
            batch.roll_back()
            self._broken = True
            self.failed = f"the store failed and confirms nothing more until a restart: {error}"
            return self._refuse(group, StoreFailed(self.failed))
        batch.durable()
        contents.settle()
        self._last_id = batch.last_id
        self.commits += 1
        batch.committed.bytes = sum(request.bytes for request in group)
        published = [
            each.submitted for each in group if isinstance(each, PublishRequest) and each.kind is BlockKind.MESSAGES
        ]
        if published:
            batch.committed.publishes, batch.committed.oldest_publish = len(published), published[0]
        return batch.committed

    def _take_room(self, group: Sequence[Request], in_segments: range, *, appends: bool) -> str | None:
        """Why the disk has no room for the group, if it has none."""
        return self.disk_room.take(self._store.table_bytes(), most_bytes(group, in_segments), appends=appends)

    def _commit_what_fits(
        self, group: list[Request], appends: Sequence[Request], in_segments: range, full: str
    ) -> Committed:
        """The disk has no room for the whole group. Where it has none for the smallest append either, all of them are
        refused at once: there may be thousands."""
        asking = appends or group
        smallest = min(asking, key=lambda request: request.bytes)
        if len(group) > 1 and self._take_room([smallest], in_segments, appends=bool(appends)) is None:
            return self._commit_in_halves(group, full)
        self.disk_room.refused(most_bytes([smallest], in_segments), appends=bool(appends))
        committed = self._refuse(asking, StoreFull(full))
        others = [request for request in group if not isinstance(request, APPENDS)] if appends else []
        if others:
            committed.extend(self._commit(others))
        return committed

    def _commit_in_halves(self, group: list[Request], reason: str = "") -> Committed:
        """The group does not fit: what of it does? Deleting, and what is small, has a reserve of its own."""
        if len(group) == 1:
            if not reason:
                reason, self._beyond_limit = self._limit_reached(), max(1, group[0].bytes)
            return self._refuse(group, StoreFull(reason))
        half = len(group) // 2
        committed = self._commit(group[:half])
        committed.extend(self._commit(group[half:]))
        return committed

    @staticmethod
    def _refuse(group: Sequence[Request], error: EngineError) -> Committed:
        for request in group:
            if isinstance(request, PublishRequest) and request.turn is not None:
                request.turn.refused(error)
        return Committed([(request.future, error) for request in group], bytes=sum(r.bytes for r in group))

    # On the event loop again.

    def _finish(self, committed: Committed) -> None:
        self._queued_bytes -= committed.bytes
        if committed.publishes:
            self.latencies.publish.observe(time.perf_counter() - committed.oldest_publish, committed.publishes)
        if self._queued_bytes <= QUEUE_BYTES_MAX:
            self._room.set()
        try:
            self._on_committed(committed)
        finally:  # a listener that fails is a bug; it must not leave those waiting whose writes are durable
            for future, result in committed.results:
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)
