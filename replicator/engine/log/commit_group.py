"""A group of requests as one transaction in the making: gives positions, writes rows, and can take positions back.

Invariants (DESIGN §3): 2, the destination's high-water mark is written in the same transaction as the block, and what
is at or below it is dropped; 10, ledger ids and incarnations come from one counter that is never below the clock, so
a store that was restored from an old backup does not hand out an id again.

1. Requests are taken in order; neighbouring publishes of one topic become one block.
2. A copied request is checked as a whole before any of it is written, so a refused one leaves nothing.
3. If the transaction fails, the tails of its topics are put back as they were.

It runs on the thread of :mod:`replicator.engine.log.writer`; of the event loop it knows only the futures that it
passes on.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Any, Final

import lmdb

from replicator.engine.errors import CopyGap, EngineError, IncarnationMismatch, NotAllowedError, TopicNotFound
from replicator.engine.log import store_tables as tables
from replicator.engine.log.block import (
    BLOCK_ENTRIES_MAX,
    BlockHeader,
    BlockKind,
    BlockView,
    Buffer,
    build_block,
    verify_block,
)
from replicator.engine.log.left_out import Hole, LeftOutNote, decode_note, is_note, with_hole
from replicator.engine.log.requests import (
    AppendedBlock,
    Committed,
    CopiedBlock,
    CopyRequest,
    CreateTopicRequest,
    DeleteTopicsRequest,
    DropInactiveRequest,
    Extent,
    NewBlock,
    NewHole,
    OpenProducerRequest,
    PublishRequest,
    PublishStagedRequest,
    PutManyRequest,
    PutRequest,
    Request,
    StagedPart,
    SweepRequest,
    Tail,
    TrimRequest,
)
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import HighWater, PartsRow, TopicRecord
from replicator.engine.log.trim import trim_log
from replicator.engine.producing.deduplication import NONE_YET, Copied, Numbered, SequenceTable
from replicator.engine.producing.sequence_index import Pair, SequenceIndex, numbered_of
from replicator.engine.producing.sequence_rows import load_sequences, write_sequences
from replicator.engine.topic_name import parse_topic
from replicator.engine.topics.topic_deletion import sweep_topic
from replicator.engine.types import DUPLICATE
from snapshots.position import BEFORE_ALL, Position

ID_SALTS: Final = 1024
"""Ids are milliseconds times this, so they stay below 2**53 for any reader in JSON until the year 2248."""
BLOCK_BYTES_TARGET: Final = 1024 * 1024
"""Publishes are merged into blocks of about this size: large enough to copy fast, small enough to read one entry."""
BLOCK_ENTRIES_TARGET: Final = 10_000
"""And of about so many entries, so that their messages, however large the batches, fit the block's 32-bit count."""


class PositionTaken(Exception):
    """A position was about to be used twice (invariant 10). It fails the store; it is a bug or a damaged store."""


