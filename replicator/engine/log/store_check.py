"""Check whether a store is whole, which finds three kinds of damage:

1. Blocks whose bytes differ from their checksums.
2. Rows that are gone, or that contradict other rows (:mod:`.row_check`, :mod:`.table_check`).
3. Blocks in segments whose row in the table ``placed`` is gone or names another place, and rows of that table without a
   block.

The check reads the whole store. Nobody may write into the store meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import lmdb

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block_heads import BlockHead
from replicator.engine.log.damaged_heads import END, DamagedHead, damaged_heads
from replicator.engine.log.row_check import Finding, MissingBlocks, WrongRow, check_rows
from replicator.engine.log.segments.places import place_in, placed_row, read_placed
from replicator.engine.log.store import Store
from replicator.engine.log.store_copy import DamagedBlock
from replicator.engine.log.store_tables import BLOCK_KEY
from replicator.engine.log.table_check import check_tables
from snapshots.position import BEFORE_ALL, Position

PAGE_BYTES: Final = 8 * 1024 * 1024
HEADS: Final = 1_000
BY_ITS_SEGMENT: Final = "`replicator store repair` puts it back from its segment"
BY_OTHERS: Final = "`replicator store repair` asks the other clusters for it"
BY_OTHER_ROWS: Final = "`replicator store repair` makes it again from the blocks"
BY_A_BACKUP: Final = (
    "nobody can say what it was: restore the newest whole backup (docs/backup.md), and what came since comes back from "
    "the other clusters"
)


@dataclass(slots=True)
class StoreCheck:
    """Result of a check."""

    damaged: list[DamagedBlock] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """Damage of other kinds, in words."""
    rows: list[Finding] = field(default_factory=list)
    """Rows that are gone, or that contradict other rows."""
    topics: int = 0
    blocks: int = 0

    @property
    def problems(self) -> list[str]:
        return [
            *(f"topic {each.topic}: {each.reason}" for each in self.damaged),
            *self.others,
            *(f"{each}; {remedy_of(each)}" for each in self.rows),
        ]


def remedy_of(finding: Finding) -> str:
    """Return, in words, how to repair a row that is gone or wrong."""
    if isinstance(finding, MissingBlocks):
        return BY_OTHERS
    return BY_OTHER_ROWS if finding.write is not None else finding.remedy or BY_A_BACKUP


def check_store(store: Store, on_topic: Callable[[str], None] = lambda _: None) -> StoreCheck:
    """Check the whole store, and return what is damaged. Change nothing."""
    found = StoreCheck()
    for record in store.topics():
        on_topic(record.name)
        found.topics += 1
        try:
            _check_topic(store, record.topic_id, record.name, found)
        except lmdb.Error as error:
            found.others.append(f"topic {record.name}: its rows cannot be read: {error}; {BY_A_BACKUP}")
    found.rows = row_findings(store)
    return found


def row_findings(store: Store) -> list[Finding]:
    """Return the rows of a store that are gone, or that contradict other rows."""
    found: list[Finding] = []
    names = {record.topic_id: record.name for record in store.topics()}
    orphans: dict[int, list[Position]] = {}
    found += _check_places(store, names, orphans)
    for record in store.topics():
        try:
            found += check_rows(store, record, orphans.get(record.topic_id, ()))
        except lmdb.Error as error:
            found.append(WrongRow(record.name, f"its rows cannot be read: {error}"))
    return found + check_tables(store)


def _check_topic(store: Store, topic_id: int, name: str, found: StoreCheck) -> None:
    for after, upto, head in _readable_ranges(store, topic_id):
        while True:
            try:
                blocks, reached = store.read_blocks(topic_id, after, upto, bytes_max=PAGE_BYTES)
            except BlockCorrupt:
                beyond = _find_damaged(store, topic_id, name, after, upto, found)
                if beyond <= after:  # the rows were deleted meanwhile
                    break
                after = beyond
                continue
            found.blocks += len(blocks)
            if not blocks:
                break
            after = reached
        if head is not None:
            remedy = BY_ITS_SEGMENT if head.row else BY_OTHERS if head.in_table else BY_A_BACKUP
            found.others.append(f"topic {name}: {head.reason}; {remedy}")


def _readable_ranges(store: Store, topic_id: int) -> Iterator[tuple[Position, Position, DamagedHead | None]]:
    """Yield the ranges of a topic in which all heads can be read, each with the damaged head after it."""
    after = BEFORE_ALL
    for head in damaged_heads(store, topic_id):
        yield after, head.upto, head
        after = head.after
    yield after, END, None


def _find_damaged(
    store: Store, topic_id: int, name: str, after: Position, upto: Position, found: StoreCheck
) -> Position:
    """Find the first damaged block after ``after``, block by block. Record it in ``found``, and return its last
    position."""
    while True:
        heads = store.block_heads(topic_id, after, upto, blocks_max=HEADS)
        if not heads:
            return after
        for head in heads:
            last = Position(head.first.ledger, head.first.entry + head.header.entries - 1)
            try:
                store.read_blocks(topic_id, Position(last.ledger, last.entry - 1), last, bytes_max=0)
            except BlockCorrupt as error:
                found.damaged.append(DamagedBlock(name, head.first, last, str(error)))
                return last
            found.blocks += 1
            after = last


def damaged_blocks(store: Store, topic_id: int) -> Iterator[tuple[BlockHead, str]]:
    """Yield the head of each damaged block of a topic, and what is wrong with the block. Skip blocks whose head is
    damaged too."""
    for start, upto, _ in _readable_ranges(store, topic_id):
        after = start
        while heads := store.block_heads(topic_id, after, upto, blocks_max=HEADS):
            for head in heads:
                last = Position(head.first.ledger, head.first.entry + head.header.entries - 1)
                try:
                    store.read_blocks(topic_id, Position(last.ledger, last.entry - 1), last, bytes_max=0)
                except BlockCorrupt as error:
                    yield head, str(error)
                after = last


def _check_places(store: Store, names: Mapping[int, str], orphans: dict[int, list[Position]]) -> Iterator[WrongRow]:
    """Compare the blocks that lie in segments with the table ``placed``, which must have exactly one row for each of
    them.

    Add the first positions of blocks that have a row in ``placed`` but none in ``blocks`` to ``orphans``, by topic id.
    """
    with store.env.begin(buffers=True) as txn:
        said = {bytes(key): place for place, key in read_placed(txn, store.tables["placed"])}
        for key, value in txn.cursor(db=store.tables["blocks"]):
            place, block = place_in(value), bytes(key)
            if place == (known := said.pop(block, None)):
                continue
            topic_id, ledger, first = BLOCK_KEY.unpack(block)
            name = names.get(topic_id, f"of id {topic_id}")
            write = None if place is None or known is not None else ("placed", *placed_row(place, block))
            yield WrongRow(name, f"the block at {ledger}:{first} is not said to lie at {place}", write)
    for orphan, place in said.items():
        topic_id, ledger, first = BLOCK_KEY.unpack(orphan)
        if topic_id in names:
            orphans.setdefault(topic_id, []).append(Position(ledger, first))
        else:
            yield WrongRow("", f"something is said to lie at {place}, which no topic has")
