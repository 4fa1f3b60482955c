"""Deleting what a topic leaves behind in the store, in transactions of a bounded size.

Invariants (DESIGN §3): 1, the topic is gone from the transaction on that takes its name out of the catalog, also after
a crash; 10, its id and incarnation come from counters and are never given again, so nothing of it can pass for
something of a topic that is made anew under its name; 11, one transaction deletes a bounded number of rows.

1. One transaction moves the topic's record from the catalog to the table ``deleted``, by its id. From here on the name
   is free, and the writer refuses what was still on its way to the topic.
2. Transaction by transaction its rows are deleted, table by table.
3. With the last of them the record in ``deleted`` goes. A worker that starts takes up every record that it finds there.
"""

from __future__ import annotations

from typing import Any, Final

import lmdb

from replicator.engine.log.commit.putting_back import PUT_BACK, PUT_BACK_BELOW, PUT_BACK_BETWEEN, PUT_BACK_LEDGERS
from replicator.engine.log.store_tables import TABLES_OF_TOPICS, TOPIC_KEY
from replicator.engine.log.trim import Leave

SWEEP_ROWS_MAX: Final = 1_000
"""Deleted in one transaction: some milliseconds, so that publishes that wait behind it wait no longer."""
MARKERS_HANDLED: Final = "markers handled"
TOPIC_FACTS: Final = (MARKERS_HANDLED, PUT_BACK, PUT_BACK_BELOW, PUT_BACK_BETWEEN, PUT_BACK_LEDGERS)
"""Small facts of the worker, in the table ``meta``, whose names end with a topic's id."""


def sweep_topic(txn: lmdb.Transaction, tables: dict[str, Any], topic_id: int, leave: Leave) -> bool:
    """Delete rows of a deleted topic; returns whether there may be more of them."""
    prefix = TOPIC_KEY.pack(topic_id)
    left = SWEEP_ROWS_MAX
    for table in TABLES_OF_TOPICS:
        cursor = txn.cursor(db=tables[table])
        more = cursor.set_range(prefix)
        while more and bytes(cursor.key()).startswith(prefix):
            if not left:
                return True
            left -= 1
            if table == "blocks":
                leave(txn, cursor.value())
            cursor.delete()  # the cursor is now on the next row, with an empty key at the end
            more = bool(cursor.key())
    for fact in TOPIC_FACTS:
        txn.delete(f"{fact} {topic_id}".encode(), db=tables["meta"])
    txn.delete(prefix, db=tables["deleted"])
    return False
