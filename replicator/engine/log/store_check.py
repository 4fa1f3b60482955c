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
from snapshots.position import BEFORE_ALL, Position

PAGE_BYTES: Final = 8 * 1024 * 1024
HEADS: Final = 1_000
END: Final = Position((1 << 63) - 1, 0)


@dataclass(slots=True)
class StoreCheck:
    """What was found. A topic with a damaged block is read no further."""

    problems: list[str] = field(default_factory=list)
    topics: int = 0
    blocks: int = 0


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
        except BlockCorrupt as error:
            found.problems.append(f"topic {name}: {error}")
            return
        found.blocks += len(blocks)
        if not blocks:
            return
        after = reached


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
                found.problems.append(f"the block with the key {bytes(key).hex()}: it is not said to lie at {place}")
    found.problems += [f"something is said to lie at {place}, which no topic has" for place in said.values()]
