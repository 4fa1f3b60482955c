"""Deletion of the oldest blocks of a log, with the rows that refer to them, inside a transaction.

Invariants (DESIGN §3): 2, high-water marks stay, so trimmed entries are not copied again; 10, the last block stays,
which keeps the counts and the used positions; 11, one transaction deletes a bounded number of blocks.

1. Take the oldest block. Stop if it reaches above the limit, or if it is the topic's last one.
2. Delete the block, its row of markers, and the rows of deduplication about its entries. Then record what these rows
   can no longer answer: the newest message of the block's origin, and the last deleted entry of each ledger, both at
   the origin and here. Batches that lack messages become holes.
3. Delete the extents (the exact mapping of copied entries) whose entries are all deleted.
4. Record the last deleted position, and how many entries and messages are deleted. The first block that stays must
   count as many before itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import lmdb

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import BlockKind, BlockView, Buffer
from replicator.engine.log.ledger_ends import HERE, note_end
from replicator.engine.log.left_out import Hole, with_holes_below
from replicator.engine.log.segments.places import parse_row
from replicator.engine.log.store_tables import (
    BLOCK_KEY,
    EXTENT,
    LOCAL_PREFIX,
    TOPIC_KEY,
    PartsRow,
    Trim,
    decode_trim,
    encode_place,
    encode_trim,
    extent_key_prefix,
    parts_row,
    read_holes,
)
from replicator.engine.producing.numbered_rows import trim_block
from snapshots.position import BEFORE_ALL, Position

TRIM_BLOCKS_MAX: Final = 1_000
"""Limit of blocks that one transaction deletes, which takes some milliseconds. Publishes wait behind it no longer than
that."""
TRIM_ROWS_MAX: Final = 10_000
"""Limit of deduplication rows that one transaction deletes. The block that reaches the limit is the last one."""


Leave = Callable[[lmdb.Transaction, Buffer], None]
"""Function that is called with each row of table ``blocks`` that is deleted."""


def trim_log(txn: lmdb.Transaction, tables: dict[str, Any], topic_id: int, upto: Position, leave: Leave) -> bool:
    """Delete blocks that lie at or below ``upto``. Return whether more are left to delete.

    Raises :class:`BlockCorrupt` if the oldest block is damaged. Then nothing was deleted.
    """
    stored = txn.get(TOPIC_KEY.pack(topic_id), db=tables["trims"])
    trimmed = Trim() if stored is None else decode_trim(bytes(stored))
    through, vector, origins = trimmed.through, dict(trimmed.vector), set[str]()
    ends = {origin: list(each) for origin, each in trimmed.ends.items()}
    last_first = _first_of_last_block(txn, tables, topic_id)
    cursor = txn.cursor(db=tables["blocks"])
    counts = trimmed.counts
    count = rows = 0
    more = False
    holes: dict[str, list[Hole]] = {}
    numbered = txn.get(TOPIC_KEY.pack(topic_id), db=tables["numbering"]) is not None
    while last_first is not None and cursor.set_range(BLOCK_KEY.pack(topic_id, 0, 0)):
        _, ledger, first = BLOCK_KEY.unpack(cursor.key())
        value = cursor.value()
        try:
            header = parse_row(value).header
            partly = tuple(BlockView(value[LOCAL_PREFIX.size :], header).absent) if header.parts_bytes else ()
        except BlockCorrupt:
            if not count:
                raise
            more = True  # the next transaction raises it, and deletes nothing
            break
        last = Position(ledger, first + header.entries - 1)
        if last > upto or Position(ledger, first) == last_first:
            break
        if count == TRIM_BLOCKS_MAX or rows >= TRIM_ROWS_MAX:
            more = True
            break
        if header.parts_bytes:
            parts = PartsRow(header.origin, header.origin_first, Position(ledger, first), partly)
            txn.delete(parts_row(topic_id, parts)[0], db=tables["parts"])
            at = header.origin_first
            ids = (at.entry + entry for entry in partly)
            holes.setdefault(header.origin, []).extend(
                (Position(at.ledger, each - 1), Position(at.ledger, each)) for each in ids
            )
        txn.delete(bytes(cursor.key()), db=tables["markers"])
        before = LOCAL_PREFIX.unpack_from(value)
        counts = before[0] + header.entries, before[1] + header.messages
        leave(txn, value)
        cursor.delete()
        if numbered:
            rows += trim_block(txn, tables, topic_id, Position(ledger, first), last)
        through, count = last, count + 1
        origins.add(header.origin)
        note_end(ends.setdefault(HERE, []), last)
        note_end(ends.setdefault(header.origin, []), header.origin_last)
        if header.kind is BlockKind.MESSAGES:
            vector[header.origin] = max(header.origin_last, vector.get(header.origin, BEFORE_ALL))
    if not count:
        return False
    for origin, each in holes.items():
        put_holes(txn, tables, topic_id, origin, each)
    for origin in origins:
        _trim_extents(txn, tables, topic_id, origin, through)
    txn.put(TOPIC_KEY.pack(topic_id), encode_trim(Trim(through, vector, ends, counts)), db=tables["trims"])
    return more


def put_holes(txn: lmdb.Transaction, tables: dict[str, Any], topic_id: int, origin: str, more: list[Hole]) -> None:
    """Add holes of an origin that lie below its high-water mark."""
    before = read_holes(txn, tables["left_out"], topic_id, origin)
    after = with_holes_below(before, more)
    prefix = extent_key_prefix(topic_id, origin)
    for start, _ in set(before).difference(after):
        txn.delete(prefix + encode_place(start), db=tables["left_out"])
    for start, end in set(after).difference(before):
        txn.put(prefix + encode_place(start), encode_place(end), db=tables["left_out"])


def _first_of_last_block(txn: lmdb.Transaction, tables: dict[str, Any], topic_id: int) -> Position | None:
    cursor = txn.cursor(db=tables["blocks"])
    if not (cursor.prev() if cursor.set_range(TOPIC_KEY.pack(topic_id + 1)) else cursor.last()):
        return None
    found_topic, ledger, first = BLOCK_KEY.unpack(cursor.key())
    return Position(ledger, first) if found_topic == topic_id else None


def _trim_extents(txn: lmdb.Transaction, tables: dict[str, Any], topic_id: int, origin: str, through: Position) -> None:
    """Delete the extents that end at or below ``through``. An origin's extents have the same order there and here, so
    the first one that reaches above ends the search."""
    prefix = extent_key_prefix(topic_id, origin)
    cursor = txn.cursor(db=tables["extents"])
    more = cursor.set_range(prefix)
    while more and bytes(cursor.key()).startswith(prefix):
        entries, ledger, first = EXTENT.unpack(cursor.value())
        if Position(ledger, first + entries - 1) > through:
            return
        cursor.delete()
        more = bool(cursor.key())
