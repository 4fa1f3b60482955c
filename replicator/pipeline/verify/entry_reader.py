"""Reader of logs for a comparison: each block becomes a row or two, whatever the number of its messages.

It runs in Spark's tasks. For each range of a topic's log at one cluster:

1. Blocks come raw (:mod:`~replicator.pipeline.verify.blocks`), and their checksums are computed here. A block whose
   body is wrong, or cannot be read, keeps its identity, which its head has, and is marked. A block whose head is wrong
   is passed over, and reported.
2. A block's entries inside of the range become pieces, cut at the borders of cells, so that later comparisons are of
   bounded size.
3. Read messages and markers are counted. The order of each origin's entries is followed, so that no log must be sorted:
   the end of a range is noted, and the next one continues from it (:class:`_Order`).
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

from replicator.engine.errors import BlockCorrupt, EngineError
from replicator.engine.log.block import BlockKind, BlockView, read_header, verify_block
from replicator.engine.log.block_heads import checksums_of
from replicator.engine.log.entry import decode_entry
from replicator.pipeline.data_plane import FetchedBlock
from replicator.pipeline.source.schema import signed
from replicator.pipeline.verify.blocks import Block, LogRange, Lost, Selection, Unreadable, blocks
from replicator.pipeline.verify.cluster_state import collecting_gone_topics
from replicator.pipeline.verify.comparison.contents import Place
from replicator.pipeline.verify.comparison.rows import (
    CELL_ENTRIES,
    DAMAGED,
    DESCENT,
    GONE,
    MARKERS,
    MESSAGES,
    NOTE,
    READ,
    RUN,
    FindingRow,
    PieceRows,
)
from replicator.pipeline.verify.comparison.scope import Scope, home_of
from replicator.pipeline.verify.plane import Head, VerifyPlane, uneven_sizes
from replicator.pipeline.verify.report import marker_name
from snapshots.position import BEFORE_ALL, Position

ROWS_MAX: Final = 8_192
"""Limit of rows of one record batch."""
PAGES_KEPT: Final = 8
"""Limit of pages of blocks that are kept in memory while contents are compared."""


def read_pieces(ranges: Iterable[LogRange], scope: Scope, selection: Selection) -> Iterator[pa.RecordBatch]:
    """Yield rows of :data:`~replicator.pipeline.verify.comparison.rows.PIECES` for several ranges.

    If a topic was deleted meanwhile, yield a note about that instead of more rows.
    """
    rows = PieceRows()
    with ExitStack() as connections:
        workers: dict[int, VerifyPlane] = {}
        for each in ranges:
            reading = RangeReader(each, scope, rows)
            if each.cluster not in workers:
                workers[each.cluster] = connections.enter_context(VerifyPlane(scope.urls[each.cluster]))
            topic = scope.topics[each.topic].name
            gone: set[str] = set()
            with collecting_gone_topics(gone, topic):
                for block in blocks(workers[each.cluster], topic, each, selection):
                    reading.take(block)
                    if len(rows) >= ROWS_MAX:
                        yield rows.take()
            reading.end(gone=bool(gone))
    if len(rows):
        yield rows.take()


def read_entries(scope: Scope) -> _EntryReader:
    """Return the reader of entries for :mod:`~replicator.pipeline.verify.comparison.contents`."""
    return _EntryReader(scope)


@dataclass(slots=True)
class _Order:
    """One origin's entries in a range: the first, the last, and whether any stands after a higher one."""

    first: Position
    last: Position
    descends: bool = False


