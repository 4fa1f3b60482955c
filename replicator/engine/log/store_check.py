"""Whether a store is whole: every block by its checksum, and what the segments are said to hold by what is there.

It reads all that is stored. The store must not be written meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block_heads import BlockHead
from replicator.engine.log.damaged_heads import END, DamagedHead, damaged_heads
from replicator.engine.log.segments.places import place_in, read_placed
from replicator.engine.log.store import Store
from replicator.engine.log.store_copy import DamagedBlock
from snapshots.position import BEFORE_ALL, Position

PAGE_BYTES: Final = 8 * 1024 * 1024
HEADS: Final = 1_000
BY_ITS_SEGMENT: Final = "`replicator store repair` puts it back from its segment"
BY_OTHERS: Final = "`replicator store repair` asks the other clusters for it"
BY_A_BACKUP: Final = (
    "nobody can say what it was: restore the newest whole backup (docs/backup.md), and what came since comes back from "
    "the other clusters"
)


@dataclass(slots=True)
class StoreCheck:
    """What was found."""

    damaged: list[DamagedBlock] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    """What else is wrong."""
    topics: int = 0
    blocks: int = 0

    @property
    def problems(self) -> list[str]:
        return [f"topic {each.topic}: {each.reason}" for each in self.damaged] + self.others


def check_store(store: Store, on_topic: Callable[[str], None] = lambda _: None) -> StoreCheck:
    """Read everything. Nothing is changed."""
    found = StoreCheck()
    for record in store.topics():
        on_topic(record.name)
        found.topics += 1
        _check_topic(store, record.topic_id, record.name, found)
    _check_places(store, found)
    return found


def _check_topic(store: Store, topic_id: int, name: str, found: StoreCheck) -> None:
    for after, upto, head in _stretches(store, topic_id):
        while True:
            try:
                blocks, reached = store.read_blocks(topic_id, after, upto, bytes_max=PAGE_BYTES)
            except BlockCorrupt:
                beyond = _past_damaged(store, topic_id, name, after, upto, found)
                if beyond <= after:  # the rows went meanwhile
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


def _stretches(store: Store, topic_id: int) -> Iterator[tuple[Position, Position, DamagedHead | None]]:
    """Ranges of a topic in which all heads can be read, each with the damaged one that follows it."""
    after = BEFORE_ALL
    for head in damaged_heads(store, topic_id):
        yield after, head.upto, head
        after = head.after
    yield after, END, None


def _past_damaged(
    store: Store, topic_id: int, name: str, after: Position, upto: Position, found: StoreCheck
) -> Position:
    """Look block by block for the first damaged one, note it, and return its last position."""
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
    """The head of each damaged block of a topic whose head is whole, and what is wrong with it."""
    for start, upto, _ in _stretches(store, topic_id):
        after = start
        while heads := store.block_heads(topic_id, after, upto, blocks_max=HEADS):
            for head in heads:
                last = Position(head.first.ledger, head.first.entry + head.header.entries - 1)
                try:
                    store.read_blocks(topic_id, Position(last.ledger, last.entry - 1), last, bytes_max=0)
                except BlockCorrupt as error:
                    yield head, str(error)
                after = last


def _check_places(store: Store, found: StoreCheck) -> None:
    """Each block that lies in a segment is said to lie there once, and nothing else is."""
    with store.env.begin(buffers=True) as txn:
        said = {bytes(key): place for place, key in read_placed(txn, store.tables["placed"])}
        for key, value in txn.cursor(db=store.tables["blocks"]):
            place = place_in(value)
            if place != said.pop(bytes(key), None):
                found.others.append(f"the block with the key {bytes(key).hex()}: it is not said to lie at {place}")
    found.others += [f"something is said to lie at {place}, which no topic has" for place in said.values()]
