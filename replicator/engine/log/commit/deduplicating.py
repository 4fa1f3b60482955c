"""Deduplication in one transaction: the tables of the topics that it touches, and what they decide on each request.

Invariant: an entry is stored if, and only if, the topic does not have it yet. The tables that say what the topic has
are written in the same transaction as the entry (:mod:`replicator.engine.producing.deduplication`), or rolled back
with it.

1. A publish is compared with the topic's table of sequence ids and with entries from other clusters.
2. The sequence ids of stored entries are noted in the topic's index, so that a copy is recognised later.
3. A copied block is looked up in that index: which of its messages came by another way before? Nothing refuses the
   block here: a message that could be compared only with a damaged block counts as new. If comparing needs
   decompressed entries (:mod:`replicator.engine.producing.contents`), the group is rolled back and written again.
4. If deduplication is off, the tables are cleared: they are no longer complete, and must not come into use again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import lmdb

from replicator.engine.log import store_tables as tables
from replicator.engine.log.block import BlockView, Buffer
from replicator.engine.log.commit.appending import LogAppender
from replicator.engine.log.requests import (
    CopyRequest,
    NewBlock,
    OpenProducerRequest,
    PublishRequest,
    Tail,
)
from replicator.engine.log.store_tables import HighWater
from replicator.engine.producing.contents import Contents
from replicator.engine.producing.deduplication import NONE_YET, Copied, SequencedEntry, SequenceTable
from replicator.engine.producing.duplicate_chains import Pair
from replicator.engine.producing.numbered_blocks import ContentComparison, ReadBlock, numbered_of
from replicator.engine.producing.sequence_index import SequenceIndex
from replicator.engine.producing.sequence_rows import load_sequences, write_sequences
from snapshots.position import Position


class DeduplicationResult(NamedTuple):
    """Result of deduplication for a copied block.

    ``duplicates`` are pairs of a stored entry and an entry of the block that hold the same message. ``connected`` names
    the producers of the block that are connected to this cluster, too.
    """

    duplicates: Sequence[Pair]
    connected: tuple[str, ...]


class GroupDeduplication:
    """The deduplication of every topic that one transaction touches."""

    __slots__ = ("_appender", "_block", "_cluster", "_dbs", "_joined", "_now_ms", "comparing")

    def __init__(
        self,
        dbs: dict[str, Any],
        cluster: str,
        now_ms: int,
        appender: LogAppender,
        block: ReadBlock,
        contents: Contents,
    ) -> None:
        self._block = block
        self.comparing = ContentComparison(contents)
        self._dbs = dbs
        self._cluster = cluster
        self._now_ms = now_ms
        self._appender = appender
        self._joined: dict[tuple[str, int], SequenceTable] = {}
        """By the name of the store's table and topic id: the tables that are part of this transaction."""

    def admit(self, txn: lmdb.Transaction, request: PublishRequest) -> None:
        """Decide which entries of a publish are stored. Raises :class:`NotAllowedError` if the request is refused as
        a whole."""
        tail = request.tail
        if request.numbered is None:  # step 4
            self._appender.remember(tail)
            self._table(txn, tail).clear()
            tail.numbered = False
            self._switch_index(txn, tail, on=False)
            return
        self._switch_index(txn, tail, on=True)
        if request.known_new:
            return
        index = self._index(txn, tail)
        copies = _TopicCopies(txn, self._dbs, index, tail.high_water, request.entries, self.comparing)
        stored = self._table(txn, tail).admit(request.numbered, self._now_ms, copies)
        tail.numbered = True
        request.stored = None if all(stored) else stored

    def record(self, txn: lmdb.Transaction, tail: Tail, first: Position, numbered: Sequence[SequencedEntry]) -> None:
        """Note that a block of this cluster's own has these sequence ids, from the position ``first`` on."""
        self._index(txn, tail).rows.record(txn, self._dbs, self._cluster, first, numbered)

    def reclaimed(
        self, txn: lmdb.Transaction, tail: Tail, first: Position, numbered: Sequence[SequencedEntry | None]
    ) -> None:
        """Note the sequence ids of a block of this cluster's own that was lost here, and came back from another."""
        self._switch_index(txn, tail, on=True)
        complete = self._index(txn, tail).rows.record(txn, self._dbs, self._cluster, first, numbered)
        self._table(txn, tail).note(complete, self._now_ms)
        tail.numbered = True

    def look_up(
        self, txn: lmdb.Transaction, request: CopyRequest, new: NewBlock, first: Position
    ) -> DeduplicationResult:
        """Note the sequence ids of a copied block, and find which of its messages came by another way before."""
        tail, header = request.tail, new.header
        self._switch_index(txn, tail, on=request.numbered)
        if not request.numbered:
            return DeduplicationResult((), ())
        view = BlockView(new.block, header)
        numbered = [numbered_of(entry) for entry in view.entries()]
        index = self._index(txn, tail)
        pairs = index.duplicates_of_block(txn, self._dbs, view, first, numbered, tail.high_water, self.comparing)
        complete = index.rows.record(txn, self._dbs, header.origin, first, numbered)
        self._copied_table(txn, tail).note(complete, self._now_ms)
        return DeduplicationResult(pairs, tuple(name for name in complete if name in tail.connected))

    def open_producer(self, txn: lmdb.Transaction, request: OpenProducerRequest) -> int:
        """Save the topic's epoch. Return the producer's highest sequence id, over all ways; -1 if there is none."""
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

    def drop_inactive(self, txn: lmdb.Transaction, tail: Tail) -> None:
        """Forget the sequence ids of producers that were not seen for long."""
        if tail.numbered:
            self._table(txn, tail).drop_inactive(self._now_ms)
        if tail.indexed:
            self._copied_table(txn, tail).drop_inactive(self._now_ms)

    def write(self, txn: lmdb.Transaction) -> None:
        """Write the rows that changed."""
        for (table, topic_id), sequences in self._joined.items():
            write_sequences(txn, self._dbs[table], topic_id, sequences)

    def roll_back(self) -> None:
        for table in self._joined.values():
            table.roll_back()

    def _index(self, txn: lmdb.Transaction, tail: Tail) -> SequenceIndex:
        if tail.index is None:
            tail.index = SequenceIndex(txn, self._dbs, tail.topic_id, self._cluster, self._block)
        return tail.index

    def _switch_index(self, txn: lmdb.Transaction, tail: Tail, *, on: bool) -> None:
        rows = self._index(txn, tail).rows
        if rows.on is not on or tail.indexed is not on:
            self._appender.remember(tail)
            self._copied_table(txn, tail)
            rows.switch(txn, self._dbs, on=on)
            tail.indexed = on
            if not on:
                self._copied_table(txn, tail).clear()

    def _table(self, txn: lmdb.Transaction, tail: Tail) -> SequenceTable:
        """Return the table of highest sequence ids that producers sent to this cluster. The table joins this
        transaction."""
        if tail.sequences is None:
            rows = load_sequences(txn, self._dbs["sequences"], tail.topic_id) if tail.numbered else ()
            tail.sequences = SequenceTable(rows, connected=tail.connected)
        return self._join("sequences", tail, tail.sequences)

    def _copied_table(self, txn: lmdb.Transaction, tail: Tail) -> SequenceTable:
        """Return the table of highest sequence ids of copied entries, even trimmed ones. The table joins this
        transaction."""
        if tail.copied is None:
            rows = load_sequences(txn, self._dbs["copied_sequences"], tail.topic_id) if tail.indexed else ()
            tail.copied = SequenceTable(rows, connected=tail.connected)
        return self._join("copied_sequences", tail, tail.copied)

    def _join(self, name: str, tail: Tail, table: SequenceTable) -> SequenceTable:
        if (name, tail.topic_id) not in self._joined:
            self._joined[name, tail.topic_id] = table
            table.begin()
        return table


@dataclass(frozen=True, slots=True)
class _TopicCopies:
    """Finds sent entries among the copies from other clusters, within one transaction."""

    txn: lmdb.Transaction
    tables: dict[str, Any]
    index: SequenceIndex
    origins: Mapping[str, HighWater]
    entries: Sequence[Buffer]
    comparing: ContentComparison

    def highest(self, producer: str) -> int:
        return self.index.highest_copied(self.txn, self.tables, producer, self.origins)

    def of(self, index: int, sent: SequencedEntry) -> Copied:
        return self.index.copied(self.txn, self.tables, sent, self.entries[index], self.origins, self.comparing)
