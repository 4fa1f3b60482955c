"""Rows of table ``sequences``: the stored state of each producer for
:mod:`replicator.engine.producing.deduplication`.

Key: topic id | producer name in UTF-8. The rows of a topic are read when the first numbered publish comes, on the
writer thread, so that a topic without deduplication costs nothing.
"""

from __future__ import annotations

from typing import Any, Final

import lmdb

from replicator.engine.log.store_tables import TOPIC_KEY
from replicator.engine.producing.deduplication import SequenceRow, SequenceTable, decode_row, encode_row

TABLE: Final = "sequences"


def load_sequences(txn: lmdb.Transaction, database: Any, topic_id: int) -> list[tuple[str, SequenceRow]]:
    """Return the rows of a topic."""
    prefix = TOPIC_KEY.pack(topic_id)
    found: list[tuple[str, SequenceRow]] = []
    cursor = txn.cursor(db=database)
    more = cursor.set_range(prefix)
    while more and (key := bytes(cursor.key())).startswith(prefix):
        found.append((key[len(prefix) :].decode("utf-8", "surrogatepass"), decode_row(bytes(cursor.value()))))
        more = cursor.next()
    return found


def write_sequences(txn: lmdb.Transaction, database: Any, topic_id: int, table: SequenceTable) -> None:
    """Write the changed rows of the table, in the transaction of the entries."""
    prefix = TOPIC_KEY.pack(topic_id)
    for producer, row in table.take_changes():
        key = prefix + producer.encode("utf-8", "surrogatepass")
        if row is None:
            txn.delete(key, db=database)
        else:
            txn.put(key, encode_row(row), db=database)
