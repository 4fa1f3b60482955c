"""A group of requests as one transaction: each request goes, in order, to the part that does it; results are kept.

Invariants (DESIGN §3): 1, the writer gives out the results once the transaction is durable; 3, requests are done in
the order in which they came.

1. Publishes are gathered by :mod:`.publishing`, by topic. Every other request ends the runs before it.
2. A refused request leaves nothing, and the others of the group go on. So each part checks a whole request before its
   first write: an :class:`EngineError` that is raised later would be answered, and what was written would stay.
3. At the end the parts write what they have gathered: sequence ids and the counter of ids.
4. Bodies that go to segments are written and synced; then the transaction commits.
5. If the transaction fails, the parts restore what they hold in memory. They also do so if it is given up because
   entries must first be decompressed for comparison.

The group runs on the thread of :mod:`replicator.engine.log.writer`. It only passes on futures of the event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import lmdb

from replicator.engine.errors import EngineError
from replicator.engine.log.commit.appending import LogAppender
from replicator.engine.log.commit.bodies import GroupBodies
from replicator.engine.log.commit.compacting import compact_segments
from replicator.engine.log.commit.copying import BlockCopies
from replicator.engine.log.commit.deduplicating import GroupDeduplication
from replicator.engine.log.commit.publishing import PublishRuns, topic_deleted
from replicator.engine.log.commit.putting_back import PutBackWriter, recount
from replicator.engine.log.commit.reclaiming import Reclaims
from replicator.engine.log.commit.topic_records import begin_life, create_topic, delete_topics, terminate_topic
from replicator.engine.log.requests import (
    BeginLifeRequest,
    Committed,
    CompactSegmentsRequest,
    CopyRequest,
    CountRequest,
    CreateTopicRequest,
    DeleteTopicsRequest,
    DropInactiveRequest,
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
    SweepRequest,
    TerminateRequest,
    TrimRequest,
)
from replicator.engine.log.store import Store
from replicator.engine.log.trim import trim_log
from replicator.engine.producing.contents import Contents, ContentsNeeded
from replicator.engine.topics.topic_deletion import sweep_topic

_OF_A_TOPIC: Final = (
    CopyRequest,
    KeepBothRequest,
    ReclaimRequest,
    PutBackRequest,
    RecountRequest,
    BeginLifeRequest,
    OpenProducerRequest,
    DropInactiveRequest,
    TerminateRequest,
    CountRequest,
)


class CommitGroup:
    """One transaction in the making.

    A group often holds only one publish, so the part for copied blocks is made when it is first needed.
    """

    __slots__ = (
        "_appender",
        "_bodies",
        "_cluster",
        "_copies",
        "_dbs",
        "_deduplication",
        "_publishes",
        "_store",
        "committed",
    )

    def __init__(
        self,
        store: Store,
        last_id: int,
        now_ms: int,
        salt: Callable[[], int],
        appended_bytes: int,
        contents: Contents,
    ) -> None:
        """Prepare a transaction.

        ``salt`` returns a random number, see :class:`~replicator.engine.log.commit.appending.LogAppender`.
        ``appended_bytes`` is about how much the group appends. ``contents`` is the cache of decompressed entries.
        """
        self._store = store
        self._cluster = cluster = store.cluster
        self._dbs = dbs = store.tables
        self.committed = committed = Committed()
        self._bodies = bodies = GroupBodies(store, appended_bytes)
        self._appender = appender = LogAppender(dbs, last_id, now_ms, salt, committed, bodies)
        self._deduplication = deduplication = GroupDeduplication(
            dbs, cluster, now_ms, appender, store.block_for_writer, contents
        )
        self._publishes = PublishRuns(cluster, now_ms, appender, deduplication, committed)
        self._copies: BlockCopies | None = None

    @property
    def last_id(self) -> int:
        return self._appender.last_id

    def write(self, txn: lmdb.Transaction, group: list[Request]) -> None:
        """Write all requests of ``group`` in the transaction ``txn``.

        Raises :class:`ContentsNeeded` if entries must be decompressed before they can be compared. The caller must
        then roll the transaction back.
        """
        publishes = self._publishes
        for request in group:
            if isinstance(request, PublishRequest):
                publishes.join(txn, request)
                continue
            publishes.end(txn)
            try:
                result = self._write_one(txn, request)
            except EngineError as error:
                result = error
            self.committed.results.append((request.answer, result))
        publishes.end(txn)
        if self._deduplication.comparing.wants:
            raise ContentsNeeded
        self.committed.other_content = self._deduplication.comparing.other_content
        self._deduplication.write(txn)
        self._appender.write(txn)
        self._bodies.flush(txn)

    def durable(self) -> None:
        """Note that the transaction is committed."""
        self._bodies.commit()

    def roll_back(self) -> None:
        self._bodies.roll_back()
        self._appender.roll_back()
        self._deduplication.roll_back()

    def _write_one(self, txn: lmdb.Transaction, request: Request) -> Any:
        if isinstance(request, _OF_A_TOPIC) and request.tail.deleted:
            raise topic_deleted(request.tail)
        if isinstance(request, CopyRequest | KeepBothRequest):
            if (copies := self._copies) is None:
                deduplication, appender = self._deduplication, self._appender
                copies = self._copies = BlockCopies(self._dbs, self._cluster, appender, deduplication, self.committed)
            if isinstance(request, KeepBothRequest):
                return copies.keep_both(txn, request)
            extents = copies.copy(txn, request)
            self._put_all(txn, request.writes)
            return extents
        if isinstance(request, PublishStagedRequest):
            positions = self._publishes.publish_staged(txn, request)
            self._put_all(txn, request.writes)
            return positions
        if isinstance(request, CreateTopicRequest):
            return create_topic(txn, self._dbs, request.name, self._appender, request.incarnation)
        if isinstance(request, ReclaimRequest):
            reclaims = Reclaims(self._dbs, self._cluster, self._appender, self._deduplication, self.committed)
            return reclaims.reclaim(txn, request)
        if isinstance(request, PutBackRequest):
            puts_back = PutBackWriter(self._dbs, self._cluster, self._appender, self._deduplication, self.committed)
            return puts_back.put_back(txn, request)
        if isinstance(request, RecountRequest):
            return recount(txn, self._dbs, request, self._appender)
        if isinstance(request, RelabelRequest):
            return self._bodies.relabel(txn, request.topic_id, request.blocks, request.incarnation)
        if isinstance(request, BeginLifeRequest):
            return begin_life(txn, self._dbs, request, self._appender, self._cluster)
        if isinstance(request, OpenProducerRequest):
            return self._deduplication.open_producer(txn, request)
        if isinstance(request, DropInactiveRequest):
            return self._deduplication.drop_inactive(txn, request.tail)
        if isinstance(request, CountRequest):
            return request.tail.messages
        if isinstance(request, DeleteTopicsRequest):
            return delete_topics(txn, self._dbs, request, self._appender, self._cluster)
        if isinstance(request, TerminateRequest):
            return terminate_topic(txn, self._dbs, request.tail, self._appender)
        if isinstance(request, SweepRequest):
            return sweep_topic(txn, self._dbs, request.topic_id, self._bodies.leave)
        if isinstance(request, ReplaceBlockRequest):
            return self._bodies.replace(txn, request.topic_id, request.first, request.block)
        if isinstance(request, CompactSegmentsRequest):
            if request.begins:
                self._store.segments.look_for_gone()
                pressure = self._store.pressure()
                self._store.segments.space.begin_pass(quiet_only=request.quiet_only, pressure=pressure)
            return compact_segments(txn, self._store, self._bodies)
        if isinstance(request, TrimRequest):
            if request.tail is not None:
                self._appender.remember(request.tail)
                request.tail.holes.clear()  # batches that are trimmed become holes
            return trim_log(txn, self._dbs, request.topic_id, request.upto, self._bodies.leave)
        if isinstance(request, PutManyRequest):
            for table, prefix in request.cleared:
                self._clear(txn, table, prefix)
            return self._put_all(txn, request.writes)
        assert isinstance(request, PutRequest)
        return self._put_all(txn, ((request.table, request.key, request.value),))

    def _put_all(self, txn: lmdb.Transaction, writes: Sequence[tuple[str, bytes, bytes | None]]) -> None:
        for table, key, value in writes:
            if value is None:
                txn.delete(key, db=self._dbs[table])
            else:
                txn.put(key, value, db=self._dbs[table])

    def _clear(self, txn: lmdb.Transaction, table: str, prefix: bytes) -> None:
        cursor = txn.cursor(db=self._dbs[table])
        more = cursor.set_range(prefix)
        while more and bytes(cursor.key()).startswith(prefix):
            cursor.delete()  # the cursor is now on the next row, with an empty key at the end
            more = bool(cursor.key())