class CommitGroup:
    """One transaction in the making: gives positions, writes rows, and can take the positions back."""

    def __init__(self, store: Store, last_id: int, now_ms: int, salt: int) -> None:
        """``salt`` is random, 0 to :data:`ID_SALTS` - 1."""
        self._store = store
        self._dbs = store.tables
        self._now_ms = now_ms
        self._salt = salt
        self._undo: dict[int, tuple[Tail, Tail]] = {}
        self._sequences: dict[tuple[str, int], SequenceTable] = {}
        self._run: list[PublishRequest] = []
        self._run_bytes = 0
        self._run_entries = 0
        self.last_id = last_id
        self._first_id = last_id
        self.committed = Committed()

    def write(self, txn: lmdb.Transaction, group: list[Request]) -> None:
        for request in group:
            if isinstance(request, PublishRequest):
                self._join_run(txn, request)
                continue
            self._end_run(txn)
            try:
                result = self._write_one(txn, request)
            except EngineError as error:
                result = error
            self.committed.results.append((request.future, result))
        self._end_run(txn)
        for (table, topic_id), sequences in self._sequences.items():
            write_sequences(txn, self._dbs[table], topic_id, sequences)
        if self.last_id != self._first_id:
            txn.put(b"last_id", json.dumps(self.last_id).encode(), db=self._dbs["meta"])

    def roll_back(self) -> None:
        for tail, before in self._undo.values():
            for name in Tail.__slots__:
                setattr(tail, name, getattr(before, name))
            tail.index = None  # what it holds in memory may be of this transaction
        for table in self._sequences.values():
            table.roll_back()

    def _write_one(self, txn: lmdb.Transaction, request: Request) -> Any:
        if isinstance(request, CopyRequest | OpenProducerRequest | DropInactiveRequest) and request.tail.deleted:
            raise _deleted(request.tail)
        if isinstance(request, CopyRequest):
            return self._copy(txn, request)
        if isinstance(request, PublishStagedRequest):
            return self._publish_staged(txn, request)
        if isinstance(request, CreateTopicRequest):
            return self._create_topic(txn, request.name)
        if isinstance(request, OpenProducerRequest):
            return self._open_producer(txn, request)
        if isinstance(request, DropInactiveRequest):
            if request.tail.numbered:
                self._table(txn, request.tail).drop_inactive(self._now_ms)
            if request.tail.indexed:
                self._copied_table(txn, request.tail).drop_inactive(self._now_ms)
            return None
        if isinstance(request, DeleteTopicsRequest):
            return self._delete_topics(txn, request)
        if isinstance(request, SweepRequest):
            return sweep_topic(txn, self._dbs, request.topic_id)
        if isinstance(request, TrimRequest):
            if request.tail is not None:
                self._remember(request.tail)
                request.tail.holes.clear()  # batches that are trimmed become holes
            return trim_log(txn, self._dbs, request.topic_id, request.upto)
        if isinstance(request, PutManyRequest):
            for table, prefix in request.cleared:
                self._clear(txn, table, prefix)
            for table, key, value in request.writes:
                self._put(txn, table, key, value)
            return None
        assert isinstance(request, PutRequest)
        self._put(txn, request.table, request.key, request.value)
        return None

    def _put(self, txn: lmdb.Transaction, table: str, key: bytes, value: bytes | None) -> None:
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

    def _create_topic(self, txn: lmdb.Transaction, name: str) -> TopicRecord:
        stored = txn.get(name.encode(), db=self._dbs["topics"])
        if stored is not None:
            record = json.loads(bytes(stored))
            return TopicRecord(record["id"], name, record["incarnation"])
        topic_id = int(json.loads(bytes(txn.get(b"last_topic_id", b"0", db=self._dbs["meta"])))) + 1
        if topic_id >= 2**32 - 1:
            raise TopicNotFound(f"topic {name!r} cannot be made: all topic ids are used")
        record = {"id": topic_id, "incarnation": self._new_id()}
        txn.put(b"last_topic_id", json.dumps(topic_id).encode(), db=self._dbs["meta"])
        txn.put(name.encode(), json.dumps(record).encode(), db=self._dbs["topics"])
        parsed = parse_topic(name)
        txn.put(parsed.tenant.encode(), b"", overwrite=False, db=self._dbs["tenants"])
        txn.put(parsed.full_namespace.encode(), b"{}", overwrite=False, db=self._dbs["namespaces"])
        return TopicRecord(topic_id, name, record["incarnation"])

    def _delete_topics(self, txn: lmdb.Transaction, request: DeleteTopicsRequest) -> None:
        for tail in request.tails:
            self._remember(tail)
            tail.deleted = True
            name = tail.name.encode()
            txn.delete(name, db=self._dbs["topics"])
            txn.put(tables.TOPIC_KEY.pack(tail.topic_id), name, db=self._dbs["deleted"])
        if request.partitioned is not None:
            txn.delete(request.partitioned.encode(), db=self._dbs["partitioned"])

    def _new_id(self) -> int:
        """Above every id of this store and, while the clock is right, above those of any newer state of it; the salt
        tells apart two lives of a store that was put back together with its clock."""
        self.last_id = max(self.last_id + 1, max(self._now_ms, 0) * ID_SALTS + self._salt)
        return self.last_id

    def _publish_staged(
        self, txn: lmdb.Transaction, request: PublishStagedRequest
    ) -> list[tuple[Position, Position] | None]:
        """The first and last position of each part; None for a topic that was deleted: it would be empty again."""
        found: list[tuple[Position, Position] | None] = []
        results = self.committed.results
        for part in request.parts:
            if part.tail.deleted:
                found.append(None)
                continue
            before = len(results)
            for first in range(0, len(part.entries), BLOCK_ENTRIES_TARGET):
                for piece in _pieces(part, first, min(first + BLOCK_ENTRIES_TARGET, len(part.entries))):
                    size = sum(map(len, piece.entries))
                    self._join_run(
                        txn,
                        PublishRequest(
                            request.future,
                            size,
                            tail=part.tail,
                            entries=piece.entries,
                            batch_sizes=piece.batch_sizes,
                            numbered=piece.numbered,
                            known_new=True,
                        ),
                    )
            self._end_run(txn)
            positions = [position for _, each in results[before:] for position in each]
            del results[before:]  # they are this request's, which has one answer
            found.append((positions[0], positions[-1]))
        for table, key, value in request.writes:
            self._put(txn, table, key, value)
        return found

    # Publishing: a run of publishes to one topic becomes one block.

    def _join_run(self, txn: lmdb.Transaction, request: PublishRequest) -> None:
        if request.tail.deleted:
            self.committed.results.append((request.future, _deleted(request.tail)))
            return
        tail = request.tail
        if self._run and (self._run[0].numbered is None) is not (request.numbered is None):
            self._end_run(txn)  # deduplication was switched between them, and a block is noted whole or not at all
        if request.kind is BlockKind.MESSAGES and (request.numbered is not None or tail.numbered or tail.indexed):
            try:
                self._deduplicate(txn, request)
            except NotAllowedError as error:
                self.committed.results.append((request.future, error))
                return
        run = self._run
        if run and (
            run[0].tail is not request.tail
            or run[0].kind is not request.kind
            or self._run_bytes + request.bytes > BLOCK_BYTES_TARGET
            or self._run_entries + len(request.entries) > BLOCK_ENTRIES_TARGET
        ):
            self._end_run(txn)
        self._run.append(request)
        self._run_bytes += request.bytes
        self._run_entries += len(request.entries)

    def _end_run(self, txn: lmdb.Transaction) -> None:
        if not self._run:
            return
        run, self._run, self._run_bytes, self._run_entries = self._run, [], 0, 0
        tail, kind = run[0].tail, run[0].kind
        entries: list[Buffer] = []
        sizes: list[int] = []
        for request in run:
            if request.stored is None:
                entries += request.entries
                sizes += request.batch_sizes
            else:
                entries += compress(request.entries, request.stored)
                sizes += compress(request.batch_sizes, request.stored)
        assert len(entries) <= BLOCK_ENTRIES_MAX
        if not entries:
            self.committed.results += [(request.future, [DUPLICATE] * len(request.entries)) for request in run]
            return
        first = self._next_position(tail)
        block = build_block(
            kind=kind,
            origin=self._store.cluster,
            incarnation=tail.incarnation,
            origin_first=first,
            publish_time_ms=self._now_ms,
            entries=entries,
            batch_sizes=sizes,
        )
        last = Position(first.ledger, first.entry + len(entries) - 1)
        header = BlockHeader(
            kind, self._store.cluster, tail.incarnation, first, len(entries), sum(sizes), self._now_ms, 0
        )
        self._append(txn, tail, header, block)
        if kind is BlockKind.MESSAGES and run[0].numbered is not None:
            numbered = [each for request in run for each in _numbered_stored(request)]
            self._index(txn, tail).record(txn, self._dbs, self._store.cluster, first, numbered)
        if kind is not BlockKind.LOCAL_MARKERS:  # no link carries them, so no other cluster can come up to them
            self._put_high_water(txn, tail, self._store.cluster, HighWater(tail.incarnation, last))
        at = first.entry
        for request in run:
            if request.stored is None:
                positions = [Position(first.ledger, at + index) for index in range(len(request.entries))]
                at += len(positions)
            else:
                positions = []
                for stored in request.stored:
                    positions.append(Position(first.ledger, at) if stored else DUPLICATE)
                    at += stored
            self.committed.results.append((request.future, positions))

    # Deduplication.

    def _deduplicate(self, txn: lmdb.Transaction, request: PublishRequest) -> None:
        """Find out which entries are stored; raises :class:`NotAllowedError` if none of the request may be."""
        tail = request.tail
        if request.numbered is None:  # it is off: what it knew is no longer the whole truth, and must not come back
            self._remember(tail)
            self._table(txn, tail).clear()
            tail.numbered = False
            self._switch_index(txn, tail, on=False)
            return
        self._switch_index(txn, tail, on=True)
        if request.known_new:
            return
        copies = _TopicCopies(txn, self._dbs, self._index(txn, tail), tail.high_water)
        stored = self._table(txn, tail).admit(request.numbered, self._now_ms, copies)
        tail.numbered = True
        request.stored = None if all(stored) else stored

    def _open_producer(self, txn: lmdb.Transaction, request: OpenProducerRequest) -> int:
        tail = request.tail
        if request.epoch is not None:
            txn.put(tables.TOPIC_KEY.pack(tail.topic_id), tables.EPOCH.pack(request.epoch), db=self._dbs["epochs"])
        highest = NONE_YET
        if request.numbered and tail.numbered:
            table = self._table(txn, tail)
            table.touch(request.name, self._now_ms)
            highest = table.highest(request.name)
        if request.numbered and tail.indexed:
            copied = self._copied_table(txn, tail)
            copied.touch(request.name, self._now_ms)
            highest = max(highest, copied.highest(request.name))
        return highest

    def _index(self, txn: lmdb.Transaction, tail: Tail) -> SequenceIndex:
        if tail.index is None:
            tail.index = SequenceIndex(txn, self._dbs, tail.topic_id, self._store.cluster)
        return tail.index

    def _switch_index(self, txn: lmdb.Transaction, tail: Tail, *, on: bool) -> None:
        index = self._index(txn, tail)
        if index.on is not on or tail.indexed is not on:
            self._remember(tail)
            self._copied_table(txn, tail)
            index.switch(txn, self._dbs, on=on)
            tail.indexed = on
            if not on:
                self._copied_table(txn, tail).clear()

    def _twins_of(self, txn: lmdb.Transaction, request: CopyRequest, new: NewBlock, first: Position) -> list[Pair]:
        """Note the sequence ids of a copied block, and find out which of its messages are here by another way."""
        tail, header = request.tail, new.header
        self._switch_index(txn, tail, on=request.numbered)
        if not request.numbered:
            return []
        view = BlockView(new.block, header)
        numbered = [numbered_of(entry) for entry in view.entries()]
        index = self._index(txn, tail)
        identified = list(zip(numbered, view.batch_sizes.tolist(), strict=True))
        pairs = index.twins_of_block(txn, self._dbs, header, first, identified, tail.high_water)
        complete = index.record(txn, self._dbs, header.origin, first, numbered)
        self._copied_table(txn, tail).note(complete, self._now_ms)
        return pairs

    def _table(self, txn: lmdb.Transaction, tail: Tail) -> SequenceTable:
        """The topic's table, as a part of this transaction."""
        if tail.sequences is None:
            rows = load_sequences(txn, self._dbs["sequences"], tail.topic_id) if tail.numbered else ()
            tail.sequences = SequenceTable(rows, connected=tail.connected)
        return self._joined("sequences", tail, tail.sequences)

    def _copied_table(self, txn: lmdb.Transaction, tail: Tail) -> SequenceTable:
        """What each producer's highest sequence id of other clusters' entries is, though those may be trimmed."""
        if tail.copied is None:
            rows = load_sequences(txn, self._dbs["copied_sequences"], tail.topic_id) if tail.indexed else ()
            tail.copied = SequenceTable(rows, connected=tail.connected)
        return self._joined("copied_sequences", tail, tail.copied)

    def _joined(self, name: str, tail: Tail, table: SequenceTable) -> SequenceTable:
        if (name, tail.topic_id) not in self._sequences:
            self._sequences[name, tail.topic_id] = table
            table.begin()
        return table

    # Copying.

    def _copy(self, txn: lmdb.Transaction, request: CopyRequest) -> list[Extent]:
        tail = request.tail
        accepted = select_new(request.blocks, cluster=self._store.cluster, topic=tail.name, high_water=tail.high_water)
        extents: list[Extent] = []
        for new in accepted:
            if isinstance(new, NewHole):
                self._pass_over(txn, tail, new)
                continue
            header = new.header
            local_first = self._next_position(tail)
            if new.hole is not None:
                self._put_hole(txn, tail, header.origin, new.hole)
            twins: Sequence[Pair] = ()
            # A batch that lacks messages is nobody's twin: the other one has more, and hiding that would lose it.
            if (request.numbered or tail.indexed) and header.kind is BlockKind.MESSAGES and not header.parts_bytes:
                twins = self._twins_of(txn, request, new, local_first)
            partly = tuple(BlockView(new.block, header).absent) if header.parts_bytes else ()
            self._append(txn, tail, header, new.block, hole=new.hole is not None, twins=twins, partly=partly)
            if partly:
                row = PartsRow(header.origin, header.origin_first, local_first, partly)
                txn.put(*tables.parts_row(tail.topic_id, row), db=self._dbs["parts"])
            self._put_high_water(txn, tail, header.origin, HighWater(header.incarnation, header.origin_last))
            extents.append(Extent(header.origin, header.origin_first, local_first, header.entries))
            self._put_extent(txn, tail, header, extents[-1])
        return extents

    def _pass_over(self, txn: lmdb.Transaction, tail: Tail, new: NewHole) -> None:
        note = new.note
        self._remember(tail)
        self._put_hole(txn, tail, note.origin, (new.after, note.upto))
        self._put_high_water(txn, tail, note.origin, HighWater(note.incarnation, note.upto))
        self.committed.left_out.setdefault(tail.topic_id, []).append(note)

    def _put_hole(self, txn: lmdb.Transaction, tail: Tail, origin: str, hole: Hole) -> None:
        before = tail.holes.get(origin)
        if before is None:
            before = tables.read_holes(txn, self._dbs["left_out"], tail.topic_id, origin)
        after = tail.holes[origin] = with_hole(before, *hole)
        prefix = tables.extent_key_prefix(tail.topic_id, origin)
        database = self._dbs["left_out"]
        joined = len(after) < len(before)
        for start, _ in set(before).difference(after) if joined else ():
            txn.delete(prefix + tables.encode_place(start), db=database)
        for start, end in set(after).difference(before) if joined else after[-1:]:
            txn.put(prefix + tables.encode_place(start), tables.encode_place(end), db=database)

    def _put_extent(self, txn: lmdb.Transaction, tail: Tail, header: BlockHeader, extent: Extent) -> None:
        """Write the extent, or lengthen the one before it where both sides go on without a gap."""
        before = tail.open_extents.get(extent.origin)
        if (
            before is not None
            and before.origin_first.ledger == extent.origin_first.ledger
            and before.local_first.ledger == extent.local_first.ledger
            and before.origin_first.entry + before.entries == extent.origin_first.entry
            and before.local_first.entry + before.entries == extent.local_first.entry
        ):
            extent = replace(before, entries=before.entries + extent.entries)
        tail.open_extents[extent.origin] = extent
        key = tables.extent_key_prefix(tail.topic_id, extent.origin) + tables.EXTENT_KEY_TAIL.pack(
            header.incarnation, *extent.origin_first
        )
        txn.put(key, tables.EXTENT.pack(extent.entries, *extent.local_first), db=self._dbs["extents"])

    # Both.

    def _remember(self, tail: Tail) -> None:
        """Keep the tail as it is for :meth:`roll_back`."""
        if tail.topic_id not in self._undo:
            before = replace(
                tail,
                high_water=dict(tail.high_water),
                open_extents=dict(tail.open_extents),
                holes=dict(tail.holes),
            )
            self._undo[tail.topic_id] = (tail, before)

    def _next_position(self, tail: Tail) -> Position:
        self._remember(tail)
        if tail.ledger is None or tail.next_entry >= 2**31:
            tail.ledger = self._new_id()
            tail.next_entry = 0
        return Position(tail.ledger, tail.next_entry)

    def _append(
        self,
        txn: lmdb.Transaction,
        tail: Tail,
        header: BlockHeader,
        block: Buffer,
        *,
        hole: bool = False,
        twins: Sequence[Pair] = (),
        partly: tuple[int, ...] = (),
    ) -> None:
        first = self._next_position(tail)
        key = tables.BLOCK_KEY.pack(tail.topic_id, *first)
        value = b"".join((tables.LOCAL_PREFIX.pack(tail.entries, tail.messages), block))
        if not txn.put(key, value, overwrite=False, db=self._dbs["blocks"]):
            raise PositionTaken(f"position {first} of topic {tail.name!r} is taken")
        if header.kind is not BlockKind.MESSAGES:
            txn.put(key, tables.MARKER_RUN.pack(header.entries), db=self._dbs["markers"])
        tail.next_entry += header.entries
        tail.entries += header.entries
        tail.messages += header.messages
        self.committed.appended.setdefault(tail.topic_id, []).append(AppendedBlock(first, header, hole, twins, partly))

    def _put_high_water(self, txn: lmdb.Transaction, tail: Tail, origin: str, high_water: HighWater) -> None:
        tail.high_water[origin] = high_water
        key = tables.TOPIC_KEY.pack(tail.topic_id) + origin.encode("ascii")
        value = tables.HIGH_WATER.pack(high_water.incarnation, *high_water.position)
        txn.put(key, value, db=self._dbs["high_water"])


