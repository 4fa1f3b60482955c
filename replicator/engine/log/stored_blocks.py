"""Blocks as rows of a store's table: what a row tells, and looking one up with a cursor on table ``blocks``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import lmdb

from replicator.engine.errors import EntryCorrupt, MessageTooLarge
from replicator.engine.log.block import ENTRY_IDS_MAX, BlockHeader, BlockView, Buffer
from replicator.engine.log.entry import decode_entry
from replicator.engine.log.segments.places import BlockRow, parse_row
from replicator.engine.log.store_tables import BLOCK_KEY
from snapshots.position import Position


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block as it lies in this cluster: its local position and its bytes, which are the same everywhere."""

    position: Position
    header: BlockHeader
    block: Buffer

    @property
    def last(self) -> Position:
        return Position(self.position.ledger, self.position.entry + self.header.entries - 1)


@dataclass(frozen=True, slots=True)
class StoredHeader:
    """Which block lies at a local position, without its bytes."""

    position: Position
    header: BlockHeader
    size_bytes: int

    @property
    def last(self) -> Position:
        return Position(self.position.ledger, self.position.entry + self.header.entries - 1)


@dataclass(frozen=True, slots=True)
class LedgerExtent:
    """What the store holds of one ledger of a topic."""

    ledger: int
    first: int
    last: int


def blocks_after(cursor: lmdb.Cursor, topic_id: int, after: Position) -> Iterator[tuple[Position, BlockRow]]:
    """The blocks that hold entries above ``after``, each with its local position."""
    more = seek_block(cursor, topic_id, Position(after.ledger, min(max(after.entry + 1, 0), ENTRY_IDS_MAX)))
    while more:
        key_topic, ledger, first = BLOCK_KEY.unpack(cursor.key())
        if key_topic != topic_id:
            return
        yield Position(ledger, first), parse_row(cursor.value())
        more = cursor.next()


def entries_before(view: BlockView, published_ms: int) -> int:
    """How many entries at the start of a block were published before that time, by their producers' clocks.

    One that cannot be read is as old as its block, which is not before: it must not stop what looks for others.
    """
    for index, entry in enumerate(view.entries(0, len(view))):
        try:
            metadata, _ = decode_entry(entry, check=False)
        except (EntryCorrupt, MessageTooLarge):
            return index
        if metadata.publish_time >= published_ms:
            return index
    return len(view)


def seek_block(cursor: lmdb.Cursor, topic_id: int, position: Position) -> bool:
    """Put the cursor on the block that holds ``position``, or on the first one above it."""
    key = BLOCK_KEY.pack(topic_id, position.ledger, position.entry)
    if not cursor.set_range(key):
        at_lower = cursor.last()
    elif bytes(cursor.key()) == key:
        return True
    else:
        at_lower = cursor.prev()
    if at_lower:
        found_topic, ledger, first = BLOCK_KEY.unpack(cursor.key())
        of_ledger = (found_topic, ledger) == (topic_id, position.ledger)
        if of_ledger and first + parse_row(cursor.value()).header.entries > position.entry:
            return True
    return bool(cursor.set_range(key))
