"""Check whether recorded duplicates have the same content, when another version of the program takes over a store.

If entries of two clusters had the same sequence id, an earlier version took them for the same message, and delivered
only the first. It did not compare their contents. So its store may hide messages that nobody has ever received. Hence:

1. When another version than last time opens the store, it reads each chain of duplicates, and compares each entry with
   the first one of its chain (:mod:`.contents`).
2. An entry that differs is taken out of its chain, and is delivered as a message of its own. A subscription that
   consumed the first entry may have consumed this one as its duplicate. The entry then stays consumed, because nothing
   tells it from entries that were really received.
3. If one chunk of a message differs, all chunks of the message are taken out of their chains.

The check runs before anybody uses the store. It takes some 0.1 ms for each comparison.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Final

import lmdb
import structlog

from replicator import __version__
from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import BlockView
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import TopicRecord
from replicator.engine.producing.contents import alike
from replicator.engine.producing.deduplication import SequencedEntry
from replicator.engine.producing.duplicate_chains import DuplicateRow, get_duplicate, load_duplicates, put_duplicate
from replicator.engine.producing.numbered_blocks import numbered_of
from snapshots.position import BEFORE_ALL, Position

COMPARED_BY: Final = "twins_compared"
"""Row of the table ``meta`` with the version that last compared the duplicates of the store."""
POSITIONS_LOGGED_MAX: Final = 20
_BLOCKS_KEPT: Final = 8
_RULE: Final = f"{__version__}, 1"
"""The version, and the number of the rule by which entries are compared."""

log = structlog.get_logger(__name__)


async def part_differing_duplicates(store: Store) -> int:
    """Take entries that differ in content out of their chains of duplicates. Return the number of these entries.

    Do nothing if this version has compared the duplicates of the store before. Only the comparison takes a thread.
    """
    with store.env.begin() as txn:
        none = txn.stat(store.tables["twins"])["entries"] == 0
    if none or store.meta(COMPARED_BY) == _RULE:
        return 0
    return await asyncio.to_thread(_part_all, store)


def _part_all(store: Store) -> int:
    found = 0
    try:
        for record in store.topics():
            found += _part_topic(store, record)
        with store.commit_lock, store.env.begin(write=True, db=store.tables["meta"]) as txn:
            txn.put(COMPARED_BY.encode(), json.dumps(_RULE).encode())
    except lmdb.Error as error:  # such as a full disk, on which a worker starts all the same
        log.warning("messages that an earlier version hid as duplicates were not compared", error=str(error))
    return found


def _part_topic(store: Store, record: TopicRecord) -> int:
    pairs = load_duplicates(store, record.topic_id)
    if not pairs:
        return 0
    differing = differing_duplicates(_Entries(store, record.topic_id), group_duplicates(pairs))
    if differing:
        _part(store, record.topic_id, differing)
        log.warning(
            "messages were hidden as duplicates by an earlier version and differ in content: they are delivered",
            topic=record.name,
            entries=len(differing),
            positions=[str(each) for each in differing[:POSITIONS_LOGGED_MAX]],
        )
    return len(differing)


def group_duplicates(pairs: Iterable[tuple[Position, Position]]) -> list[list[Position]]:
    """Build the chains of duplicates of a topic from ``pairs`` of neighbours, and return them.

    Each pair has the earlier entry first. Each chain is in the order of the log.
    """
    later = dict(pairs)
    followers = set(later.values())
    chains = []
    for first in sorted(later.keys() - followers):
        chain = [first]
        while (following := later.get(chain[-1])) is not None and following > chain[-1]:  # whatever the rows say
            chain.append(following)
        chains.append(chain)
    return chains


def differing_duplicates(entries: _Entries, chains: Sequence[Sequence[Position]]) -> list[Position]:
    """Return the entries that differ from the first entry of their chain, in the order of the log.

    An entry that cannot be read counts as different. All chunks of a message count as different if one of them does.
    """
    differing: list[Position] = []
    chunked: dict[tuple[SequencedEntry, str, str], list[tuple[Position, bool]]] = {}
    for first, *followers in chains:
        for later in followers:
            one, other = entries.get(first), entries.get(later)
            numbered = None if other is None else numbered_of(other[1])
            equal = one is not None and other is not None and alike(one[1], other[1])
            if numbered is not None and numbered.chunks and one is not None and other is not None:
                message = numbered._replace(chunk=0)
                chunked.setdefault((message, one[0], other[0]), []).append((later, equal))
            elif not equal:
                differing.append(later)
    for (message, _, _), chunks in chunked.items():
        if len(chunks) < message.chunks or not all(equal for _, equal in chunks):
            differing += [position for position, _ in chunks]
    return sorted(differing)


class _Entries:
    """Reads entries of one topic by position, and caches the last blocks."""

    def __init__(self, store: Store, topic_id: int) -> None:
        self._store = store
        self._topic_id = topic_id
        self._views: OrderedDict[Position, BlockView] = OrderedDict()

    def get(self, position: Position) -> tuple[str, memoryview] | None:
        """Return the origin and the bytes of the entry at ``position``, or None if the entry cannot be read."""
        for first, view in self._views.items():
            if first.ledger == position.ledger and 0 <= position.entry - first.entry < len(view):
                return view.header.origin, view.entry(position.entry - first.entry)
        before = Position(position.ledger, position.entry - 1)
        try:
            blocks, _ = self._store.read_blocks(self._topic_id, before, position, bytes_max=1)
        except BlockCorrupt:
            return None
        for block in blocks:
            self._views[block.position] = BlockView(block.block, block.header)
            if len(self._views) > _BLOCKS_KEPT:
                self._views.popitem(last=False)
            return self.get(position) if block.position <= position <= block.last else None
        return None


def _part(store: Store, topic_id: int, differing: Iterable[Position]) -> None:
    """Take the entries ``differing`` out of their chains of duplicates, in one transaction."""
    with store.commit_lock, store.env.begin(write=True) as txn:
        for position in differing:
            row = get_duplicate(txn, store.tables, topic_id, position)
            assert row is not None, "its row was just read"
            before = get_duplicate(txn, store.tables, topic_id, row.earlier)
            if before is not None:
                put_duplicate(txn, store.tables, topic_id, row.earlier, before._replace(later=row.later))
            after = get_duplicate(txn, store.tables, topic_id, row.later)
            if after is not None:
                put_duplicate(txn, store.tables, topic_id, row.later, after._replace(earlier=row.earlier))
            put_duplicate(txn, store.tables, topic_id, position, DuplicateRow(BEFORE_ALL, BEFORE_ALL, row.origin))
