"""Rows of the store about the entries that lie at the brokers.

Table ``published`` has one row for each run. A row has the form of an extent, with the brokers' positions in the place
of the local ones. It is written when the bridge has read its own entry back from the brokers, before the bridge
acknowledges that it has read it.

Table ``broker_notes`` has rows of these kinds:
* ``left_out``: an entry that an operator passed over because the brokers refuse it.
* ``lives``: the lives of the brokers' data, if these are more than one.
* ``may_be_missing``: the places where brokers may have deleted entries that the bridge had not read.
* ``read`` and ``first``: the last and the first entry that were read of a ledger, for the newest ledgers. They show
  whether the brokers have other entries at these positions later.
* ``native``: the last place to which native replication brought a message of another cluster.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from typing import Final

from replicator.apache import ledger_ends
from replicator.apache.broker_lives import BrokerLives
from replicator.apache.entry_map import EntryMap
from replicator.apache.ledger_ends import PossibleGap
from replicator.apache.left_out import RefusedEntry
from replicator.apache.read_entries import ReadEntry
from replicator.apache.stamps import Identity
from replicator.engine.log.extent_rows import extent_keys, extent_row, read_extents
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import EXTENT, EXTENT_KEY_TAIL, TOPIC_KEY
from replicator.engine.subscriptions.cursor_rows import RowWrite
from replicator.engine.topic import Topic
from snapshots.extents import Extent
from snapshots.position import Position

RUNS_AT_ONCE: Final = 10_000
LEFT_OUT: Final = b"left_out\0"
"""Kind of the rows of entries that an operator passed over."""
LIVES: Final = b"lives\0"
"""Kind of the row of the lives of the brokers' data."""
MAY_BE_MISSING: Final = b"may_be_missing\0"
"""Kind of the row of the places where brokers may have deleted what was not read."""
READ: Final = b"read\0"
"""Kind of the rows of the last entry of each ledger that was read."""
FIRST_READ: Final = b"first\0"
"""Kind of the rows of the first entry of each ledger that was read."""
NATIVE: Final = b"native\0"
"""Kind of the rows of the last place to which native replication brought a message of an origin."""
LEDGER: Final = struct.Struct(">Q")
READ_ENTRY: Final = struct.Struct(">QQQ")


def write_of(topic_id: int, identity: Identity, run: Extent) -> RowWrite:
    """Return the row of a run, for :meth:`Writer.put_many`. A run that became longer keeps its key."""
    key, value = extent_row(topic_id, identity.origin, identity.incarnation, run)
    return "published", key, value


def removal_of(topic_id: int, identity: Identity, run: Extent) -> RowWrite:
    """Return the write that deletes the row of ``run``, which :meth:`EntryMap.trim` returned."""
    return "published", extent_row(topic_id, identity.origin, identity.incarnation, run)[0], None


def left_out_row(topic_id: int, left_out: RefusedEntry) -> RowWrite:
    """Return the row that records an entry as left out at the brokers."""
    origin, incarnation, position = left_out.identity
    tail = origin.encode() + b"\0" + EXTENT_KEY_TAIL.pack(incarnation, *position)
    value = {"bytes": left_out.bytes, "reason": left_out.reason, "at_ms": left_out.at_ms}
    return "broker_notes", TOPIC_KEY.pack(topic_id) + LEFT_OUT + tail, json.dumps(value).encode()


def lives_row(topic_id: int, lives: BrokerLives) -> RowWrite:
    """Return the row of the lives of the brokers' data."""
    return "broker_notes", TOPIC_KEY.pack(topic_id) + LIVES, lives.to_json().encode()


def read_row(topic_id: int, ledger: int, read: ReadEntry | None, kind: bytes = READ) -> RowWrite:
    """Return the row of the last entry of a ledger that was read, or of the first one by ``kind``; None deletes it."""
    value = None if read is None else READ_ENTRY.pack(*read)
    return "broker_notes", TOPIC_KEY.pack(topic_id) + kind + LEDGER.pack(ledger), value


def native_row(topic_id: int, origin: str, place: Position) -> RowWrite:
    """Return the row of the last place to which native replication brought a message of ``origin``."""
    return "broker_notes", TOPIC_KEY.pack(topic_id) + NATIVE + origin.encode(), json.dumps(place).encode()


def may_be_missing_row(topic_id: int, places: Sequence[PossibleGap]) -> RowWrite:
    """Return the row of the places where messages may be missing."""
    return "broker_notes", TOPIC_KEY.pack(topic_id) + MAY_BE_MISSING, ledger_ends.to_json(places)


def load_may_be_missing(store: Store, topic_id: int) -> list[PossibleGap]:
    """Return the places where messages of a topic may be missing."""
    with store.env.begin(db=store.tables["broker_notes"]) as txn:
        row = txn.get(TOPIC_KEY.pack(topic_id) + MAY_BE_MISSING)
    return [] if row is None else ledger_ends.from_json(bytes(row))


def removals_of_all(store: Store, topic_id: int) -> list[RowWrite]:
    """Return the writes that delete all rows of a topic. Then none of its entries counts as published."""
    return [removal_of(topic_id, identity, run) for identity, run in _published(store, topic_id)]


def load_map(store: Store, topic: Topic, broker_origin: str) -> EntryMap:
    """Return the map of a topic's entries, as the store has it."""
    topic_id = topic.topic_id
    found = EntryMap(broker_origin, topic.log.messages_of)
    with store.env.begin(db=store.tables["broker_notes"]) as txn:
        if (lives := txn.get(TOPIC_KEY.pack(topic_id) + LIVES)) is not None:
            found.lives = BrokerLives.from_json(bytes(lives))
    for kind, read in ((READ, found.read), (FIRST_READ, found.first_read)):
        for key, value in _notes(store, topic_id, kind):
            read[LEDGER.unpack(key)[0]] = ReadEntry(*READ_ENTRY.unpack(value))
    for origin, incarnation in extent_keys(store, topic_id):
        at: Position | None = Position(0, 0)
        while at is not None:
            runs = read_extents(store, topic_id, origin, incarnation, at=at, runs_max=RUNS_AT_ONCE)
            for run in runs:
                found.copied(origin, run.origin_first, run.local_first, run.entries, incarnation=incarnation)
            last = runs[-1].origin_last if len(runs) == RUNS_AT_ONCE else None
            at = None if last is None else Position(last.ledger, last.entry + 1)
    for key, value in _notes(store, topic_id, LEFT_OUT):
        incarnation, ledger, entry = EXTENT_KEY_TAIL.unpack(key[-EXTENT_KEY_TAIL.size :])
        identity = Identity(key[: -EXTENT_KEY_TAIL.size - 1].decode(), incarnation, Position(ledger, entry))
        row = json.loads(value)
        found.leave_out(RefusedEntry(identity, row["bytes"], row["reason"], row["at_ms"]))
    for key, value in _notes(store, topic_id, NATIVE):
        found.native_through[key.decode()] = Position(*json.loads(value))
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
    found.find_twins()
    return found


def _notes(store: Store, topic_id: int, kind: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of one kind, with the rest of their keys."""
    prefix = TOPIC_KEY.pack(topic_id) + kind
    with store.env.begin(db=store.tables["broker_notes"]) as txn:
        cursor = txn.cursor()
        more = cursor.set_range(prefix)
        while more and (key := bytes(cursor.key())).startswith(prefix):
            yield key[len(prefix) :], bytes(cursor.value())
            more = cursor.next()


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
