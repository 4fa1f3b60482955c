"""Blocks as rows of table ``blocks``, and looking them up with a cursor."""

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
    """A block with its local position. Its bytes are the same in every cluster."""

    position: Position
    header: BlockHeader
    block: Buffer

    @property
    def last(self) -> Position:
        return Position(self.position.ledger, self.position.entry + self.header.entries - 1)


@dataclass(frozen=True, slots=True)
class StoredHeader:
    """Header of the block at a local position, without the block's bytes."""

    position: Position
    header: BlockHeader
    size_bytes: int

    @property
    def last(self) -> Position:
        return Position(self.position.ledger, self.position.entry + self.header.entries - 1)


@dataclass(frozen=True, slots=True)
class LedgerExtent:
    """First and last entry that the store has of one ledger of a topic."""

    ledger: int
    first: int
    last: int


def blocks_after(cursor: lmdb.Cursor, topic_id: int, after: Position) -> Iterator[tuple[Position, BlockRow]]:
    """Yield the blocks that hold entries above ``after``, each with its local position."""
    more = seek_block(cursor, topic_id, Position(after.ledger, min(max(after.entry + 1, 0), ENTRY_IDS_MAX)))
    while more:
        key_topic, ledger, first = BLOCK_KEY.unpack(cursor.key())
        if key_topic != topic_id:
            return
        yield Position(ledger, first), parse_row(cursor.value())
        more = cursor.next()


def entries_before(view: BlockView, published_ms: int) -> int:
    """Return how many entries at the start of a block were published before that time, by their producers' clocks.

    An entry that cannot be read raises no error, so that the search can go on. It counts as published with its block.
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
    """Move the cursor to the block that holds ``position``, or else to the first block above it."""
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