@dataclass(frozen=True, slots=True)
class _TopicCopies:
    """What of the producers' entries came from other clusters, within one transaction."""

    txn: lmdb.Transaction
    tables: dict[str, Any]
    index: SequenceIndex
    origins: Mapping[str, HighWater]

    def highest(self, producer: str) -> int:
        return self.index.highest_copied(self.txn, self.tables, producer, self.origins)

    def of(self, sent: Numbered) -> Copied:
        return self.index.copied(self.txn, self.tables, sent, self.origins)


def _pieces(part: StagedPart, start: int, stop: int) -> Iterator[StagedPart]:
    """Cut a part into pieces of about a block's size."""
    size = 0
    for index in range(start, stop):
        size += len(part.entries[index])
        if size >= BLOCK_BYTES_TARGET or index + 1 == stop:
            cut = slice(start, index + 1)
            numbered = None if part.numbered is None else part.numbered[cut]
            yield StagedPart(part.tail, part.entries[cut], part.batch_sizes[cut], numbered)
            start, size = index + 1, 0


def _numbered_stored(request: PublishRequest) -> Iterable[Numbered]:
    assert request.numbered is not None
    return request.numbered if request.stored is None else compress(request.numbered, request.stored)


def _deleted(tail: Tail) -> TopicNotFound:
    return TopicNotFound(f"topic {tail.name!r} was deleted")


