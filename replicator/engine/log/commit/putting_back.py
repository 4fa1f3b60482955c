"""Putting back lost blocks of this cluster below the end of a topic's log, within one transaction.

A worker whose store was lost, and that was started on an empty directory, begins new lives of its topics. Other
clusters have copies of the earlier lives. Ids of ledgers only grow and are never used twice. So all ledgers of an
earlier life lie below those of the later life, and the positions of the lost blocks are free. The same is true of
ledgers that another copy of the store wrote after the two copies parted.

Invariants (DESIGN §3): 2 and 10, a block is written at its own position or not at all; 5, what no cluster has any more
is written as a hole of this cluster; 11, one transaction writes and counts a bounded number of blocks.

1. Check the whole request first, so that a refused request leaves nothing. No block may lie between its first and its
   last position, or above its first position in the same ledger.
2. With the first request of a topic, record how many entries and messages the log's first block counts before itself
   (:data:`PUT_BACK`). While that row exists, the counts of later blocks are wrong, and cursors may lie too high. So the
   topic must not be served.
3. Write the blocks. Fill positions between two blocks of one ledger with local markers (:mod:`.filling`).
4. :func:`recount` corrects the counts, from the log's first block on. It can be interrupted and begun again.
5. In a last transaction, the reclaim changes the cursors and deletes the row (:mod:`replicator.backup.putting_back`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Self

import lmdb

from replicator.engine.errors import NotReclaimed
from replicator.engine.log import store_tables as tables
from replicator.engine.log.block import BlockHeader, BlockKind, BlockView
from replicator.engine.log.commit.appending import LogAppender
from replicator.engine.log.commit.block_writing import BlockWriting
from replicator.engine.log.commit.filling import filler_blocks, first_part
from replicator.engine.log.commit.holes import put_hole
from replicator.engine.log.left_out import LeftOutNote
from replicator.engine.log.requests import Counted, PutBackRequest, RecountRequest
from replicator.engine.log.segments.places import parse_row
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import HighWater
from replicator.engine.producing.numbered_blocks import numbered_of
from snapshots.ack_vector import Range, merged_ranges
from snapshots.position import Position

PUT_BACK: Final = "put back"
"""With the topic's id, the name of a row in the table ``meta``: a :class:`PutBackNote` in JSON. It exists from the
first request until everything of the topic is put back."""
PUT_BACK_BELOW: Final = "put back below"
"""With the topic's id, the name of a row in the table ``meta``: the LAC that the log had when everything was put back,
as text.

A mapping of another cluster to a position up to that LAC says nothing about what was put back (DESIGN §4.2)."""
PUT_BACK_BETWEEN: Final = "put back between"
"""With the topic's id, the name of a row in the table ``meta``: the last position that was put back between ledgers of
the newest life, as text. Peers that have later messages never get it, and do not know that they lack it."""
PUT_BACK_LEDGERS: Final = "put back ledgers"
"""With the topic's id, the name of a row in the table ``meta``: the last position of each ledger that was put back
between ledgers of the newest life, in order, as texts. Earlier versions know only :data:`PUT_BACK_BETWEEN`."""
PUT_BACK_LEDGERS_MAX: Final = 100
"""Ledgers of a topic in that row. A link asks its destination one question for each, whenever it connects. The oldest
ledgers are forgotten first."""
RECOUNTED_BYTES_MAX: Final = 4 * 1024 * 1024
"""Bytes of rows that one transaction writes again. The rows of small blocks contain their bodies."""
RECOUNTED_ROWS_MAX: Final = 10_000
"""Rows that one transaction reads, which takes some tens of milliseconds."""


@dataclass(frozen=True, slots=True)
class PutBackNote:
    """Stored note for a topic while lost blocks are put back: the counts to begin with, and what was put back so
    far."""

    entries: int
    """Entries that retention deleted before the log's first block. ``messages`` is the number of messages in them."""
    messages: int
    ranges: Sequence[Range]
    """Ranges of positions that were put back so far, in order."""

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Self:
        ranges = [(Position(*after), Position(*upto)) for after, upto in row["ranges"]]
        return cls(row["entries"], row["messages"], ranges)

    def as_json(self) -> dict[str, Any]:
        ranges = [[list(after), list(upto)] for after, upto in self.ranges]
        return {"entries": self.entries, "messages": self.messages, "ranges": ranges}


