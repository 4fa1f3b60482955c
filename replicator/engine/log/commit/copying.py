"""Copying within one transaction: writes blocks of other origins, and holes for what links left out.

Invariants (DESIGN §3): 2, the destination's high-water mark is written in the same transaction as the block; 5, what a
link left out is written as a hole in that transaction, so that no cluster claims later to have it.

1. Check the whole request first (:mod:`replicator.engine.log.commit.new_blocks`), so that a refused request leaves
   nothing.
2. Turn a :class:`~replicator.engine.log.left_out.LeftOutNote` into a hole, and move the high-water mark. It adds no
   block.
3. Append each block, with the hole before it if there is one, and with the duplicates of its messages that are here
   already.
4. Write the extent of the block, which maps the entries' origin positions to local positions.

One origin can have several lives of a topic here (docs/adr/0080). Positions ascend from life to life, so one high-water
mark for each origin is enough. A block of a later life than the mark's is refused, unless :meth:`BlockCopies.keep_both`
took that life up or the block follows right behind the end of the earlier life.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import lmdb

from replicator.engine.errors import IncarnationMismatch, NotAllowedError
from replicator.engine.log import store_tables as tables
from replicator.engine.log.block import BlockHeader, BlockKind, BlockView
from replicator.engine.log.commit.block_writing import BlockWriting
from replicator.engine.log.commit.deduplicating import DeduplicationResult
from replicator.engine.log.commit.holes import put_hole
from replicator.engine.log.commit.new_blocks import select_new
from replicator.engine.log.left_out import LeftOutNote
from replicator.engine.log.requests import CopyRequest, Extent, KeepBothRequest, NewHole, Tail
from replicator.engine.log.store_tables import HighWater, PartsRow
from snapshots.position import BEFORE_ALL, Position

_NOTHING_FOUND: Final = DeduplicationResult((), ())


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
            # A batch that lacks messages is nobody's duplicate: the other one has more, and hiding that would lose it.
            if (request.numbered or tail.indexed) and header.kind is BlockKind.MESSAGES and not header.parts_bytes:
                found = self._deduplication.look_up(txn, request, new, local_first)
            partly = tuple(BlockView(new.block, header).absent) if header.parts_bytes else ()
            appender.append(
                txn,
                tail,
                header,
                new.block,
                hole=new.hole is not None,
                duplicates=found.duplicates,
                partly=partly,
                connected=found.connected,
            )
            if partly:
                row = PartsRow(header.origin, header.origin_first, local_first, partly)
                txn.put(*tables.parts_row(tail.topic_id, row), db=self._dbs["parts"])
            self._move(txn, tail, header.origin, header.incarnation, header.origin_last)
            extents.append(Extent(header.origin, header.origin_first, local_first, header.entries))
            self._put_extent(txn, tail, header, extents[-1])
        return extents

    def keep_both(self, txn: lmdb.Transaction, request: KeepBothRequest) -> None:
        """Set the incarnations of high-water marks to those of the later lives. The marks' positions stay: every
        position of a later life lies above them.

        Raises :class:`NotAllowedError` if an origin is this cluster. Raises :class:`IncarnationMismatch` if a life is
        not later than the life here, or if the mark's position does not lie below that life. Then nothing is written.
        """
        tail = request.tail
        raised: dict[str, HighWater] = {}
        for origin, life in request.lives.items():
            if origin == self._cluster:
                raise NotAllowedError(
                    f"{tail.name}: a link says that the topic was deleted and made anew in {origin!r}, which is this "
                    "cluster itself and knows its own messages: see that no other cluster has its name"
                )
            here = tail.high_water.get(origin)
            if here is None or here.incarnation == life.incarnation:
                continue
            if here.incarnation > life.incarnation or not _lies_below(here.position, life):
                raise IncarnationMismatch(
                    f"topic {tail.name!r}, origin {origin!r}: keep-both changes nothing, because incarnation "
                    f"{life.incarnation} at {life.position}, which the link copies, is not later than incarnation "
                    f"{here.incarnation} here, which reaches up to {here.position}. See whether the link still has its "
                    "gap (`replicator links list`)"
                )
            raised[origin] = HighWater(life.incarnation, here.position)
        self._appender.remember(tail)
        for origin, mark in raised.items():
            self._appender.put_high_water(txn, tail, origin, mark)
        for origin, hole in request.holes.items():
            put_hole(txn, self._dbs, tail, origin, hole)
        for origin in {*raised, *request.holes} & tail.high_water.keys():
            mark = tail.high_water[origin]
            note = LeftOutNote(origin, mark.incarnation, mark.position)
            self._committed.left_out.setdefault(tail.topic_id, []).append(note)

    def _pass_over(self, txn: lmdb.Transaction, tail: Tail, new: NewHole) -> None:
        note = new.note
        self._appender.remember(tail)
        put_hole(txn, self._dbs, tail, note.origin, (new.after, note.upto))
        self._move(txn, tail, note.origin, note.incarnation, note.upto)
        self._committed.left_out.setdefault(tail.topic_id, []).append(note)

    def _move(self, txn: lmdb.Transaction, tail: Tail, origin: str, incarnation: int, position: Position) -> None:
        """Move the high-water mark of ``origin``. Its incarnation never goes back to an earlier life."""
        here = tail.high_water.get(origin)
        newest = incarnation if here is None else max(here.incarnation, incarnation)
        self._appender.put_high_water(txn, tail, origin, HighWater(newest, position))

    def _put_extent(self, txn: lmdb.Transaction, tail: Tail, header: BlockHeader, extent: Extent) -> None:
        """Write the extent, or lengthen the one before it if it continues without a gap at the origin and here."""
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


def _lies_below(position: Position, life: HighWater) -> bool:
    """Return whether ``position``, which is of an earlier life, lies below all entries of ``life``.

    A life's incarnation and the ids of its ledgers come from one counter, and the incarnation comes first. Brokers
    number their ledgers apart from incarnations. So the position that the source has reached in ``life`` is compared,
    too.
    """
    return position.ledger < life.incarnation and (life.position == BEFORE_ALL or life.position >= position)
