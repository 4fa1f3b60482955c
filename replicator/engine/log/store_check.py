"""Whether a store is whole: every block by its checksum, and what the segments are said to hold by what is there.

It reads all that is stored. The store must not be written meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block_heads import BlockHead
from replicator.engine.log.segments.places import place_in, read_placed
from replicator.engine.log.store import Store
from replicator.engine.log.store_copy import DamagedBlock
from snapshots.position import BEFORE_ALL, Position

PAGE_BYTES: Final = 8 * 1024 * 1024
HEADS: Final = 1_000
END: Final = Position((1 << 63) - 1, 0)


@dataclass(slots=True)
class StoreCheck:
    """What was found. A topic with a damaged head is read no further: it does not say where the next block begins."""

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
    after = BEFORE_ALL
    while True:
        try:
            blocks, reached = store.read_blocks(topic_id, after, END, bytes_max=PAGE_BYTES)
        except BlockCorrupt:
            past = _past_damaged(store, topic_id, name, after, found)
            if past is None:
                return
            after = past
            continue
        found.blocks += len(blocks)
        if not blocks:
            return
        after = reached


def _past_damaged(store: Store, topic_id: int, name: str, after: Position, found: StoreCheck) -> Position | None:
    """Look block by block for the first damaged one, note it, and return its last position; None if its head is
    damaged."""
    while True:
        try:
            heads = store.block_heads(topic_id, after, END, blocks_max=HEADS)
        except BlockCorrupt as error:
            found.others.append(f"topic {name}: {error}")
            return None
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


def damaged_blocks(store: Store, topic_id: int) -> Iterator[tuple[BlockHead | None, str]]:
    """The head of each damaged block of a topic, and what is wrong with it; None if the head itself is damaged, which
    is the last that is found then."""
    after = BEFORE_ALL
    while True:
        try:
            heads = store.block_heads(topic_id, after, END, blocks_max=HEADS)
        except BlockCorrupt as error:
            yield None, f"after {after}: {error}"
            return
        for head in heads:
            last = Position(head.first.ledger, head.first.entry + head.header.entries - 1)
            try:
                store.read_blocks(topic_id, Position(last.ledger, last.entry - 1), last, bytes_max=0)
            except BlockCorrupt as error:
                yield head, str(error)
            after = last
        if not heads:
            return


def _check_places(store: Store, found: StoreCheck) -> None:
    """Each block that lies in a segment is said to lie there once, and nothing else is."""
    with store.env.begin(buffers=True) as txn:
        said = {bytes(key): place for place, key in read_placed(txn, store.tables["placed"])}
        for key, value in txn.cursor(db=store.tables["blocks"]):
            place = place_in(value)
            if place != said.pop(bytes(key), None):
                found.others.append(f"the block with the key {bytes(key).hex()}: it is not said to lie at {place}")
    found.others += [f"something is said to lie at {place}, which no topic has" for place in said.values()]
