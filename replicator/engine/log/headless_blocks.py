"""Blocks in the store's table whose head is damaged: what other rows say of them, and which copy may take their place.

Invariant (DESIGN §3): 2, a block is the same bytes in every cluster, and lies there once. What takes the place of a
damaged one is that block.

A block's head says what it is, with both checksums. Without it, this does:

1. Table ``extents`` has where copied entries lie here, and which of their origin they are. What it does not name is
   this cluster's own, and has the origin position that it lies at.
2. The row has the block's length. The row behind it counts the entries and messages before itself, as this one does.
3. A copy is the block if it agrees with all of that, is whole by its own checksums, and has the same body. Where the
   body is damaged too, the copy must have no messages left out, nor must the block: what is left out differs from
   cluster to cluster.
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
    """``counts`` are the block's entries and messages, None for the last block of a topic."""

    first: Position
    origin: str
    incarnation: int
    origin_first: Position
    counts: tuple[int, int] | None
    in_part: bool
    """Messages were left out of its batches."""
    prefix: bytes
    block: bytes
    """As it lies there, damaged."""

    def is_copy(self, copy: Buffer) -> bool:
        """Whether that is the block as it was."""
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
    """What is known of the block at ``first``, whose head is damaged; None for one that lies in a segment, or whose row
    contradicts the one behind it."""
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
