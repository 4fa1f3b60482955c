"""The check of recorded duplicates when another version takes a store over: do they hold the same messages?

An earlier version took entries of two clusters for one message by their sequence ids alone, and delivered only the
first of them. Its store may hide messages that nobody has ever received. So:

1. Each chain of duplicates is read when the store is opened by another version than last time. Its entries are compared
   with the first entry of the chain (:mod:`.contents`).
2. Entries that differ leave their chain, and are delivered as messages of their own. If a subscription consumed such
   an entry together with the first one, the entry stays consumed: nobody can tell it from others.
3. Chunks leave their chains together with all other chunks of their message, unless the whole message is equal.

The check runs before anybody uses the store, so it may take its time: some 0.1 ms for each comparison.
"""

from __future__ import annotations

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
from replicator.engine.producing.deduplication import Numbered
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


def part_differing_duplicates(store: Store) -> int:
    """Take entries that differ in content out of their chains of duplicates. Return how many entries that were.

    Do nothing if the same version compared the duplicates of this store before.
    """
    with store.env.begin() as txn:
        none = txn.stat(store.tables["twins"])["entries"] == 0
    if none or store.meta(COMPARED_BY) == _RULE:
        return 0
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
    differing = differing_duplicates(_Entries(store, record.topic_id), chains_of(pairs))
    if differing:
        _part(store, record.topic_id, differing)
        log.warning(
            "messages were hidden as duplicates by an earlier version and differ in content: they are delivered",
            topic=record.name,
            entries=len(differing),
            positions=[str(each) for each in differing[:POSITIONS_LOGGED_MAX]],
        )
    return len(differing)


def chains_of(pairs: Iterable[tuple[Position, Position]]) -> list[list[Position]]:
    """Return the chains of duplicates of a topic, each in the order of the log. ``pairs`` are the neighbours in the
    chains."""
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
    chunked: dict[tuple[Numbered, str, str], list[tuple[Position, bool]]] = {}
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