def select_new(
    blocks: Sequence[CopiedBlock], *, cluster: str, topic: str, high_water: Mapping[str, HighWater]
) -> list[NewBlock | NewHole]:
    """What of ``blocks`` a topic of ``cluster`` that has all up to ``high_water`` does not have; in order, cut to fit.

    Raises :class:`BlockCorrupt`, :class:`CopyGap`, :class:`IncarnationMismatch` or :class:`NotAllowedError` if one
    of them cannot be taken.
    """
    selected: list[NewBlock | NewHole] = []
    reached = dict(high_water)
    for copied in blocks:
        if is_note(copied.block):
            if (new := _new_hole(copied, cluster=cluster, topic=topic, high_water=reached)) is not None:
                reached[new.note.origin] = HighWater(new.note.incarnation, new.note.upto)
                selected.append(new)
            continue
        header, block = verify_block(copied.block), copied.block
        if header.origin == cluster:
            raise NotAllowedError(f"a block of {header.origin!r} was sent back to where it comes from")
        if header.kind is BlockKind.LOCAL_MARKERS:
            raise NotAllowedError(f"a local marker of {header.origin!r} was sent over a link")
        have = reached.get(header.origin) or HighWater(header.incarnation, BEFORE_ALL)
        _check_follows(f"topic {topic!r}, origin {header.origin!r}", copied.previous, header, have)
        if header.origin_last <= have.position:
            continue
        hole: Hole | None = None
        if header.origin_first <= have.position:
            keep_from = have.position.entry - header.origin_first.entry + 1
            block = BlockView(block, header).slice(keep_from, header.entries)
            header = verify_block(block)
        elif copied.left_out:
            before = Position(header.origin_first.ledger, header.origin_first.entry - 1)
            hole = (have.position, before) if have.position < before else None
        reached[header.origin] = HighWater(header.incarnation, header.origin_last)
        selected.append(NewBlock(header, block, hole))
    return selected


def _check_follows(where: str, previous: Position, sent: BlockHeader | LeftOutNote, have: HighWater) -> None:
    if have.incarnation != sent.incarnation:
        raise IncarnationMismatch(f"{where}: incarnation {sent.incarnation} was sent, {have.incarnation} is here")
    if previous > have.position:
        place = sent.upto if isinstance(sent, LeftOutNote) else sent.origin_first
        raise CopyGap(f"{where}: {previous} was sent before {place}, here is {have.position}")


def _new_hole(copied: CopiedBlock, *, cluster: str, topic: str, high_water: Mapping[str, HighWater]) -> NewHole | None:
    """What a note says was left out, if that is above what is here; raises as :func:`select_new` does."""
    note = decode_note(copied.block)
    if note.origin == cluster:
        raise NotAllowedError(f"a note on messages of {note.origin!r} was sent back to where they come from")
    have = high_water.get(note.origin) or HighWater(note.incarnation, BEFORE_ALL)
    _check_follows(f"topic {topic!r}, origin {note.origin!r}", copied.previous, note, have)
    return NewHole(note, have.position) if note.upto > have.position else None