def put_back_note(store: Store, topic_id: int) -> PutBackNote | None:
    """Return the stored :class:`PutBackNote` of a topic, or None if no blocks are being put back into the topic."""
    row = store.meta(f"{PUT_BACK} {topic_id}")
    return None if row is None else PutBackNote.of_json(row)


def put_back_between(store: Store, topic_id: int) -> list[Position]:
    """Return the last position of each ledger that was put back between ledgers of the topic's newest life, in
    order."""
    last, ledgers = store.meta(f"{PUT_BACK_BETWEEN} {topic_id}"), store.meta(f"{PUT_BACK_LEDGERS} {topic_id}")
    return sorted({Position.parse(each) for each in (*(ledgers or ()), *(() if last is None else (last,)))})


class PutBackWriter(BlockWriting):
    """Writes :class:`PutBackRequest`s within one transaction."""

    __slots__ = ()

    def put_back(self, txn: lmdb.Transaction, request: PutBackRequest) -> PutBackRequest | None:
        """Write the blocks and holes of ``request`` into its topic's log, with a limited number of fillers. Record the
        range in the topic's :class:`PutBackNote`.

        Return what is left to do in the next transaction, or None. Raises :class:`NotReclaimed`, before anything is
        written, if a block does not belong to the request's life, or if another block lies at the positions.
        """
        tail = request.tail
        self._check(request)
        before, at = self._free_place(txn, request)
        request, rest = first_part(request, at)
        self._appender.remember(tail)
        note = self._note(txn, request)
        counts = (note.entries, note.messages) if before is None else before
        for hole in request.holes:
            put_hole(txn, self._dbs, tail, self._cluster, hole)
        for header, block in request.blocks:
            first = header.origin_first
            if at is not None and at.ledger == first.ledger:
                counts = self._fill(txn, request, at, first.entry - at.entry, header.publish_time_ms, counts)
            self._appender.insert(txn, tail, first, header, block, counts)
            counts = counts[0] + header.entries, counts[1] + header.messages
            at = Position(first.ledger, header.origin_last.entry + 1)
            if header.kind is BlockKind.MESSAGES and request.numbered:
                numbered = [numbered_of(entry) for entry in BlockView(block, header).entries()]
                self._deduplication.reclaimed(txn, tail, first, numbered)
        if at is None or at <= request.upto:  # no cluster has the last entries, but some know their positions
            start = at if at is not None and at.ledger == request.upto.ledger else request.upto
            self._fill(txn, request, start, request.upto.entry + 1 - start.entry, 0, counts)
        own = tail.high_water.get(self._cluster)
        if own is None or own.position < request.upto:  # up to now the log has only local markers
            self._appender.put_high_water(txn, tail, self._cluster, HighWater(tail.incarnation, request.upto))
        told = LeftOutNote(self._cluster, tail.incarnation, request.upto)
        self._committed.left_out.setdefault(tail.topic_id, []).append(told)
        return rest

    def _check(self, request: PutBackRequest) -> None:
        next_at = request.after
        for header, _ in request.blocks:
            same_life = header.origin == self._cluster and header.incarnation == request.incarnation
            if not same_life or header.parts_bytes or header.origin_first <= next_at:
                raise NotReclaimed(
                    f"{request.tail.name}: another cluster gave the block at {header.origin} {header.origin_first}, "
                    f"incarnation {header.incarnation}, which does not belong in this log: it takes back whole blocks "
                    f"of {self._cluster}, incarnation {request.incarnation}, after {next_at}. See what `replicator "
                    "verify` says of the topic"
                )
            next_at = header.origin_last

    def _free_place(
        self, txn: lmdb.Transaction, request: PutBackRequest
    ) -> tuple[tuple[int, int] | None, Position | None]:
        """Return the counts up to the block before the request's first position, and the position right after that
        block.

        Return None for both if there is no block before. Raises :class:`NotReclaimed` if a block lies at one of the
        request's positions, or above its first position in the same ledger.
        """
        topic_id = request.tail.topic_id
        upto = request.upto
        first = request.blocks[0][0].origin_first if request.blocks else Position(upto.ledger, upto.entry + 1)
        cursor = txn.cursor(db=self._dbs["blocks"])
        found = cursor.set_range(tables.BLOCK_KEY.pack(topic_id, *first))
        if found:
            found_topic, ledger, entry = tables.BLOCK_KEY.unpack(cursor.key())
            if found_topic == topic_id and ledger <= request.upto.ledger:
                raise NotReclaimed(
                    f"{request.tail.name}: what was lost up to {request.upto} cannot be put back, because another "
                    f"message is at {Position(ledger, entry)} already: it was put back before, or the log got new "
                    "messages (docs/backup.md)"
                )
        if not (cursor.prev() if found else cursor.last()):
            return None, None
        found_topic, ledger, entry = tables.BLOCK_KEY.unpack(cursor.key())
        if found_topic != topic_id:
            return None, None
        value = cursor.value()
        header = parse_row(value).header
        at = Position(ledger, entry + header.entries)
        if at > first:
            raise NotReclaimed(
                f"{request.tail.name}: a lost message cannot be put back at {first}, because another message is at "
                "that position already: it was put back before, or the log got new messages (docs/backup.md)"
            )
        entries, messages = tables.LOCAL_PREFIX.unpack_from(value)
        return (entries + header.entries, messages + header.messages), at

    def _note(self, txn: lmdb.Transaction, request: PutBackRequest) -> PutBackNote:
        """Add the request's range to the topic's :class:`PutBackNote`, store the note, and return it.

        With the first request, record in it how many entries and messages the log's first block counts before itself.
        """
        topic_id = request.tail.topic_id
        key = f"{PUT_BACK} {topic_id}".encode()
        stored = txn.get(key, db=self._dbs["meta"])
        if stored is not None:
            note = PutBackNote.of_json(json.loads(bytes(stored)))
        else:
            cursor = txn.cursor(db=self._dbs["blocks"])
            prefix = tables.TOPIC_KEY.pack(topic_id)
            found = cursor.set_range(prefix) and bytes(cursor.key()).startswith(prefix)
            entries, messages = tables.LOCAL_PREFIX.unpack_from(cursor.value()) if found else (0, 0)
            note = PutBackNote(entries, messages, ())
        note = replace(note, ranges=merged_ranges([*note.ranges, (request.after, request.upto)]))
        txn.put(key, json.dumps(note.as_json()).encode(), db=self._dbs["meta"])
        return note

    def _fill(
        self,
        txn: lmdb.Transaction,
        request: PutBackRequest,
        at: Position,
        entries: int,
        publish_time_ms: int,
        counts: tuple[int, int],
    ) -> tuple[int, int]:
        for header, block in filler_blocks(self._cluster, request.incarnation, at, entries, publish_time_ms):
            self._appender.insert(txn, request.tail, header.origin_first, header, block, counts)
            counts = counts[0] + header.entries, counts[1]
        return counts


