"""What the store knows of the entries that lie at the brokers: the rows of table ``published``, one a run.

A row has the form of an extent, with the brokers' positions in the place of the local ones. It is written when the
bridge has read its own entry back from the brokers, before the bridge acknowledges that it has read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from replicator.apache.entry_map import EntryMap
from replicator.apache.stamps import Identity
from replicator.engine.log.extent_rows import extent_keys, extent_row, read_extents
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import EXTENT, EXTENT_KEY_TAIL, TOPIC_KEY
from replicator.engine.subscriptions.cursor_rows import RowWrite
from replicator.engine.topic import Topic
from snapshots.extents import Extent
from snapshots.position import Position

RUNS_AT_ONCE: Final = 10_000


def write_of(topic_id: int, identity: Identity, run: Extent) -> RowWrite:
    """The row of a run, for :meth:`Writer.put_many`; a run that became longer keeps its key."""
    key, value = extent_row(topic_id, identity.origin, identity.incarnation, run)
    return "published", key, value


def removal_of(topic_id: int, identity: Identity, run: Extent) -> RowWrite:
    """What deletes the row of a run that :meth:`EntryMap.trim` gave."""
    return "published", extent_row(topic_id, identity.origin, identity.incarnation, run)[0], None


def load_map(store: Store, topic: Topic, broker_origin: str) -> EntryMap:
    """All that the store knows of where a topic's entries lie."""
    topic_id = topic.topic_id
    found = EntryMap(broker_origin, topic.log.messages_of)
    for origin, incarnation in extent_keys(store, topic_id):
        at: Position | None = Position(0, 0)
        while at is not None:
            runs = read_extents(store, topic_id, origin, incarnation, at=at, runs_max=RUNS_AT_ONCE)
            for run in runs:
                found.copied(origin, run.origin_first, run.local_first, run.entries, incarnation=incarnation)
            last = runs[-1].origin_last if len(runs) == RUNS_AT_ONCE else None
            at = None if last is None else Position(last.ledger, last.entry + 1)
    # Rows are in the order of origins. Nearly always that is the brokers' order, too.
    late: set[str] = set()
    for identity, run in _published(store, topic_id):
        if identity.origin not in late and not found.published(identity, run):
            late.add(identity.origin)
    for origin in late:
        found.forget_published(origin)
        rows = [(identity, run) for identity, run in _published(store, topic_id) if identity.origin == origin]
        for identity, run in sorted(rows, key=lambda row: row[1].local_first):
            found.published(identity, run)
    return found


def _published(store: Store, topic_id: int) -> Iterator[tuple[Identity, Extent]]:
    prefix = TOPIC_KEY.pack(topic_id)
    with store.env.begin(db=store.tables["published"]) as txn:
        cursor = txn.cursor()
        more = cursor.set_range(prefix)
        while more and (key := bytes(cursor.key())).startswith(prefix):
            origin = key[len(prefix) : -EXTENT_KEY_TAIL.size - 1].decode()
            incarnation, ledger, first = EXTENT_KEY_TAIL.unpack(key[-EXTENT_KEY_TAIL.size :])
            entries, at_ledger, at_first = EXTENT.unpack(cursor.value())
            identity = Identity(origin, incarnation, Position(ledger, first))
            yield identity, Extent(identity.position, Position(at_ledger, at_first), entries)
            more = cursor.next()
