"""Bodies of blocks in one transaction: it puts them into segments, and takes them out.

Invariant (DESIGN §3): 1, bodies are durable before the transaction commits, because it calls
:meth:`GroupBodies.flush`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import lmdb

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import Buffer, head_bytes, with_incarnation
from replicator.engine.log.segments.places import (
    BlockRow,
    Place,
    parse_row,
    place_in,
    placed_key,
    placed_row,
    placed_value,
)
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import BLOCK_KEY, FORMAT, HEAD, LOCAL_PREFIX
from snapshots.position import Position


class GroupBodies:
    """Bodies of blocks that one transaction puts into segments or takes out of them."""

    __slots__ = ("_sizes", "_store", "freed", "placed")

    def __init__(self, store: Store, appended_bytes: int) -> None:
        """Prepare for a transaction that appends about ``appended_bytes``."""
        self._store = store
        self._sizes = store.segments.settings.sizes(appended_bytes)
        self.freed: list[Place] = []
        self.placed = False

    def takes(self, size_bytes: int) -> bool:
        """Return whether a block of ``size_bytes`` goes into a segment."""
        return size_bytes in self._sizes

    def moves(self, size_bytes: int) -> bool:
        """Return whether a block of ``size_bytes`` that lies in a segment is moved to another segment."""
        return size_bytes <= self._store.segments.settings.segment_bytes

    def put(self, txn: lmdb.Transaction, key: bytes, prefix: Buffer, block: Buffer, entries: int) -> bytes:
        """Put a block into a segment. Return its row for table ``blocks``, with the given key and prefix."""
        view = memoryview(block)
        place = self._store.segments.put(view)
        txn.put(*placed_row(place, key), db=self._store.tables["placed"])
        self.placed = True
        return placed_value(prefix, place, view, entries)

    def leave(self, txn: lmdb.Transaction, value: Buffer) -> None:
        """Record that the row ``value`` of table ``blocks`` is deleted, so that its place in a segment becomes free."""
        place = place_in(value)
        if place is not None:
            txn.delete(placed_key(place), db=self._store.tables["placed"])
            self.freed.append(place)

    def replace(self, txn: lmdb.Transaction, topic_id: int, first: Position, block: bytes) -> None:
        """Replace the damaged bytes of a block with ``block``. Raise :class:`BlockCorrupt` if ``block`` is a different
        block."""
        key = BLOCK_KEY.pack(topic_id, *first)
        value = txn.get(key, db=self._store.tables["blocks"])
        if value is None:
            raise BlockCorrupt(
                f"there is no block at {first} any more that could be mended: it was deleted meanwhile, and there is "
                "nothing to do"
            )
        row = parse_row(value)
        entries = row.header.entries
        head = block[: head_bytes(block, entries)]
        if len(block) != row.size_bytes or row.head[: len(head)] != head:
            raise BlockCorrupt(
                f"the copy that was to mend the block at {first} is of another block: run the repair again"
            )
        self._exchange(txn, key, value, row, block)

    def relabel(self, txn: lmdb.Transaction, topic_id: int, blocks: Sequence[Position], incarnation: int) -> None:
        """Assign the blocks at the first positions ``blocks`` to the life ``incarnation`` of their topic.

        Raise :class:`BlockCorrupt` if a block is missing or damaged. Then no block has changed.
        """
        for change in (False, True):
            for first in blocks:
                key = BLOCK_KEY.pack(topic_id, *first)
                value = txn.get(key, db=self._store.tables["blocks"])
                if value is None:
                    raise BlockCorrupt(
                        f"the log has no block at {first} any more that could be given to the new incarnation of the "
                        "topic: run the command again"
                    )
                view = self._store.block_for_writer(value, topic_id, first)
                if change:
                    relabelled = with_incarnation(bytes(view.block), incarnation)
                    self._exchange(txn, key, value, parse_row(value), relabelled)

    def _exchange(self, txn: lmdb.Transaction, key: bytes, value: Buffer, row: BlockRow, block: bytes) -> None:
        """Store ``block`` under ``key``, in place of the block whose row is ``value``, which was parsed as ``row``."""
        prefix = value[: LOCAL_PREFIX.size]
        if row.place is None:
            after: Buffer = b"".join((prefix, block))
        else:
            self.leave(txn, value)
            after = self.put(txn, key, prefix, block, row.header.entries)
        txn.put(key, after, db=self._store.tables["blocks"])

    def flush(self, txn: lmdb.Transaction) -> None:
        """Make all bodies that were put durable. With the first segments, also record the new store format: versions
        that do not know segments then refuse the store."""
        if self.placed:
            self._store.segments.flush()
            if self._store.head["format"] != FORMAT:
                head = {**self._store.head, "format": FORMAT}
                txn.put(HEAD.encode(), json.dumps(head).encode(), db=self._store.tables["meta"])

    def commit(self) -> None:
        """Note that the transaction is durable."""
        if self.placed:
            self._store.head["format"] = FORMAT
        if self.placed or self.freed:
            self._store.segments.commit(self.freed)

    def roll_back(self) -> None:
        self._store.segments.roll_back()
