"""Reclaiming within one transaction: appends this cluster's own blocks, which a restored log lacks and other clusters
still have, at the positions that they had.

Invariants (DESIGN §3): 2 and 10, a block is appended at its own position or not at all, and no id at or below a seen
one is used again; 5, messages that no cluster has any more are written as a hole of this cluster, which it never
claims.

1. A block lies where its origin position says: that is this cluster's own position.
2. Positions between two blocks of one ledger had entries of other clusters, or local markers. Links bring those
   entries again, at new positions. Fillers take the old positions (:mod:`.filling`).
3. The log then goes on in another ledger, as after any start: the next positions of this one may have been used.
"""

from __future__ import annotations

from dataclasses import replace

import lmdb

from replicator.engine.errors import NotReclaimed
from replicator.engine.log.block import BlockKind, BlockView
from replicator.engine.log.commit.block_writing import BlockWriting
from replicator.engine.log.commit.filling import filler_blocks, first_part
from replicator.engine.log.commit.holes import put_hole
from replicator.engine.log.left_out import LeftOutNote
from replicator.engine.log.requests import ReclaimRequest, Tail
from replicator.engine.log.store_tables import HighWater
from replicator.engine.producing.numbered_blocks import numbered_of
from snapshots.position import Position


class Reclaims(BlockWriting):
    """Writes the reclaimed blocks of one transaction."""

    __slots__ = ()

    def reclaim(self, txn: lmdb.Transaction, request: ReclaimRequest) -> ReclaimRequest | None:
        """Append the blocks and holes of ``request``, with a limited number of fillers.

        Return what is left to do in the next transaction, or None. Raise :class:`NotReclaimed` before anything is
        written.
        """
        self._check(request)
        tail = request.tail
        self._appender.remember(tail)
        ids = [tail.incarnation, request.upto.ledger, *(header.origin_first.ledger for header, _ in request.blocks)]
        self._appender.last_id = max(self._appender.last_id, *ids)
        if tail.ledger is None:
            tail.ledger, tail.next_entry = request.last.ledger, request.last.entry + 1
        request, rest = first_part(request, Position(tail.ledger, tail.next_entry))
        for hole in request.holes:
            put_hole(txn, self._dbs, tail, self._cluster, hole)
        for header, block in request.blocks:
            self._fill_up_to(txn, tail, header.origin_first, header.publish_time_ms)
            first = self._appender.next_position(tail)
            assert first == header.origin_first, f"{header.origin_first} would be at {first}"
            self._appender.append(txn, tail, header, block)
            if header.kind is BlockKind.MESSAGES and request.numbered:
                numbered = [numbered_of(entry) for entry in BlockView(block, header).entries()]
                self._deduplication.reclaimed(txn, tail, first, numbered)
        if (tail.ledger, tail.next_entry) <= request.upto:
            self._fill_up_to(txn, tail, request.upto, 0)
            self._fill(txn, tail, 1, 0)  # nobody has what was there, but others know that there was something
        tail.ledger = None
        own = tail.high_water.get(self._cluster)
        if own is None or own.position < request.upto:
            self._appender.put_high_water(txn, tail, self._cluster, HighWater(tail.incarnation, request.upto))
        note = LeftOutNote(self._cluster, tail.incarnation, request.upto)
        self._committed.left_out.setdefault(tail.topic_id, []).append(note)
        return None if rest is None else replace(rest, last=request.upto)

    def _check(self, request: ReclaimRequest) -> None:
        tail = request.tail
        last = request.last if tail.ledger is None else Position(tail.ledger, tail.next_entry - 1)
        next_at = Position(last.ledger, last.entry + 1)
        for header, _ in request.blocks:
            if header.origin != self._cluster or header.incarnation != tail.incarnation or header.parts_bytes:
                raise NotReclaimed(
                    f"{tail.name}: another cluster gave the block at {header.origin} {header.origin_first}, "
                    f"incarnation {header.incarnation}, which does not belong in this log: it takes back whole blocks "
                    f"of {self._cluster}, incarnation {tail.incarnation}. See what `replicator verify` says of the "
                    "topic"
                )
            if header.origin_first < next_at:
                raise NotReclaimed(
                    f"{tail.name}: the lost message at {header.origin_first} cannot be put back, because the log has "
                    f"gone on to {next_at} since it was restored (docs/backup.md)"
                )
            next_at = Position(header.origin_last.ledger, header.origin_last.entry + 1)

    def _fill_up_to(self, txn: lmdb.Transaction, tail: Tail, at: Position, publish_time_ms: int) -> None:
        """Make ``at`` the next position, with fillers before it. A new ledger need not begin at entry 0."""
        if tail.ledger != at.ledger:
            tail.ledger, tail.next_entry = at
        self._fill(txn, tail, at.entry - tail.next_entry, publish_time_ms)

    def _fill(self, txn: lmdb.Transaction, tail: Tail, entries: int, publish_time_ms: int) -> None:
        if entries <= 0:
            return
        first = self._appender.next_position(tail)
        for header, block in filler_blocks(self._cluster, tail.incarnation, first, entries, publish_time_ms):
            self._appender.append(txn, tail, header, block)
