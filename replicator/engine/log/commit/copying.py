"""Copying within one transaction: writes blocks of other origins, and what of them a link left out.

Invariants (DESIGN §3): 2, the destination's high-water mark is written in the same transaction as the block; 5, what a
link left out is written as a hole in that transaction, so that nobody claims later to have it.

1. The whole request is checked first (:mod:`replicator.engine.log.commit.new_blocks`), so a refused one leaves nothing.
2. A note of what was left out becomes a hole and moves the high-water mark; it has no block.
3. A block is appended with its hole, if there is one before it, and with those of its messages that are here already.
4. Its extent is written: where the entries of the origin lie here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import lmdb

from replicator.engine.log import store_tables as tables
from replicator.engine.log.block import BlockHeader, BlockKind, BlockView
from replicator.engine.log.commit.block_writing import BlockWriting
from replicator.engine.log.commit.deduplicating import FoundInBlock
from replicator.engine.log.commit.holes import put_hole
from replicator.engine.log.commit.new_blocks import select_new
from replicator.engine.log.requests import CopyRequest, Extent, NewHole, Tail
from replicator.engine.log.store_tables import HighWater, PartsRow

_NOTHING_FOUND: Final = FoundInBlock((), ())


class BlockCopies(BlockWriting):
    """Writes the copied blocks of one transaction."""

    __slots__ = ()

    def copy(self, txn: lmdb.Transaction, request: CopyRequest) -> list[Extent]:
        tail, appender = request.tail, self._appender
        accepted = select_new(request.blocks, cluster=self._cluster, topic=tail.name, high_water=tail.high_water)
        extents: list[Extent] = []
        for new in accepted:
            if isinstance(new, NewHole):
                self._pass_over(txn, tail, new)
                continue
            header = new.header
            local_first = appender.next_position(tail)
            if new.hole is not None:
                put_hole(txn, self._dbs, tail, header.origin, new.hole)
            found = _NOTHING_FOUND
            # A batch that lacks messages is nobody's twin: the other one has more, and hiding that would lose it.
            if (request.numbered or tail.indexed) and header.kind is BlockKind.MESSAGES and not header.parts_bytes:
                found = self._deduplication.look_up(txn, request, new, local_first)
            partly = tuple(BlockView(new.block, header).absent) if header.parts_bytes else ()
            appender.append(
                txn,
                tail,
                header,
                new.block,
                hole=new.hole is not None,
                twins=found.twins,
                partly=partly,
                connected=found.connected,
            )
            if partly:
                row = PartsRow(header.origin, header.origin_first, local_first, partly)
                txn.put(*tables.parts_row(tail.topic_id, row), db=self._dbs["parts"])
            appender.put_high_water(txn, tail, header.origin, HighWater(header.incarnation, header.origin_last))
            extents.append(Extent(header.origin, header.origin_first, local_first, header.entries))
            self._put_extent(txn, tail, header, extents[-1])
        return extents

    def _pass_over(self, txn: lmdb.Transaction, tail: Tail, new: NewHole) -> None:
        note = new.note
        self._appender.remember(tail)
        put_hole(txn, self._dbs, tail, note.origin, (new.after, note.upto))
        self._appender.put_high_water(txn, tail, note.origin, HighWater(note.incarnation, note.upto))
        self._committed.left_out.setdefault(tail.topic_id, []).append(note)

    def _put_extent(self, txn: lmdb.Transaction, tail: Tail, header: BlockHeader, extent: Extent) -> None:
        """Write the extent, or lengthen the one before it where both sides go on without a gap."""
        before = tail.open_extents.get(extent.origin)
        if (
            before is not None
            and before.origin_first.ledger == extent.origin_first.ledger
            and before.local_first.ledger == extent.local_first.ledger
            and before.origin_first.entry + before.entries == extent.origin_first.entry
            and before.local_first.entry + before.entries == extent.local_first.entry
        ):
            extent = replace(before, entries=before.entries + extent.entries)
        tail.open_extents[extent.origin] = extent
        key = tables.extent_key_prefix(tail.topic_id, extent.origin) + tables.EXTENT_KEY_TAIL.pack(
            header.incarnation, *extent.origin_first
        )
        txn.put(key, tables.EXTENT.pack(extent.entries, *extent.local_first), db=self._dbs["extents"])
