"""How both sides of each subscription were when they were last compared: the rows of table ``broker_cursors``.

They tell a subscription that was deleted from one that was never made, and a cursor that was put back from one that is
only behind. So they are kept over a restart. A row may be older than what is so: then the next comparison merges again.
"""

from __future__ import annotations

import json

from replicator.apache.broker_cursor import BrokerCursor
from replicator.apache.reconciling import Seen
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import TOPIC_KEY
from replicator.engine.subscriptions.cursor_rows import RowWrite


def write_of(topic_id: int, subscription: str, seen: Seen | None) -> RowWrite:
    """The row, for :meth:`Writer.put_many`; None deletes it."""
    value = None
    if seen is not None:
        shown = {"generation": seen.generation, "load": seen.load, "broker": seen.broker.to_json()}
        value = json.dumps(shown, separators=(",", ":")).encode()
    return "broker_cursors", TOPIC_KEY.pack(topic_id) + subscription.encode(), value


def load_seen(store: Store, topic_id: int) -> dict[str, Seen]:
    """By name of the subscription."""
    prefix = TOPIC_KEY.pack(topic_id)
    found: dict[str, Seen] = {}
    with store.env.begin(db=store.tables["broker_cursors"]) as txn:
        cursor = txn.cursor()
        more = cursor.set_range(prefix)
        while more and (key := bytes(cursor.key())).startswith(prefix):
            row = json.loads(bytes(cursor.value()))
            found[key[len(prefix) :].decode()] = Seen(
                row["generation"], BrokerCursor.from_json(row["broker"]), row["load"]
            )
            more = cursor.next()
    return found
