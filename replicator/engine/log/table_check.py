"""Check for rows that are gone from a store's tables and that no block refers to.

1. LMDB stores the number of rows of each table apart from the pages with the rows. If a page lost its rows, or was
   replaced by another page, that number is unchanged and so differs from the rows that are found.
2. Each row of a topic belongs to a topic of the catalog, or to one that is being deleted. Each topic belongs to a
   namespace with a row.
3. The counters of ids are at or above every id that was used (invariant 10).
4. Rows of sequence ids, of duplicates and of cursors refer to each other.

Only the first rule finds the loss of a row that no other row refers to, such as a permission.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from struct import Struct
from typing import Any, Final

import lmdb

from replicator.engine.log.row_check import FOUND_MAX, WrongRow
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import BLOCK_KEY, TABLES_OF_TOPICS, TOPIC_KEY, decode_place
from replicator.engine.topic_name import parse_topic
from snapshots.position import BEFORE_ALL, Position

_LOWEST: Final = Struct(">16sQ")
"""Digest of origin and producer, and the lowest sequence id, as in rows of ``numbered_blocks`` and keys of
``numbered``."""
_PLACE_BYTES: Final = 16
TOPIC_IDS_END: Final = 1 << 32


def check_tables(store: Store) -> list[WrongRow]:
    """Return the rows that are gone or wrong, compared with LMDB's own row counts and with rows that refer to them.

    At most :data:`FOUND_MAX` rows are returned. Nobody may write into the store meanwhile.
    """
    found: list[WrongRow] = []
    for check in (_row_counts, _topics, _counters, _sequences, _duplicates, _cursors):
        try:
            for wrong in check(store):
                found.append(wrong)
                if len(found) >= FOUND_MAX:
                    return found
        except lmdb.Error as error:
            found.append(WrongRow("", f"a table cannot be read: {error}; restore a backup (docs/backup.md)"))
    return found


def _row_counts(store: Store) -> Iterator[WrongRow]:
    for name, database in store.tables.items():
        with store.env.begin(db=database, buffers=True) as txn:
            says = int(txn.stat(database)["entries"])
            rows = 0
            try:
                for _ in txn.cursor().iternext(keys=True, values=False):
                    rows += 1
            except lmdb.Error as error:
                yield WrongRow("", f"table {name} can be read up to row {rows} of {says}: {error}")
                continue
        if rows != says:
            yield WrongRow(
                "", f"table {name} has {rows} rows, and should have {says}: a page of data.mdb is damaged; what else "
                "is said names what is missing, as far as other rows know it"
            )  # fmt: skip


def _topics(store: Store) -> Iterator[WrongRow]:
    records = store.topics()
    known = {record.topic_id for record in records} | set(store.deleted_topics())
    for table in TABLES_OF_TOPICS:
        for topic_id in _topic_ids(store, table):
            if topic_id not in known:
                yield WrongRow("", f"table {table} has rows of topic id {topic_id}, which is gone from the catalog")
    tenants, namespaces = set(store.tenants()), store.namespaces()
    for record in records:
        name = parse_topic(record.name)
        if tenants and name.tenant not in tenants:  # stores of early versions have no rows of tenants and namespaces
            yield WrongRow(
                record.name, f"the row of its tenant {name.tenant} is gone", ("tenants", name.tenant.encode(), b"")
            )
        if namespaces and name.full_namespace not in namespaces:
            yield WrongRow(record.name, f"the row of its namespace {name.full_namespace} is gone, with its policies")


def _topic_ids(store: Store, table: str) -> Iterator[int]:
    with store.env.begin(db=store.tables[table]) as txn:
        cursor = txn.cursor()
        more = cursor.first()
        while more:
            (topic_id,) = TOPIC_KEY.unpack_from(cursor.key())
            yield topic_id
            more = topic_id + 1 < TOPIC_IDS_END and cursor.set_range(TOPIC_KEY.pack(topic_id + 1))


def _counters(store: Store) -> Iterator[WrongRow]:
    records = store.topics()
    used = max((record.topic_id for record in records), default=0)
    used = max(used, *store.deleted_topics(), 0)
    yield from _at_least(store, "last_topic_id", used)
    ids = [record.incarnation for record in records]
    for record in records:
        with store.env.begin(db=store.tables["blocks"]) as txn:
            cursor = txn.cursor()
            if cursor.prev() if cursor.set_range(TOPIC_KEY.pack(record.topic_id + 1)) else cursor.last():
                topic_id, ledger, _ = BLOCK_KEY.unpack(cursor.key())
                ids += [ledger] if topic_id == record.topic_id else []
    yield from _at_least(store, "last_id", max(ids, default=0))


def _at_least(store: Store, counter: str, used: int) -> Iterator[WrongRow]:
    stored: Any = store.meta(counter)
    if used and (not isinstance(stored, int) or stored < used):
        says = "is gone" if stored is None else f"says {stored}"
        write = "meta", counter.encode(), json.dumps(used).encode()
        yield WrongRow("", f"the counter {counter} {says}, and {used} was given out", write)


def _sequences(store: Store) -> Iterator[WrongRow]:
    names = _names(store)
    numbered, blocks = store.tables["numbered"], store.tables["numbered_blocks"]
    with store.env.begin() as txn:
        for key, value in txn.cursor(db=blocks):
            topic_id, ledger, first = BLOCK_KEY.unpack(key)
            for item in _LOWEST.iter_unpack(value):
                row = TOPIC_KEY.pack(topic_id) + _LOWEST.pack(*item) + key[TOPIC_KEY.size :]
                if topic_id in names and txn.get(row, db=numbered) is None:
                    yield WrongRow(
                        names[topic_id], f"a row of the sequence ids of the block at {ledger}:{first} is gone"
                    )
        for key, _ in txn.cursor(db=numbered):
            (topic_id,) = TOPIC_KEY.unpack_from(key)
            lists, place = key[TOPIC_KEY.size : TOPIC_KEY.size + _LOWEST.size], key[TOPIC_KEY.size + _LOWEST.size :]
            of = TOPIC_KEY.pack(topic_id) + place
            stored = txn.get(of, b"", db=blocks)
            items = {stored[at : at + _LOWEST.size] for at in range(0, len(stored), _LOWEST.size)}
            if topic_id in names and lists not in items:
                _, ledger, first = BLOCK_KEY.unpack(of)
                reason = f"the row that lists the sequence ids of the block at {ledger}:{first} is gone"
                yield WrongRow(names[topic_id], reason, ("numbered_blocks", of, stored + lists))


def _duplicates(store: Store) -> Iterator[WrongRow]:
    names, duplicates = _names(store), store.tables["twins"]
    with store.env.begin() as txn:
        for key, value in txn.cursor(db=duplicates):
            topic_id, ledger, entry = BLOCK_KEY.unpack(key)
            for other, at in (
                (decode_place(value[:_PLACE_BYTES]), _PLACE_BYTES),
                (decode_place(value[_PLACE_BYTES : 2 * _PLACE_BYTES]), 0),
            ):
                if other == BEFORE_ALL or topic_id not in names:
                    continue
                stored = txn.get(BLOCK_KEY.pack(topic_id, *other), db=duplicates)
                if stored is None or decode_place(stored[at : at + _PLACE_BYTES]) != Position(ledger, entry):
                    both = f"the entries at {other} and {ledger}:{entry} are one message"
                    yield WrongRow(names[topic_id], f"{both}, and the row that says so at {other} is gone")


def _cursors(store: Store) -> Iterator[WrongRow]:
    names, heads = _names(store), store.tables["cursors"]
    with store.env.begin() as txn:
        before = b""
        for key in txn.cursor(db=store.tables["cursor_rows"]).iternext(keys=True, values=False):
            head = key[: key.index(b"\0", TOPIC_KEY.size)]
            (topic_id,) = TOPIC_KEY.unpack_from(head)
            if head != before and topic_id in names and txn.get(head, db=heads) is None:
                subscription = head[TOPIC_KEY.size :].decode(errors="replace")
                yield WrongRow(names[topic_id], f"the cursor of subscription {subscription} is gone")
            before = head


def _names(store: Store) -> dict[int, str]:
    return {record.topic_id: record.name for record in store.topics()}