def recount(
    txn: lmdb.Transaction, dbs: dict[str, Any], request: RecountRequest, appender: LogAppender
) -> Counted | None:
    """Correct the counts of entries and messages before each block, for a limited number of blocks of a topic.

    Return the counts to go on with in the next transaction, or None at the end of the log.
    """
    tail, counted = request.tail, request.counted
    entries, messages = counted.entries, counted.messages
    size = 0
    cursor = txn.cursor(db=dbs["blocks"])
    for rows, (last, header) in enumerate(_rows_after(cursor, tail.topic_id, counted.through), 1):
        value = cursor.value()
        prefix = tables.LOCAL_PREFIX.pack(entries, messages)
        if bytes(value[: len(prefix)]) != prefix:
            cursor.put(bytes(cursor.key()), b"".join((prefix, value[len(prefix) :])))
            size += len(value)
        entries += header.entries
        messages += header.messages
        if size >= RECOUNTED_BYTES_MAX or rows >= RECOUNTED_ROWS_MAX:
            return Counted(last, entries, messages)
    appender.remember(tail)
    tail.entries, tail.messages = entries, messages
    return None


def _rows_after(cursor: lmdb.Cursor, topic_id: int, after: Position) -> Iterator[tuple[Position, BlockHeader]]:
    """Put the cursor on each block of a topic that begins above ``after``. Yield the block's last position and its
    header."""
    start = tables.BLOCK_KEY.pack(topic_id, after.ledger, after.entry + 1) if after.ledger >= 0 else None
    more = cursor.set_range(tables.TOPIC_KEY.pack(topic_id) if start is None else start)
    while more:
        found_topic, ledger, first = tables.BLOCK_KEY.unpack(cursor.key())
        if found_topic != topic_id:
            return
        header = parse_row(cursor.value()).header
        yield Position(ledger, first + header.entries - 1), header
        more = cursor.next()
