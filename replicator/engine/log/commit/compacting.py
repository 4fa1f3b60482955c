"""Moving the live blocks of a sparse segment to the open one, inside a transaction, so that the segment becomes free.

Invariants (DESIGN §3): 1, a block is moved by the transaction that refers to its new place, after its bytes are durable
there; 11, one transaction moves a bounded number of bytes.

1. A step takes the next blocks of the sparsest segment, up to :data:`MOVED_BYTES_MAX`, and at least one. Writes of
   clients go between two steps. A crash between steps leaves live blocks in both segments, as the rows say.
2. A block whose bytes are damaged stays where it is, and so does its segment: what may be read again must not be lost.
   It is reported, so that other clusters are asked for it. The next step goes on behind it.
3. A block that is larger than segments are now, or when there are to be none, goes to the store's table.
"""

from __future__ import annotations

from typing import Final

import lmdb
import structlog

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import Buffer
from replicator.engine.log.commit.bodies import GroupBodies
from replicator.engine.log.segments.places import Place, read_placed
from replicator.engine.log.segments.space import Segment
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import BLOCK_KEY, LOCAL_PREFIX
from snapshots.position import Position

MOVED_BYTES_MAX: Final = 2 * 1024 * 1024
"""Limit of bytes that one transaction moves, which takes some milliseconds; publishes wait meanwhile. Only a single
block may be larger."""

log = structlog.get_logger(__name__)


def compact_segments(txn: lmdb.Transaction, store: Store, bodies: GroupBodies) -> int | None:
    """Move a bounded number of blocks out of the sparsest segment. Return the bytes moved, or None if no segment is
    sparse."""
    segment = store.segments.space.sparse()
    if segment is None:
        return None
    lying = _next_blocks(txn, store, segment)
    moved = 0
    for place, key in lying:
        value = txn.get(key, db=store.tables["blocks"])
        assert value is not None, f"a block at {place} has no row"
        try:
            topic_id, ledger, first = BLOCK_KEY.unpack(key)
            view = store.block_for_writer(value, topic_id, Position(ledger, first))
        except BlockCorrupt as error:
            log.error("a damaged block keeps its segment", segment=segment.number, reason=str(error))  # noqa: TRY400
            segment.damaged_upto = place.offset
            continue
        bodies.leave(txn, value)
        prefix, block = value[: LOCAL_PREFIX.size], view.block
        if bodies.moves(len(block)):
            after: Buffer = bodies.put(txn, key, prefix, block, view.header.entries)
        else:
            after = b"".join((prefix, block))
        txn.put(key, after, db=store.tables["blocks"])
        moved += len(block)
    if not lying:
        segment.stuck = True
    return moved


def _next_blocks(txn: lmdb.Transaction, store: Store, segment: Segment) -> list[tuple[Place, bytes]]:
    """Return the blocks that the next step moves, each with the key of its row in table ``blocks``."""
    found: list[tuple[Place, bytes]] = []
    taken = 0
    for place, key in read_placed(txn, store.tables["placed"], segment.number, above=segment.damaged_upto):
        taken += place.size
        if found and taken > MOVED_BYTES_MAX:
            break
        found.append((place, key))
    return found
