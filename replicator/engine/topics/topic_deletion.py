"""Deleting the remaining rows of a deleted topic, in transactions of a bounded size.

Invariants (DESIGN §3): 1, the topic is gone once the transaction that takes its name out of the catalog is durable,
also after a crash; 10, its id and incarnation come from counters and are never used again, so its rows cannot pass for
rows of a new topic with its name; 11, one transaction deletes a bounded number of rows.

1. One transaction moves the topic's record from the catalog to the table ``deleted``, by its id. From here on the name
   is free, and the writer refuses requests for the topic that were still on their way.
2. Further transactions delete its rows, table by table.
3. The last one also deletes the record in ``deleted``. A worker that starts goes on with every record there.
"""

from __future__ import annotations

from typing import Any, Final

import lmdb

from replicator.engine.log.commit.putting_back import PUT_BACK, PUT_BACK_BELOW, PUT_BACK_BETWEEN, PUT_BACK_LEDGERS
from replicator.engine.log.store_tables import TABLES_OF_TOPICS, TOPIC_KEY
from replicator.engine.log.trim import Leave

SWEEP_ROWS_MAX: Final = 1_000
"""Limit of rows that one transaction deletes, which takes some milliseconds. Publishes wait behind it no longer than
that."""
MARKERS_HANDLED: Final = "markers handled"
TOPIC_FACTS: Final = (MARKERS_HANDLED, PUT_BACK, PUT_BACK_BELOW, PUT_BACK_BETWEEN, PUT_BACK_LEDGERS)
"""Names of small rows in the table ``meta`` that end with a topic's id."""


def sweep_topic(txn: lmdb.Transaction, tables: dict[str, Any], topic_id: int, leave: Leave) -> bool:
    """Delete some rows of a deleted topic. Return whether there may be more of them."""
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
