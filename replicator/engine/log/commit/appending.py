"""Appends to topics' logs in one transaction: positions, blocks, and the roll-back of the logs' ends in memory.

A tail is the state of a log's end in memory.

Invariants (DESIGN §3): 2, the high-water mark is written in the same transaction as the block that moves it; 10,
no id is used twice, and no block is written over another. Ledger ids and incarnations come from one counter that is
never below the clock. So not even a store that was restored from an old backup uses an id again.

1. Before a tail changes for the first time, the whole tail is saved (:meth:`LogAppender.remember`). Before a publish,
   only the fields that the publish changes are saved (:meth:`LogAppender.next_own_position`).
2. A block gets the next position of its tail. A tail without a ledger, or with a full one, begins a new ledger.
3. If the transaction fails, every tail is restored from what was saved (:meth:`LogAppender.roll_back`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, Final

import lmdb

from replicator.engine.log import store_tables as tables
from replicator.engine.log.block import BlockHeader, BlockKind, Buffer
from replicator.engine.log.commit.bodies import GroupBodies
from replicator.engine.log.requests import AppendedBlock, Committed, Tail
from replicator.engine.log.store_tables import HighWater
from replicator.engine.producing.duplicate_chains import Pair
from snapshots.position import Position

ID_SALTS: Final = 1024
"""Factor between milliseconds and ids. Ids stay below 2**53, the limit of JSON readers, until the year 2248."""
LEDGER_ENTRIES_MAX: Final = 2**31
"""A ledger with this many entries is followed by another one."""
KEPT_BYTES_MAX: Final = 64 * 1024
"""Larger blocks are read back from the store, which costs little against their size."""
_TAIL_FIELDS: Final = attrgetter(*Tail.__slots__)
"""All fields in their order. Each commit copies a tail, and ``dataclasses.replace`` takes four times as long."""


class PositionTaken(Exception):
    """A position was about to be used twice (invariant 10). It fails the store; it is a bug or a damaged store."""


class LogAppender:
    """Appends to the logs of many topics within one transaction, and notes in ``committed`` what it appended."""

    __slots__ = ("_before", "_bodies", "_committed", "_dbs", "_ends", "_first_id", "_now_ms", "_salt", "last_id")

    def __init__(
        self,
        dbs: dict[str, Any],
        last_id: int,
        now_ms: int,
        salt: Callable[[], int],
        committed: Committed,
        bodies: GroupBodies,
    ) -> None:
        """Create the appender of one transaction.

        ``salt`` returns a random number, 0 to :data:`ID_SALTS` - 1. It is called only for a new id.
        """
        self._dbs = dbs
        self._bodies = bodies
        self._now_ms = now_ms
        self._salt = salt
        self._committed = committed
        self._before: dict[int, tuple[Tail, Tail]] = {}
        """For each topic id, the tail, and a copy of it from before this transaction."""
        self._ends: list[tuple[Tail, int | None, int, int, int, str, HighWater | None]] = []
        """The ends of tails before each publish, in order: a copy of a whole tail costs several times as much."""
        self._first_id = last_id
        self.last_id = last_id

    def new_id(self) -> int:
        """Return an id above every id of this store. While the clock is right, it is also above the ids of any newer
        state of this store. The salt makes ids of two copies differ if the store was restored together with its
        clock."""
        self.last_id = max(self.last_id + 1, max(self._now_ms, 0) * ID_SALTS + self._salt())
        return self.last_id

    def remember(self, tail: Tail) -> None:
        """Save the whole tail as it is now, for :meth:`roll_back`."""
        if tail.topic_id not in self._before:
            before = Tail(*_TAIL_FIELDS(tail))
            before.high_water = dict(tail.high_water)
            before.open_extents = dict(tail.open_extents)
            before.holes = dict(tail.holes)
            self._before[tail.topic_id] = (tail, before)

    def next_position(self, tail: Tail) -> Position:
        """Return the position of the next block. Save ``tail`` first, so that :meth:`roll_back` can restore it."""
        self.remember(tail)
        return self._next_position(tail)

    def next_own_position(self, tail: Tail, cluster: str) -> Position:
        """Return the position of this cluster's next block.

        Save the fields that :meth:`append_own` changes, so that :meth:`roll_back` can restore them.
        """
        if tail.topic_id not in self._before:
            mark = tail.high_water.get(cluster)
            self._ends.append((tail, tail.ledger, tail.next_entry, tail.entries, tail.messages, cluster, mark))
        return self._next_position(tail)

    def _next_position(self, tail: Tail) -> Position:
        if tail.ledger is None or tail.next_entry >= LEDGER_ENTRIES_MAX:
            origins = {each.position.ledger for each in tail.high_water.values()}
            tail.ledger = self.new_id()
            while tail.ledger in origins:  # ids tell whose a ledger is, when clients bring them to another cluster
                tail.ledger = self.new_id()
            tail.next_entry = 0
        return Position(tail.ledger, tail.next_entry)

    def prefix(self, tail: Tail) -> bytes:
        """Return the bytes that are stored before the next block."""
        return tables.LOCAL_PREFIX.pack(tail.entries, tail.messages)

    def append(
        self,
        txn: lmdb.Transaction,
        tail: Tail,
        header: BlockHeader,
        block: Buffer,
        *,
        hole: bool = False,
        duplicates: Sequence[Pair] = (),
        partly: tuple[int, ...] = (),
        connected: tuple[str, ...] = (),
    ) -> None:
        """Append a block to the log of ``tail`` at the next position."""
        first = self.next_position(tail)
        key = tables.BLOCK_KEY.pack(tail.topic_id, *first)
        self._put(txn, tail, key, header, self._row(txn, tail, key, header, block, prefixed=False))
        size = len(block)
        kept = block if size <= KEPT_BYTES_MAX and header.columns_at else None
        self._note(tail, AppendedBlock(first, header, size, hole, duplicates, partly, connected, kept))

    def append_own(self, txn: lmdb.Transaction, tail: Tail, header: BlockHeader, prefixed: bytes) -> None:
        """Append a block that this cluster published, at the position that :meth:`next_own_position` returned.

        ``prefixed`` begins with the :meth:`prefix`, and the block follows.
        """
        first = header.origin_first
        key = tables.BLOCK_KEY.pack(tail.topic_id, first[0], first[1])
        size = len(prefixed) - tables.LOCAL_PREFIX.size
        row: Buffer = prefixed
        if self._bodies.takes(size):
            row = self._row(txn, tail, key, header, prefixed, prefixed=True)
        self._put(txn, tail, key, header, row)
        kept = memoryview(prefixed)[tables.LOCAL_PREFIX.size :] if size <= KEPT_BYTES_MAX else None
        self._note(tail, AppendedBlock(first, header, size, block=kept))

    def _put(self, txn: lmdb.Transaction, tail: Tail, key: bytes, header: BlockHeader, row: Buffer) -> None:
        """Add a new row to table ``blocks``. Raise :class:`PositionTaken` if the position has a row."""
        if not txn.put(key, row, overwrite=False, db=self._dbs["blocks"]):
            position = Position(*tables.BLOCK_KEY.unpack(key)[1:])
            raise PositionTaken(
                f"position {position} of topic {tail.name!r} is taken by another block, and would be used twice: run "
                "`replicator store check`; if that finds nothing, it is a bug"
            )
        if header.kind is not BlockKind.MESSAGES:
            txn.put(key, tables.MARKER_RUN.pack(header.entries), db=self._dbs["markers"])

    def _note(self, tail: Tail, appended: AppendedBlock) -> None:
        """Advance ``tail`` past the appended block, and add the block to the transaction's results."""
        header = appended.header
        tail.next_entry += header.entries
        tail.entries += header.entries
        tail.messages += header.messages
        blocks = self._committed.appended.get(tail.topic_id)
        if blocks is None:
            self._committed.appended[tail.topic_id] = [appended]
        else:
            blocks.append(appended)

    def insert(
        self,
        txn: lmdb.Transaction,
        tail: Tail,
        position: Position,
        header: BlockHeader,
        block: Buffer,
        counted: tuple[int, int],
    ) -> None:
        """Write a block below the end of the log, at a position where no block lies.

        ``counted`` has the numbers of entries and messages before the block. The tail stays as it is, and the event
        loop does not learn of the block.
        """
        key = tables.BLOCK_KEY.pack(tail.topic_id, *position)
        prefixed = b"".join((tables.LOCAL_PREFIX.pack(*counted), block))
        self._put(txn, tail, key, header, self._row(txn, tail, key, header, prefixed, prefixed=True))

    def _row(
        self, txn: lmdb.Transaction, tail: Tail, key: bytes, header: BlockHeader, block: Buffer, *, prefixed: bool
    ) -> Buffer:
        before = tables.LOCAL_PREFIX.size if prefixed else 0
        if header.parts_bytes or not self._bodies.takes(len(block) - before):
            return block if prefixed else b"".join((self.prefix(tail), block))
        prefix = memoryview(block)[:before] if prefixed else self.prefix(tail)
        return self._bodies.put(txn, key, prefix, memoryview(block)[before:], header.entries)

    def put_high_water(self, txn: lmdb.Transaction, tail: Tail, origin: str, high_water: HighWater) -> None:
        tail.high_water[origin] = high_water
        key = tables.TOPIC_KEY.pack(tail.topic_id) + origin.encode("ascii")
        value = tables.HIGH_WATER.pack(high_water.incarnation, *high_water.position)
        txn.put(key, value, db=self._dbs["high_water"])

    def write(self, txn: lmdb.Transaction) -> None:
        """Write the counter of ids, if an id was assigned."""
        if self.last_id != self._first_id:
            txn.put(b"last_id", json.dumps(self.last_id).encode(), db=self._dbs["meta"])

    def roll_back(self) -> None:
        for tail, before in self._before.values():
            for name in Tail.__slots__:
                setattr(tail, name, getattr(before, name))
            tail.index = None  # what it holds in memory may be of this transaction
        for tail, ledger, next_entry, entries, messages, cluster, mark in reversed(self._ends):
            tail.ledger, tail.next_entry, tail.entries, tail.messages = ledger, next_entry, entries, messages
            if mark is None:
                tail.high_water.pop(cluster, None)
            else:
                tail.high_water[cluster] = mark
            tail.index = None
