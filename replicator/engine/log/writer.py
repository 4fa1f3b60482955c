"""The one writer of a store: a thread that commits the appends of many topics in one synced transaction.

Invariants (DESIGN §3): 1, nothing is confirmed before the transaction that holds it is committed and synced; 11, the
queue is bounded in bytes. :mod:`replicator.engine.log.commit.group` describes what one transaction does.

1. Take the queued requests, up to a limit (:mod:`replicator.engine.log.commit.request_queue`).
2. Write them as one group, and commit (:mod:`replicator.engine.log.commit.group_commits`).
3. Give the results to the event loop, once for each group.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from replicator.engine.errors import StoreFailed
from replicator.engine.latencies import Latencies
from replicator.engine.lineage import Deletion
from replicator.engine.log.block import BlockHeader, BlockKind, Buffer
from replicator.engine.log.commit.compacting import MOVED_BYTES_MAX
from replicator.engine.log.commit.filling import in_parts
from replicator.engine.log.commit.group_commits import GroupCommits
from replicator.engine.log.commit.request_queue import RequestQueue
from replicator.engine.log.gathered_puts import GatheredPuts
from replicator.engine.log.left_out import Hole
from replicator.engine.log.requests import (
    Answer,
    AppendedBlock,
    BeginLifeRequest,
    Committed,
    CompactSegmentsRequest,
    CopiedBlock,
    CopyRequest,
    Counted,
    CountRequest,
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
    PutViewRequest,
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
from replicator.engine.log.room import TableRoom
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import HighWater, TopicRecord
from replicator.engine.producing.deduplication import SequencedEntry
from replicator.engine.producing.publish_order import OrderTicket
from replicator.running.short_tasks import complete
from snapshots.position import Position

__all__ = ["AppendedBlock", "Committed", "CopiedBlock", "Extent", "Tail", "Writer"]

COMPACTION_PAUSE_SECONDS: Final = 1 / 16
"""Pause after a compaction step of :data:`~replicator.engine.log.commit.compacting.MOVED_BYTES_MAX`, which gives 32 MiB
a second at most. It is longer after a larger block."""


class Writer:
    """Queues requests from the event loop and commits them on a thread of its own.

    ``on_committed`` is called on the event loop after each group, before the requests are answered.
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
        self._requests = RequestQueue(self._check)
        self._commits = GroupCommits(store, wall_clock_ms)
        self.failed: str | None = None
        """Why no request is taken any more; None while requests are taken."""
        self.gathered = GatheredPuts(lambda writes, cleared: self.put_many(writes, cleared=cleared))
        self.latencies = Latencies()
        """Histograms of the whole worker. The writer has them because every part of the worker has the writer at
        hand."""
        self._thread = threading.Thread(target=self._run, name=f"writer-{store.cluster}", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Commit what is queued, then end the thread."""
        self._requests.close()
        self.failed = self.failed or "the store is closed"
        await asyncio.to_thread(self._thread.join)
        self.disk_room.close()

    @property
    def commits(self) -> int:
        """Number of transactions that were committed."""
        return self._commits.count

    @property
    def disk_room(self) -> TableRoom:
        """Return the object that reserves disk space for the store's table."""
        return self._commits.disk_room

    def disk_status(self) -> dict[str, Any]:
        """Return the free bytes of the disk and of the reserve, and why a full disk refuses messages.

        ``full`` has the reason, or None. The reserve is disk space for requests other than appends.
        """
        return self._commits.disk_status()

    def full(self) -> str | None:
        """Return why messages are refused, if the disk or the store is full; None while they are taken."""
        return self._commits.disk_status()["full"] or self.beyond_limit()

    def beyond_limit(self) -> str | None:
        """Return why ``store.size_max`` refuses messages; None if the append that it last refused would fit now."""
        return self._commits.beyond_limit()

    def note_beyond_limit(self, append_bytes: int) -> None:
        """Note an append of that size that the limit refuses before it is submitted; :meth:`full` reports it."""
        self._commits.note_beyond_limit(append_bytes)

    async def publish(
        self,
        tail: Tail,
        kind: BlockKind,
        entries: Sequence[bytes],
        batch_sizes: Sequence[int],
        numbered: Sequence[SequencedEntry] | None = None,
        turn: OrderTicket | None = None,
        only: frozenset[str] | None = None,
        noted: Callable[[Sequence[Position]], None] | None = None,
    ) -> list[Position]:
        """Append entries of this cluster's own, and return their positions once they are durable.

        ``only`` has the other clusters that may have the entries, or None for all. ``noted`` gets the positions before
        anyone learns of the block. With ``numbered``, duplicates are not stored, and get the position ``DUPLICATE``.
        With ``turn``, the entries are refused if earlier ones of the same producer were refused.
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
        """Append blocks from another cluster, except entries that are here already. In the same transaction, set or
        (with None) delete rows. Return the extents written.

        With ``numbered``, deduplication records the sequence ids of the entries.
        """
        size = sum(len(copied.block) for copied in blocks)
        extents: list[Extent] = await self._submit(
            CopyRequest(self._loop.create_future(), size, tail=tail, blocks=blocks, numbered=numbered, writes=writes)
        )
        return extents

    def begin_copy(
        self, tail: Tail, blocks: Sequence[CopiedBlock], *, numbered: bool
    ) -> asyncio.Future[list[Extent]] | None:
        """Begin :meth:`copy` without rows, and return the future of its result. Return None if the caller would have to
        wait for room in the queue, or if the writer has failed."""
        size = sum(len(copied.block) for copied in blocks)
        future: asyncio.Future[list[Extent]] = self._loop.create_future()
        begun = self._begin(CopyRequest(future, size, tail=tail, blocks=blocks, numbered=numbered))
        return future if begun else None

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
        """Delete every row under the ``cleared`` prefixes, then set or (with None) delete rows, in one transaction."""
        size = sum([len(value or b"") for _, _, value in writes])
        await self._submit(PutManyRequest(self._loop.create_future(), size, writes=writes, cleared=cleared))

    async def put_view(self, rows: Sequence[tuple[str, bytes, bytes]]) -> None:
        """Set rows of a compacted view in one transaction.

        Raises :class:`StoreFull` where an append of that size would be refused.
        """
        size = sum([len(value) for _, _, value in rows])
        await self._submit(PutViewRequest(self._loop.create_future(), size, writes=rows))

    async def open_producer(self, tail: Tail, name: str, *, epoch: int | None, numbered: bool) -> int:
        """Save the topic's epoch, unless it is None. Return the producer's highest sequence id, including everything
        published before this call; -1 if there is none, or without ``numbered``."""
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
        """Append blocks of this cluster's own that the log lost, at the positions that they had.

        ``last`` is the log's LAC. ``holes`` are the ranges that no cluster has. Afterwards every own position up to
        ``upto`` is a block or a hole. Many fillers take several transactions; each of them leaves that true up to its
        own end. Raises :class:`NotReclaimed`.
        """
        request = ReclaimRequest(
            self._loop.create_future(),
            tail=tail,
            last=last,
            blocks=blocks,
            holes=holes,
            upto=upto,
            numbered=numbered,
        )
        await in_parts(request, self._submit)

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
            tail=tail,
            incarnation=incarnation,
            after=after,
            blocks=blocks,
            holes=holes,
            upto=upto,
            numbered=numbered,
        )
        await in_parts(request, self._submit)

    async def recount(self, tail: Tail, counted: Counted) -> None:
        """Correct the counts of entries and messages before each block of a topic, after :meth:`put_back`.

        Each transaction corrects a limited number of blocks. ``counted`` is what retention had deleted from the topic.
        """
        left: Counted | None = counted
        while left is not None:
            left = await self._submit(RecountRequest(self._loop.create_future(), tail=tail, counted=left))

    async def relabel(self, topic_id: int, blocks: Sequence[Position], incarnation: int) -> None:
        """Assign this cluster's blocks at the first positions ``blocks`` to the life ``incarnation`` of their topic.

        The topic's state in the event loop does not change. Raise :class:`BlockCorrupt` if a block is damaged.
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
        """Return the topic's record. Create it if there is none; with ``incarnation``, as a topic from before a
        restore."""
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
        above: int = 0,
        messages: Mapping[int, int] | None = None,
    ) -> list[Deletion]:
        """Remove topics from the catalog, with their partitioned topic. Requests that were queued before are done
        before.

        If ``noted``, the same transaction records the deletion of each topic that has blocks of this cluster. It also
        records the deletion of the ``earlier`` lives: by topic id, the last position of each incarnation; and that of
        the partitioned topic, with an id higher than ``above``. Return these records.

        ``messages`` are results of :meth:`messages_ever`, by topic id. Raises :class:`LogMoved`, and deletes nothing,
        if a topic got messages since.
        """
        noted_ms = self.wall_clock_ms() if noted else None
        found: list[Deletion] = await self._submit(
            DeleteTopicsRequest(
                self._loop.create_future(),
                tails=tails,
                partitioned=partitioned,
                earlier=earlier or {},
                noted_ms=noted_ms,
                above=above,
                messages=messages or {},
            )
        )
        return found

    async def messages_ever(self, tail: Tail) -> int:
        """Return how many messages were ever appended to a topic, once all earlier requests are done."""
        found: int = await self._submit(CountRequest(self._loop.create_future(), tail=tail))
        return found

    async def terminate(self, tail: Tail) -> None:
        """Terminate a topic: messages published before this call are stored, and later ones are refused for ever."""
        await self._submit(TerminateRequest(self._loop.create_future(), tail=tail))

    async def sweep(self, topic_id: int) -> None:
        """Delete the rows that a deleted topic left behind, a limited number in each transaction."""
        more = True
        while more:
            more = await self._submit(SweepRequest(self._loop.create_future(), topic_id=topic_id))

    async def replace_block(self, topic_id: int, first: Position, block: bytes) -> None:
        """Replace the damaged bytes of the block at ``first`` with ``block``, which must be verified.

        Raises :class:`BlockCorrupt` if ``block`` has another head.
        """
        await self._submit(
            ReplaceBlockRequest(self._loop.create_future(), len(block), topic_id=topic_id, first=first, block=block)
        )

    async def compact_segments(self, *, quiet_only: bool = True) -> None:
        """Move blocks out of segments with few live blocks, at a bounded rate, so that these segments become free. Also
        empty segments whose files were deleted while the worker runs. With ``quiet_only``, skip segments that changed
        since the last pass."""
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
        numbered: Sequence[SequencedEntry] | None,
        turn: OrderTicket,
        answer: Answer,
    ) -> bool:
        """Begin :meth:`publish` of messages for all clusters; ``answer`` receives the positions.

        Return False if nothing was begun: the caller would have to wait for room in the queue, or the writer has
        failed.
        """
        request = PublishRequest(
            answer, size_bytes, tail=tail, entries=entries, batch_sizes=batch_sizes, numbered=numbered, turn=turn
        )
        return self._begin(request)

    def _begin(self, request: Request) -> bool:
        """Queue a request now. Return False, and queue nothing, if the queue is full or the writer has failed."""
        if self._requests.full:
            return False
        try:
            self._requests.put(request)
        except StoreFailed:  # also if the writer's thread failed a moment ago
            return False
        return True

    async def _submit(self, request: Request) -> Any:
        if self._requests.full:
            await self._requests.enter(request)
        else:
            self._requests.put(request)
        assert isinstance(request.answer, asyncio.Future)
        return await request.answer

    def _check(self) -> None:
        """Raise :class:`StoreFailed` if no request is taken any more."""
        if self.failed is not None:
            raise StoreFailed(self.failed)

    # On the writer's thread.

    def _run(self) -> None:
        last = False
        while not last:
            group, last = self._requests.take_group()
            if not group:
                continue
            try:
                committed = self._commits.commit(group)
            except Exception as error:  # noqa: BLE001 - a thread that died here would leave everybody waiting
                committed = self._commits.fail(group, error)
            if self._commits.broken is not None:
                self.failed = self._commits.broken
            self._loop.call_soon_threadsafe(self._finish, committed)

    # On the event loop again.

    def _finish(self, committed: Committed) -> None:
        self._requests.done(committed.bytes)
        if committed.publishes:
            self.latencies.publish.observe(time.perf_counter() - committed.oldest_publish, committed.publishes)
        try:
            self._on_committed(committed)
        finally:  # a listener that fails is a bug; it must not leave those waiting whose writes are durable
            for answer, outcome in committed.results:
                try:
                    complete(answer, outcome)
                except Exception as error:  # noqa: BLE001 - a bug of this receiver, of which the others must not hear
                    context = {"message": "a receiver failed to take the outcome of its request", "exception": error}
                    self._loop.call_exception_handler(context)
