"""Check for rows of a topic that are gone from a store, or that contradict other rows.

Invariant (DESIGN §3): 1, a confirmed message is in the store, or a check names the position where it is missing.

A checksum shows that a block changed. It cannot show that a block is gone. Other rows can:

1. A block stores how many entries and messages lie before it. In a ledger it begins right after the block before it.
   The first block of a log counts what was trimmed.
2. The high-water mark of an origin names the last position that came. An earlier position that is not here must lie in
   a hole, or must have been trimmed.
3. The tables ``markers``, ``extents``, ``parts``, ``placed`` and ``numbered_blocks`` name positions of blocks. For the
   first three, each block tells what its row must contain.

If another row names a position and no block has it, the position belongs to the gap in which it lies.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import lmdb

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import ENTRY_IDS_MAX, BlockHeader, BlockKind, BlockView, Buffer
from replicator.engine.log.commit.putting_back import PUT_BACK
from replicator.engine.log.extent_rows import extent_row, read_extents
from replicator.engine.log.ledger_ends import HERE, LEDGER_ENDS_MAX
from replicator.engine.log.segments.places import parse_row
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import (
    BLOCK_KEY,
    HIGH_WATER,
    LOCAL_PREFIX,
    MARKER_RUN,
    TOPIC_KEY,
    PartsRow,
    TopicRecord,
    Trim,
    parts_row,
)
from snapshots.extents import Extent
from snapshots.position import BEFORE_ALL, Position

FOUND_MAX: Final = 1_000
"""Limit of findings of one kind for a topic, so that the loss of a whole table does not fill the memory."""

Run = tuple[int, int, int]
"""A ledger, and the first and the last entry id of a range in it."""


@dataclass(frozen=True, slots=True)
class MissingBlocks:
    """Gap in a topic's log: blocks whose rows are gone. They lay after ``after`` and before ``before``.

    ``before`` is None at the end of the log. ``counts`` are the numbers of missing entries and messages; None if no row
    counts them. ``known`` are positions in the gap that other rows name. ``lost`` has, for an origin, the range of
    origin positions below its high-water mark that are not here.
    """

    topic: str
    after: Position
    before: Position | None
    counts: tuple[int, int] | None = None
    known: tuple[Run, ...] = ()
    lost: tuple[tuple[str, Position, Position], ...] = ()

    def __str__(self) -> str:
        begin = "from the start of the log" if self.after == BEFORE_ALL else f"after {self.after}"
        end = "to its end" if self.before is None else f"up to {self.before}"
        said = [f"topic {self.topic}: the rows of blocks {begin} {end} are gone"]
        if self.counts is not None:
            said.append(f"{self.counts[0]} entries with {self.counts[1]} messages")
        if self.known:
            runs = [f"{ledger}:{first} to {ledger}:{last}" for ledger, first, last in self.known]
            said.append(f"among them {', '.join(runs)}")
        said += [f"{origin}'s after {after} up to {upto}" for origin, after, upto in self.lost]
        return "; ".join(said)


@dataclass(frozen=True, slots=True)
class WrongRow:
    """A row that is gone, or that contradicts other rows.

    ``write`` is the table, key and value that repair it; None if they are not known. ``remedy`` says in words how else
    to repair it. ``topic`` is empty for a row that belongs to no topic.
    """

    topic: str
    reason: str
    write: tuple[str, bytes, bytes] | None = None
    remedy: str = ""

    def __str__(self) -> str:
        return f"topic {self.topic}: {self.reason}" if self.topic else self.reason


Finding = MissingBlocks | WrongRow


def check_rows(store: Store, record: TopicRecord, placed: Sequence[Position] = ()) -> list[Finding]:
    """Return which rows of a topic are gone or wrong. Nobody may write into the store meanwhile.

    ``placed`` are the first positions of blocks that lie in segments and have no row in the table ``blocks``.
    """
    if store.meta(f"{PUT_BACK} {record.topic_id}") is not None:  # the counts of blocks are not corrected yet
        return [WrongRow(record.name, "a reclaim was cut off in it", remedy="run `replicator backup reclaim` again")]
    with store.env.begin(buffers=True) as txn:
        blocks = _Blocks(store, txn, record)
        blocks.walk()
    evidence = [(position.ledger, position.entry, position.entry) for position in placed]
    gaps = _Gaps(record.name, blocks)
    for run in (*evidence, *_named(store, record.topic_id)):
        gaps.note(run)
    gaps.compare_marks(store, record)
    return [*gaps.found, *blocks.wrong, *gaps.wrong]


def _named(store: Store, topic_id: int) -> Iterator[Run]:
    """Yield the positions of blocks that rows of other tables name."""
    for position, entries in store.marker_runs(topic_id):
        yield position.ledger, position.entry, position.entry + entries - 1
    for _, _, _, local, entries in store.extents(topic_id):
        yield local.ledger, local.entry, local.entry + entries - 1
    for row in store.parts(topic_id):
        yield row.local_first.ledger, row.local_first.entry, row.local_first.entry
    prefix = TOPIC_KEY.pack(topic_id)
    with store.env.begin(db=store.tables["numbered_blocks"]) as txn:
        cursor = txn.cursor()
        more = cursor.set_range(prefix)
        while more and cursor.key().startswith(prefix):
            _, ledger, first = BLOCK_KEY.unpack(cursor.key())
            yield ledger, first, first
            more = cursor.next()


@dataclass(slots=True)
class _PreviousBlock:
    """The block before the one that is being checked. ``counts`` are the entries and messages up to its end, if known.

    ``given_up`` is True for a marker that took the place of a lost entry (``replicator store repair``).
    """

    last: Position
    counts: tuple[int, int] | None
    given_up: bool = False


@dataclass(slots=True)
class _Blocks:
    """Walks through the blocks of a topic. Compares each block with the block before it and with its rows in other
    tables."""

    store: Store
    txn: lmdb.Transaction
    record: TopicRecord
    runs: list[Run] = field(default_factory=list)
    """The positions of all blocks, in order."""
    gaps: list[MissingBlocks] = field(default_factory=list)
    wrong: list[WrongRow] = field(default_factory=list)
    newest: dict[str, tuple[int, Position]] = field(default_factory=dict)
    """By origin, the highest incarnation and the highest origin position of its blocks."""
    trim: Trim = field(default_factory=Trim)
    trimmed: bool = False
    _extents: dict[str, tuple[int, Extent]] = field(default_factory=dict)

    def walk(self) -> None:
        """Check all blocks of the topic."""
        topic_id, tables = self.record.topic_id, self.store.tables
        self.trim = self.store.trim(topic_id)
        self.trimmed = self.store.has_rows("trims", topic_id)
        cursor, prefix = self.txn.cursor(db=tables["blocks"]), TOPIC_KEY.pack(topic_id)
        before: _PreviousBlock | None = None
        unread: Position | None = None
        more = cursor.set_range(prefix)
        while more and bytes(cursor.key()[: len(prefix)]) == prefix:
            key, value = bytes(cursor.key()), cursor.value()
            _, ledger, entry = BLOCK_KEY.unpack(key)
            first, counts = Position(ledger, entry), LOCAL_PREFIX.unpack_from(value)
            if unread is not None:
                self._run(unread, entry - 1 if ledger == unread.ledger else ENTRY_IDS_MAX)
                before, unread = _PreviousBlock(Position(ledger, entry - 1), None), None
            if before is None:
                self._begin(first, counts)
            elif before.counts is not None:
                lost = counts[1] - before.counts[1] if before.given_up else 0
                self._follow(before.last, (before.counts[0], before.counts[1] + max(0, lost)), first, counts)
            try:
                header = parse_row(value).header
            except BlockCorrupt:  # another check reports damaged heads
                unread = first
            else:
                self._look_at(key, value, first, header)
                last = Position(ledger, entry + header.entries - 1)
                given_up = header.kind is BlockKind.LOCAL_MARKERS and header.publish_time_ms == 0
                before = _PreviousBlock(last, (counts[0] + header.entries, counts[1] + header.messages), given_up)
            more = cursor.next()
        if unread is not None:
            self._run(unread, ENTRY_IDS_MAX)

    def _run(self, first: Position, last: int) -> None:
        if self.runs and self.runs[-1][0] == first.ledger and self.runs[-1][2] + 1 >= first.entry:
            self.runs[-1] = (first.ledger, self.runs[-1][1], max(last, self.runs[-1][2]))
        else:
            self.runs.append((first.ledger, first.entry, last))

    def _begin(self, first: Position, counts: tuple[int, int]) -> None:
        """Compare the counts of the first block with what was trimmed before it."""
        through, gone = self.trim.through, self.trim.counts
        if not self.trimmed:
            gone = (0, 0)
        elif gone is None:  # an earlier version trimmed the log, and did not store counts
            ends = self.trim.ends.get(HERE, ())
            if first.ledger == through.ledger:
                gone = counts[0] - (first.entry - through.entry - 1), counts[1]
            elif 0 < len(ends) < LEDGER_ENDS_MAX:
                gone = min(counts[0], sum(end.entry + 1 for end in ends)), counts[1]
            else:
                return
        missing = counts[0] - gone[0], counts[1] - gone[1]
        if missing[0] > 0 and missing[1] >= 0:
            known = _head(through, first, missing[0])
            self.gaps.append(MissingBlocks(self.record.name, through, first, missing, known))
        elif missing != (0, 0):
            self._say(f"the first block, at {first}, counts {counts} entries and messages before it, and {gone} were "
                      f"trimmed, up to {through}")  # fmt: skip

    def _follow(self, last: Position, reached: tuple[int, int], first: Position, counts: tuple[int, int]) -> None:
        """Compare the position and counts of the block at ``first`` with the end of the block before it."""
        missing = counts[0] - reached[0], counts[1] - reached[1]
        between = first.entry - last.entry - 1 if first.ledger == last.ledger else 0
        if between > 0 or (first.ledger != last.ledger and missing[0] > 0 and missing[1] >= 0):
            known = _head(last, first, missing[0])
            self.gaps.append(MissingBlocks(self.record.name, last, first, missing, known))
        elif missing != (0, 0) or between < 0:
            self._say(f"the block at {first} counts {counts} entries and messages before it, and those up to {last} "
                      f"have {reached}")  # fmt: skip

    def _look_at(self, key: bytes, value: Buffer, first: Position, header: BlockHeader) -> None:
        """Compare a block with its rows in other tables."""
        self._run(first, first.entry + header.entries - 1)
        if header.kind is not BlockKind.LOCAL_MARKERS:
            known = self.newest.get(header.origin, (0, BEFORE_ALL))
            self.newest[header.origin] = max(known[0], header.incarnation), max(known[1], header.origin_last)
        if header.kind is not BlockKind.MESSAGES:
            self._require_row("markers", key, MARKER_RUN.pack(header.entries), f"the row of markers at {first}")
        if header.parts_bytes:
            absent = tuple(BlockView(bytes(value[LOCAL_PREFIX.size :]), header).absent)
            row = PartsRow(header.origin, header.origin_first, first, absent)
            self._require_row(
                "parts", *parts_row(self.record.topic_id, row), f"the row of the parts that lie at {first}"
            )
        if header.origin != self.store.cluster:
            self._check_extent(first, header)

    def _require_row(self, table: str, key: bytes, value: bytes, what: str) -> None:
        stored = self.txn.get(key, db=self.store.tables[table])
        if stored is None or bytes(stored) != value:
            self._say(f"{what} is {'gone' if stored is None else 'not as its block says'}", (table, key, value))

    def _check_extent(self, first: Position, header: BlockHeader) -> None:
        """Compare a block from another cluster with the extent that maps its origin positions to local positions."""
        known = self._extents.get(header.origin)
        if known is None or known[0] != header.incarnation or not _holds(known[1], first, header):
            found = read_extents(
                self.store, self.record.topic_id, header.origin, header.incarnation, at=header.origin_first, runs_max=1
            )
            if not found or not _holds(found[0], first, header):
                extent = Extent(header.origin_first, first, header.entries)
                write = extent_row(self.record.topic_id, header.origin, header.incarnation, extent)
                self._say(f"the extent of {header.origin}'s {header.origin_first} to {header.origin_last}, which lie "
                          f"at {first}, is gone", ("extents", *write))  # fmt: skip
                return
            self._extents[header.origin] = header.incarnation, found[0]

    def _say(self, reason: str, write: tuple[str, bytes, bytes] | None = None) -> None:
        if len(self.wrong) < FOUND_MAX:
            self.wrong.append(WrongRow(self.record.name, reason, write))


def _head(last: Position, first: Position, missing: int) -> tuple[Run, ...]:
    """Return the missing positions in the ledger of ``first`` before ``first``.

    Return nothing if fewer than that are ``missing`` and the block before ``first`` lies in another ledger.
    """
    begin = last.entry + 1 if last.ledger == first.ledger else 0
    if last.ledger == first.ledger or missing >= first.entry:  # otherwise a reclaim began the ledger at ``first``
        return ((first.ledger, begin, first.entry - 1),) if begin < first.entry else ()
    return ()


def _holds(extent: Extent, first: Position, header: BlockHeader) -> bool:
    offset = header.origin_first.entry - extent.origin_first.entry
    return (
        extent.origin_first.ledger == header.origin_first.ledger
        and 0 <= offset <= extent.entries - header.entries
        and first == Position(extent.local_first.ledger, extent.local_first.entry + offset)
    )


class _Gaps:
    """Gaps of a topic, in the order of their positions, with the positions in them that other rows name."""

    def __init__(self, name: str, blocks: _Blocks) -> None:
        self.found = list(blocks.gaps)
        self.wrong: list[WrongRow] = []
        self._name = name
        self._blocks = blocks
        self._runs = blocks.runs

    def note(self, run: Run) -> None:
        """Add those positions of ``run`` to the gaps that no block has."""
        ledger, first, last = run
        through = self._blocks.trim.through
        if ledger < through.ledger or (ledger == through.ledger and last <= through.entry):
            return
        if ledger == through.ledger:
            first = max(first, through.entry + 1)
        at = max(0, bisect_right(self._runs, (ledger, first, ENTRY_IDS_MAX)) - 1)
        while first <= last:
            while at < len(self._runs) and self._runs[at][:1] + self._runs[at][2:] < (ledger, first):
                at += 1
            if at == len(self._runs) or self._runs[at][0] != ledger or self._runs[at][1] > last:
                self._missing((ledger, first, last))
                return
            if self._runs[at][1] > first:
                self._missing((ledger, first, self._runs[at][1] - 1))
            first = self._runs[at][2] + 1

    def _missing(self, run: Run) -> None:
        begin, end = Position(run[0], run[1]), Position(run[0], run[2])
        for at, gap in enumerate(self.found):
            if gap.after < begin and (gap.before is None or end < gap.before):
                self.found[at] = replace(gap, known=_joined(gap.known, run))
                return
        if len(self.found) < FOUND_MAX:
            at = bisect_left(self._runs, run)
            before = self._runs[at - 1] if at else None
            behind = self._runs[at] if at < len(self._runs) else None
            after = self._blocks.trim.through if before is None else Position(before[0], before[2])
            upto = None if behind is None else Position(behind[0], behind[1])
            self.found.append(MissingBlocks(self._name, after, upto, known=(run,)))

    def compare_marks(self, store: Store, record: TopicRecord) -> None:
        """Compare each origin's high-water mark with the blocks, the holes, and what was trimmed."""
        trim, newest = self._blocks.trim, self._blocks.newest
        marks = store.high_waters(record.topic_id)
        for origin in {*newest, *trim.vector}:
            incarnation, last = newest.get(origin, (0, trim.vector.get(origin, BEFORE_ALL)))
            mark = marks.get(origin)
            if mark is None or mark.position < last:
                row = TOPIC_KEY.pack(record.topic_id) + origin.encode("ascii")
                says = "is gone" if mark is None else f"says {mark.position}"
                write = ("high_water", row, HIGH_WATER.pack(incarnation, *last)) if origin in newest else None
                reason = f"the mark of {origin} {says}, and its newest block ends or ended at {last}"
                self.wrong.append(WrongRow(record.name, reason, write))
        end = Position(self._runs[-1][0], self._runs[-1][2]) if self._runs else trim.through
        lost: list[tuple[str, Position, Position]] = []
        for origin, mark in marks.items():
            holes = store.left_out(record.topic_id, origin)
            ends = trim.ends.get(origin, ())
            here = newest.get(origin, (0, BEFORE_ALL))[1]
            accounted = max(
                here,
                holes[-1][1] if holes else BEFORE_ALL,
                ends[-1] if ends else BEFORE_ALL,
                trim.vector.get(origin, BEFORE_ALL),
            )
            if mark.position <= accounted or (self._blocks.trimmed and trim.counts is None and not ends):
                continue
            own = origin == store.cluster
            lies = mark.position if own else store.translate(record.topic_id, origin, mark.incarnation, mark.position)
            if lies is None or not (self._has(lies) or any(_lies_in(gap, lies) for gap in self.found)):
                lost.append((origin, accounted, mark.position))
        if lost or (not self._runs and self._blocks.trimmed and not self.found):
            self.found.append(MissingBlocks(self._name, end, None, lost=tuple(lost)))

    def _has(self, position: Position) -> bool:
        at = bisect_right(self._runs, (position.ledger, position.entry, ENTRY_IDS_MAX)) - 1
        return at >= 0 and self._runs[at][0] == position.ledger and position.entry <= self._runs[at][2]


def _lies_in(gap: MissingBlocks, position: Position) -> bool:
    return gap.after < position and (gap.before is None or position < gap.before)


def _joined(runs: Sequence[Run], more: Run) -> tuple[Run, ...]:
    """Return ``runs`` with ``more`` added, in order. Runs that overlap or touch are merged into one."""
    joined: list[Run] = []
    for ledger, first, last in sorted({*runs, more}):
        if joined and joined[-1][0] == ledger and first <= joined[-1][2] + 1:
            joined[-1] = ledger, joined[-1][1], max(last, joined[-1][2])
        else:
            joined.append((ledger, first, last))
    return tuple(joined)
