"""Blocks in the store's table whose head is damaged: identifies them by other rows, and checks copies of them.

Invariant (DESIGN §3): 2, a block is the same bytes in every cluster, and lies there once. So only a copy of the same
block may replace a damaged one.

A block's head says what the block is, and has both checksums. Without the head, the following identifies a block:

1. Table ``extents`` maps copied entries to their origin positions. A block that it does not name is this cluster's own,
   and its origin position is its local one.
2. The row has the block's length. This row and the next one each count the entries and messages before themselves.
3. A copy is the block if it agrees with all of that, is whole by its own checksums, and has the same body. If the body
   is damaged, too, neither copy nor block may lack messages: which messages are left out differs between clusters.
"""

from __future__ import annotations

from dataclasses import dataclass

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import Buffer, verify_block
from replicator.engine.log.segments.places import place_in
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import BLOCK_KEY, LOCAL_PREFIX, TopicRecord, read_parts
from snapshots.position import Position


@dataclass(frozen=True, slots=True)
class HeadlessBlock:
    """Block whose head is damaged. ``counts`` are its entries and messages, None for the last block of a topic."""

    first: Position
    origin: str
    incarnation: int
    origin_first: Position
    counts: tuple[int, int] | None
    in_part: bool
    """Whether a link left messages of its batches out."""
    prefix: bytes
    block: bytes
    """Bytes of the block as they are stored, damaged."""

    def is_copy(self, copy: Buffer) -> bool:
        """Return whether ``copy`` is the undamaged form of this block."""
        if len(copy) != len(self.block):
            return False
        try:
            header = verify_block(copy)
        except BlockCorrupt:
            return False
        says = (header.origin, header.incarnation, header.origin_first)
        if says != (self.origin, self.incarnation, self.origin_first):
            return False
        if self.counts not in (None, (header.entries, header.messages)) or self.in_part != bool(header.parts_bytes):
            return False
        same_body = bytes(copy[header.columns_at :]) == self.block[header.columns_at :]
        return same_body or (self.counts is not None and not header.parts_bytes)


def headless_block(store: Store, topic: TopicRecord, first: Position) -> HeadlessBlock | None:
    """Identify the block at ``first``, whose head is damaged. Return None if it lies in a segment, or if its row
    contradicts the next one."""
    key = BLOCK_KEY.pack(topic.topic_id, *first)
    with store.env.begin() as txn:
        cursor = txn.cursor(db=store.tables["blocks"])
        if not cursor.set_key(key):
            return None
        value = bytes(cursor.value())
        if place_in(value) is not None:
            return None
        counts = None
        if cursor.next() and cursor.key()[:4] == key[:4]:
            before, behind = LOCAL_PREFIX.unpack_from(value), LOCAL_PREFIX.unpack_from(cursor.value())
            counts = behind[0] - before[0], behind[1] - before[1]
            if counts[0] <= 0 or counts[1] < 0:
                return None
        in_part = any(each.local_first == first for each in read_parts(txn, store.tables["parts"], topic.topic_id))
    origin, incarnation, origin_first = _identity(store, topic, first)
    prefix, block = value[: LOCAL_PREFIX.size], value[LOCAL_PREFIX.size :]
    return HeadlessBlock(first, origin, incarnation, origin_first, counts, in_part, prefix, block)


def _identity(store: Store, topic: TopicRecord, first: Position) -> tuple[str, int, Position]:
    for origin, incarnation, origin_first, local_first, entries in store.extents(topic.topic_id):
        offset = first.entry - local_first.entry
        if first.ledger == local_first.ledger and 0 <= offset < entries:
            return origin, incarnation, Position(origin_first.ledger, origin_first.entry + offset)
    return store.cluster, topic.incarnation, first