@dataclass(slots=True)
class RangeReader:
    """Reader that turns one range into rows."""

    part: LogRange
    scope: Scope
    rows: PieceRows
    orders: dict[tuple[str, int], _Order] = field(default_factory=dict)
    messages: int = 0
    markers: dict[str, int] = field(default_factory=dict)
    heads_only: int = 0
    blocks: int = 0

    def take(self, block: Block) -> None:
        if isinstance(block, Unreadable):
            self._unreadable(block)
            return
        self.blocks += 1
        sound, damage = True, ""
        parts: dict[int, list[int]] = {}
        if isinstance(block, Head):
            head = block
            self.heads_only += 1
            start, stop = self._wanted(head)
        elif isinstance(block, Lost):
            head, sound, damage = block.head, False, block.reason
            start, stop = self._wanted(head)
        else:
            try:
                header = verify_block(block.block)
            except BlockCorrupt as error:
                header, sound, damage = read_header(block.block), False, str(error)
            view = BlockView(block.block, header)
            head = Head(
                block.first,
                int(header.kind),
                header.origin,
                header.incarnation,
                header.origin_first,
                header.entries,
                header.messages,
                header.publish_time_ms,
                len(block.block),
                header.parts_bytes,
                checksums_of(block.block),
                (uneven_sizes(view.batch_sizes) or b"") if sound else b"",
            )
            start, stop = self._wanted(head)
            if header.kind is not BlockKind.MESSAGES:
                self._count_markers(view, start, stop, sound)
            if header.parts_bytes and sound:
                parts = {entry: list(indexes) for entry, indexes in view.absent.items()}
        if start >= stop:
            return
        if not sound:
            self._damaged(head, start, damage)
        sizes = np.frombuffer(head.sizes, "<u4") if head.sizes else None
        of_entry = 0 if sizes is not None else head.messages // head.entries
        if head.kind == BlockKind.LOCAL_MARKERS:
            return
        self._follow(head, start, stop)
        self._cut(head, start, stop, sizes, of_entry, sound, parts)

    def end(self, *, gone: bool = False) -> None:
        """Add the notes on the range. ``gone`` says that the topic was deleted while the range was read."""
        topic, cluster = self.scope.topics[self.part.topic].name, self.scope.clusters[self.part.cluster]
        if gone:
            self._note(FindingRow(GONE, topic, 1, cluster=cluster))
        self._note(FindingRow(READ, topic, self.messages, cluster=cluster))
        for name, count in self.markers.items():
            self._note(FindingRow(READ, topic, count, cluster=cluster, other=name))
        for (origin, incarnation), order in self.orders.items():
            places = (order.first, order.last)
            self._note(
                FindingRow(
                    DESCENT if order.descends else RUN,
                    topic,
                    self.part.number,
                    cluster=cluster,
                    origin=origin,
                    incarnation=incarnation,
                    detail=" ".join(map(str, places)),
                )
            )

    def _wanted(self, head: Head) -> tuple[int, int]:
        (ledger, first), after, upto = head.first, self.part.after, self.part.upto
        if self.part.copies_upto is not None and home_of(head.origin) != self.scope.clusters[self.part.cluster]:
            upto = min(upto, self.part.copies_upto)
            if upto.ledger < ledger:
                return 0, 0
        start = max(after.entry + 1 - first, 0) if ledger == after.ledger else 0
        stop = min(upto.entry + 1 - first, head.entries) if ledger == upto.ledger else head.entries
        return start, stop

    def _follow(self, head: Head, start: int, stop: int) -> None:
        ledger, first = head.origin_first
        begin, end = Position(ledger, first + start), Position(ledger, first + stop - 1)
        order = self.orders.get((head.origin, head.incarnation))
        if order is None:
            self.orders[head.origin, head.incarnation] = _Order(begin, end)
            return
        order.descends |= begin <= order.last
        order.last = end

    def _cut(
        self,
        head: Head,
        start: int,
        stop: int,
        sizes: np.ndarray[Any, np.dtype[np.uint32]] | None,
        of_entry: int,
        sound: bool,
        parts: dict[int, list[int]],
    ) -> None:
        at = head.origin_first.entry
        while start < stop:
            cell = (at + start) // CELL_ENTRIES
            end = min(stop, (cell + 1) * CELL_ENTRIES - at)
            of_piece = None if sizes is None else sizes[start:end]
            messages = of_entry * (end - start) if of_piece is None else int(of_piece.sum(dtype=np.int64))
            self.messages += messages
            absent = {entry - start: indexes for entry, indexes in parts.items() if start <= entry < end}
            self.rows.add(
                {
                    "topic": self.part.topic,
                    "origin": head.origin,
                    "incarnation": signed(head.incarnation),
                    "origin_ledger": head.origin_first.ledger,
                    "cell": cell,
                    "start": at + start,
                    "kind": MESSAGES if head.kind == BlockKind.MESSAGES else MARKERS,
                    "count": end - start,
                    "cluster": self.part.cluster,
                    "ledger": head.first.ledger,
                    "entry": head.first.entry + start,
                    "messages": messages,
                    "checksums": signed(head.checksums),
                    "sound": sound,
                    "sizes": None if of_piece is None else uneven_sizes(of_piece),
                    # A block with left-out parts is not the block of its origin, whole or not.
                    "parts": json.dumps(absent).encode() if parts else None,
                }
            )
            start = end

    def _count_markers(self, view: BlockView, start: int, stop: int, sound: bool) -> None:
        for entry in view.entries(start, stop) if sound and start < stop else ():
            try:
                name = marker_name(decode_entry(entry, check=False)[0].marker_type)
            except EngineError:
                name = "unreadable"
            self.markers[name] = self.markers.get(name, 0) + 1

    def _damaged(self, head: Head, start: int, reason: str) -> None:
        topic, cluster = self.scope.topics[self.part.topic].name, self.scope.clusters[self.part.cluster]
        ledger, entry = head.first
        self._note(FindingRow(DAMAGED, topic, 1, cluster=cluster, ledger=ledger, entry=entry, detail=reason))
        if head.kind == BlockKind.LOCAL_MARKERS and not start:  # no other cluster has it, so it is compared with none
            text = f"a block of markers of {cluster} alone, at {head.first}: {reason}"
            self._note(
                FindingRow("corrupted", topic, 1, cluster=cluster, ledger=ledger, entry=entry, detail=text, shown=True)
            )

    def _unreadable(self, part: Unreadable) -> None:
        topic, cluster = self.scope.topics[self.part.topic].name, self.scope.clusters[self.part.cluster]
        count = part.upto.entry - part.after.entry if part.after.ledger == part.upto.ledger else 1
        self._note(
            FindingRow(
                "corrupted",
                topic,
                max(count, 1),
                cluster=cluster,
                ledger=part.after.ledger,
                entry=part.after.entry + 1,
                detail=f"{cluster} cannot read what lies after {part.after} up to {part.upto}: {part.reason}",
                shown=True,
            )
        )

    def _note(self, found: FindingRow) -> None:
        self.rows.add(
            {
                "topic": self.part.topic,
                "origin": "",
                "incarnation": 0,
                "origin_ledger": 0,
                "cell": 0,
                "start": 0,
                "kind": NOTE,
                "cluster": self.part.cluster,
                "ledger": self.part.after.ledger,
                "entry": self.part.after.entry,
                "note": json.dumps({name: value for name, value in asdict(found).items() if value is not None}),
            }
        )


