"""Search for blocks whose head in the store's table is damaged, and their repair from their segment.

A head says what a block is: its origin, its entries, its checksums. With a damaged head, no other cluster can be asked
for the block. But a block in a segment has its head there, too, and table ``placed`` says which row the block belongs
to. For a block in the table, other rows say what it is (:mod:`replicator.engine.log.headless_blocks`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import lmdb

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import Buffer, verify_block
from replicator.engine.log.segments.places import parse_row, place_in, placed_key, placed_row, placed_value, read_placed
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import BLOCK_KEY, LOCAL_PREFIX, TOPIC_KEY
from snapshots.position import Position

END: Final = Position((1 << 63) - 1, 0)


@dataclass(frozen=True, slots=True)
class DamagedHead:
    """Block whose head is damaged. ``first`` is its position. Blocks below it are read up to ``upto``, and those above
    from ``after`` on."""

    first: Position
    reason: str
    row: tuple[bytes, bytes] | None
    """Key and value of the block's undamaged row in table ``blocks``; None if its segment cannot supply them."""
    in_table: bool = False
    """Whether the block lies in the store's table, and in no segment."""
    after: Position = END

    @property
    def upto(self) -> Position:
        return Position(self.first.ledger, self.first.entry - 1)


def damaged_heads(store: Store, topic_id: int) -> list[DamagedHead]:
    """Return the blocks of a topic whose heads are damaged, in order. This reads each head, and the segments of damaged
    ones."""
    found: list[DamagedHead] = []
    with store.reading_blocks() as txn:
        cursor = txn.cursor()
        more, before_is_damaged = cursor.set_range(TOPIC_KEY.pack(topic_id)), False
        while more:
            key = bytes(cursor.key())
            key_topic, ledger, first = BLOCK_KEY.unpack(key)
            if key_topic != topic_id:
                break
            if before_is_damaged:
                found[-1] = replace(found[-1], after=Position(ledger, first - 1))
            try:
                parse_row(cursor.value())
            except BlockCorrupt as error:
                found.append(_damaged(store, txn, key, cursor.value(), error))
            before_is_damaged = bool(found) and found[-1].first == Position(ledger, first)
            more = cursor.next()
    return found


def row_by_segment(store: Store, topic_id: int, position: Position) -> tuple[bytes, bytes] | None:
    """Return the undamaged row of a block, made from its segment, or None if the segment's copy is damaged, too.
    Nothing may write to the store meanwhile."""
    key = BLOCK_KEY.pack(topic_id, *position)
    with store.reading_blocks() as txn:
        value = txn.get(key, db=store.tables["blocks"])
        try:
            return None if value is None else _by_segment(store, txn, key, value)
        except BlockCorrupt:
            return None


def _damaged(store: Store, txn: lmdb.Transaction, key: bytes, value: Buffer, error: BlockCorrupt) -> DamagedHead:
    _, ledger, entry = BLOCK_KEY.unpack(key)
    first, reason = Position(ledger, entry), f"the head of the block at {ledger}:{entry} is damaged: {error}"
    try:
        row = _by_segment(store, txn, key, value)
        return DamagedHead(first, reason, row, in_table=row is None)
    except BlockCorrupt as other:
        return DamagedHead(first, f"{reason}; and so is what its segment has of it: {other}", None)


def _by_segment(store: Store, txn: lmdb.Transaction, key: bytes, value: Buffer) -> tuple[bytes, bytes] | None:
    """Return the undamaged row made from the block's segment, or None if it lies in no segment. Raise
    :class:`BlockCorrupt`."""
    place, placed = place_in(value), store.tables["placed"]
    if place is None or txn.get(placed_key(place), db=placed) != placed_row(place, key)[1]:
        place = next((place for place, of in read_placed(txn, placed) if of == key), None)
    if place is None:
        return None
    block = store.segments.read_unchecked(place)
    return key, placed_value(value[: LOCAL_PREFIX.size], place, block, verify_block(block).entries)
