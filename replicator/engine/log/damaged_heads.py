"""Blocks whose head in the store's table cannot be read: where they lie, and what their segment has of them.

A head says what a block is: its origin, its entries, its checksums. Where it is damaged nobody can be asked for the
block by it. But one that lies in a segment is whole there, head and all, and table ``placed`` says which row it belongs
to. Of one that lies in the table, other rows say what it is (:mod:`replicator.engine.log.headless_blocks`).
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
    """``first`` is the block's position. What is below it is read up to ``upto``, and what is above from ``after``."""

    first: Position
    reason: str
    row: tuple[bytes, bytes] | None
    """Key and value of its row in table ``blocks`` as it was; None where nothing has it."""
    in_table: bool = False
    """It lies in no segment."""
    after: Position = END

    @property
    def upto(self) -> Position:
        return Position(self.first.ledger, self.first.entry - 1)


def damaged_heads(store: Store, topic_id: int) -> list[DamagedHead]:
    """Those of a topic, in order. Reads each head, and of segments what belongs to those that are damaged."""
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
    """The row of a block as it was, by what the block's segment has of it; None where that is not whole either. For a
    store that nobody writes."""
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
    """None for a block that lies in no segment. Raises :class:`BlockCorrupt`."""
    place, placed = place_in(value), store.tables["placed"]
    if place is None or txn.get(placed_key(place), db=placed) != placed_row(place, key)[1]:
        place = next((place for place, of in read_placed(txn, placed) if of == key), None)
    if place is None:
        return None
    block = store.segments.read_unchecked(place)
    return key, placed_value(value[: LOCAL_PREFIX.size], place, block, verify_block(block).entries)
