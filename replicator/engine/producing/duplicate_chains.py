"""Stored chains of duplicates of a topic. A chain lists the entries of different origins that hold one message.

Table ``twins``: topic id | ledger | entry → earlier duplicate, later duplicate (each ledger u64 | entry + 1 u64, 0 for
none); origin. :mod:`replicator.engine.log.duplicates` describes what chains mean for readers of the log.

1. A chain is in the order of the local log, and has at most one entry of each origin.
2. An entry joins a chain only at its end.
3. When a block is trimmed, its entries leave their chains.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import lmdb

from replicator.engine.log.duplicates import DUPLICATES_MAX
from replicator.engine.log.store_tables import BLOCK_KEY, TOPIC_KEY, decode_place, encode_place
from snapshots.position import BEFORE_ALL, Position

_PLACE_BYTES: Final = 16

Pair = tuple[Position, Position]
"""Two local positions, the earlier one first."""


def load_duplicates(store: Any, topic_id: int) -> list[Pair]:
    """Return the pairs of neighbours in the chains of duplicates of a topic, the earlier entry first."""
    prefix = TOPIC_KEY.pack(topic_id)
    found: list[Pair] = []
    with store.env.begin(db=store.tables["twins"]) as txn:
        cursor = txn.cursor()
        more = cursor.set_range(prefix)
        while more and bytes(cursor.key()).startswith(prefix):
            _, ledger, entry = BLOCK_KEY.unpack(cursor.key())
            earlier = decode_place(bytes(cursor.value()[:_PLACE_BYTES]))
            if earlier != BEFORE_ALL:
                found.append((earlier, Position(ledger, entry)))
            more = cursor.next()
    return found


def trim_duplicates(
    txn: lmdb.Transaction, tables: dict[str, Any], topic_id: int, first: Position, last: Position
) -> int:
    """Take the entries of a block that is being deleted out of their chains. Return the number of changed rows."""
    key = BLOCK_KEY.pack(topic_id, *first)
    rows = 0
    duplicates = tables["twins"]
    cursor = txn.cursor(db=duplicates)
    more = cursor.set_range(key)
    while more and bytes(cursor.key()) <= BLOCK_KEY.pack(topic_id, *last):
        later = decode_place(bytes(cursor.value()[_PLACE_BYTES : 2 * _PLACE_BYTES]))
        cursor.delete()
        rows += 1
        if later != BEFORE_ALL:
            _forget_earlier(txn, duplicates, BLOCK_KEY.pack(topic_id, *later))
            more = cursor.set_range(key)
        else:
            more = bool(cursor.key())
    return rows


class DuplicateRow(NamedTuple):
    """Row of the table ``twins`` for one entry: the duplicates before and after it, and the entry's own origin.

    ``earlier`` and ``later`` are BEFORE_ALL if there is no such duplicate.
    """

    earlier: Position
    later: Position
    origin: str


def get_duplicate(
    txn: lmdb.Transaction, tables: dict[str, Any], topic_id: int, position: Position
) -> DuplicateRow | None:
    """Return the row of the entry at ``position`` in the table ``twins``, or None if the entry has no duplicate."""
    if position == BEFORE_ALL:
        return None
    stored = txn.get(BLOCK_KEY.pack(topic_id, *position), db=tables["twins"])
    if stored is None:
        return None
    row = bytes(stored)
    places = row[:_PLACE_BYTES], row[_PLACE_BYTES : 2 * _PLACE_BYTES]
    return DuplicateRow(decode_place(places[0]), decode_place(places[1]), row[2 * _PLACE_BYTES :].decode("ascii"))


def put_duplicate(
    txn: lmdb.Transaction, tables: dict[str, Any], topic_id: int, position: Position, row: DuplicateRow
) -> None:
    """Write the row of the entry at ``position`` into the table ``twins``; delete the row if it names no duplicate."""
    key = BLOCK_KEY.pack(topic_id, *position)
    if row.earlier == BEFORE_ALL and row.later == BEFORE_ALL:
        txn.delete(key, db=tables["twins"])
        return
    places = encode_place(row.earlier) + encode_place(row.later)
    txn.put(key, places + row.origin.encode("ascii"), db=tables["twins"])


def _forget_earlier(txn: lmdb.Transaction, duplicates: Any, key: bytes) -> None:
    stored = txn.get(key, db=duplicates)
    assert stored is not None, "the row before it says that it has one"
    row = bytes(stored)
    if decode_place(row[_PLACE_BYTES : 2 * _PLACE_BYTES]) == BEFORE_ALL:
        txn.delete(key, db=duplicates)  # no other entry of its chain is left
    else:
        txn.put(key, encode_place(BEFORE_ALL) + row[_PLACE_BYTES:], db=duplicates)


class DuplicateChains:
    """The chains of one topic. Only the writer's thread uses it, within a transaction."""

    __slots__ = ("_count", "_topic_id")

    def __init__(self, txn: lmdb.Transaction, tables: dict[str, Any], topic_id: int) -> None:
        self._topic_id = topic_id
        self._count = _count(txn, tables["twins"], topic_id)

    def has_room(self, entries: int) -> bool:
        """Return whether ``entries`` more entries may have duplicates (:data:`DUPLICATES_MAX`)."""
        return self._count + entries <= DUPLICATES_MAX

    def join(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        found: Position,
        found_origin: str,
        local: Position,
        origin: str,
    ) -> Pair | None:
        """Append ``local``, an entry of ``origin``, to the chain of ``found``. Return the pair of duplicates at the
        chain's end.

        Return None if the chain has an entry of ``origin`` already, or if the topic has too many duplicates.
        """
        if self._count >= DUPLICATES_MAX:
            return None
        last, row, origins = self._chain_of(txn, tables, found, found_origin)
        if origin in origins or last >= local:
            return None

        def put(position: Position, earlier: Position, later: Position, of: str) -> None:
            put_duplicate(txn, tables, self._topic_id, position, DuplicateRow(earlier, later, of))

        self._count += 1 + (row[:2] == (BEFORE_ALL, BEFORE_ALL))
        put(last, row.earlier, local, row.origin)
        put(local, last, BEFORE_ALL, origin)
        return last, local

    def may_join(
        self,
        txn: lmdb.Transaction,
        tables: dict[str, Any],
        found: Position,
        found_origin: str,
        local: Position,
        origin: str,
    ) -> bool:
        """Return whether ``local``, an entry of ``origin``, can be appended to the chain of duplicates that contains
        ``found``.

        It can if the chain has no entry of ``origin``, and ends before ``local``.
        """
        last, _, origins = self._chain_of(txn, tables, found, found_origin)
        return origin not in origins and last < local

    def _chain_of(
        self, txn: lmdb.Transaction, tables: dict[str, Any], found: Position, found_origin: str
    ) -> tuple[Position, DuplicateRow, set[str]]:
        """Return the last entry of the chain of duplicates that contains ``found``, its row, and the origins of all its
        entries.

        An entry without duplicates is a chain of its own.
        """
        last, row = (
            found,
            get_duplicate(txn, tables, self._topic_id, found) or DuplicateRow(BEFORE_ALL, BEFORE_ALL, found_origin),
        )
        origins = {row.origin}
        at, limit = row.earlier, last
        while BEFORE_ALL < at < limit and (before := get_duplicate(txn, tables, self._topic_id, at)) is not None:
            origins.add(before.origin)  # ever lower, whatever the rows say
            limit, at = at, before.earlier
        while row.later > last and (after := get_duplicate(txn, tables, self._topic_id, row.later)) is not None:
            last, row = row.later, after
            origins.add(row.origin)
        return last, row, origins


def _count(txn: lmdb.Transaction, database: Any, topic_id: int) -> int:
    prefix = TOPIC_KEY.pack(topic_id)
    cursor = txn.cursor(db=database)
    more = cursor.set_range(prefix)
    count = 0
    while more and bytes(cursor.key()).startswith(prefix):
        count += 1
        more = cursor.next()
    return count