class _EntryReader:
    """Reader of entries by their places. Places mostly ascend, so a page of each log is kept."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self._pages: OrderedDict[tuple[int, int], list[FetchedBlock]] = OrderedDict()

    def __call__(self, place: Place, count: int) -> Iterator[bytes]:
        cluster, topic, ledger, first = place
        while count > 0:
            block = self._block(cluster, topic, Position(ledger, first))
            if block is None:
                return  # trimmed meanwhile
            view = BlockView(block.block)
            offset = first - block.first.entry
            stop = min(len(view), offset + count)
            yield from (bytes(entry) for entry in view.entries(offset, stop))
            count -= stop - offset
            first += stop - offset

    def _block(self, cluster: int, topic: int, at: Position) -> FetchedBlock | None:
        for fresh in (False, True):
            if fresh:
                self._load(cluster, topic, at)
            for block in self._pages.get((cluster, topic), ()):
                last = block.first.entry + read_header(block.block).entries - 1
                if block.first.ledger == at.ledger and block.first.entry <= at.entry <= last:
                    return block
        return None

    def _load(self, cluster: int, topic: int, at: Position) -> None:
        with VerifyPlane(self._scope.urls[cluster]) as worker:
            name = self._scope.topics[topic].name
            self._pages[cluster, topic] = worker.page_of(name, Position(at.ledger, at.entry - 1))
        self._pages.move_to_end((cluster, topic))
        while len(self._pages) > PAGES_KEPT:
            self._pages.popitem(last=False)


assert Position(0, -1) == BEFORE_ALL
