"""Rows of table ``broker_cursors``: the state of each subscription, on both sides, at its last comparison.

A comparison with the present state answers three questions. Was a missing subscription deleted, or never created? Was a
cursor moved back, or is it only late? Which entries lie before the start, and so are not acknowledged? The rows are
therefore kept over a restart. If a row is older than the last comparison, the next comparison merges again. Rows of
earlier versions have no start: everything below their cursors counts as acknowledged.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from typing import Any

from replicator.apache.broker_cursor import BrokerCursor
from replicator.apache.reconciling import SyncState
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import TOPIC_KEY
from replicator.engine.subscriptions.cursor_rows import RowWrite
from replicator.engine.topic import Topic
from snapshots.position import BEFORE_ALL, Position
from snapshots.starts import Start


def write_of(topic_id: int, subscription: str, seen: SyncState | None) -> RowWrite:
    """Return the row of a subscription's state, for :meth:`Writer.put_many`. With None it deletes the row."""
    value = None
    if seen is not None:
        shown: dict[str, Any] = {"generation": seen.generation, "load": seen.load, "broker": seen.broker.to_json()}
        if seen.start > BEFORE_ALL:
            shown["start"] = seen.start
        if seen.starts:
            shown["starts"] = {origin: [each.incarnation, *each.position] for origin, each in seen.starts.items()}
        if seen.returning is not None:
            shown["returning"] = seen.returning
        value = json.dumps(shown, separators=(",", ":")).encode()
    return "broker_cursors", TOPIC_KEY.pack(topic_id) + subscription.encode(), value


def load_sync_states(store: Store, topic_id: int) -> dict[str, SyncState]:
    """Return the stored states of a topic's subscriptions, by name."""
    prefix = TOPIC_KEY.pack(topic_id)
    found: dict[str, SyncState] = {}
    with store.env.begin(db=store.tables["broker_cursors"]) as txn:
        cursor = txn.cursor()
        more = cursor.set_range(prefix)
        while more and (key := bytes(cursor.key())).startswith(prefix):
            found[key[len(prefix) :].decode()] = _seen_of(json.loads(bytes(cursor.value())))
            more = cursor.next()
    return found


def _seen_of(row: Mapping[str, Any]) -> SyncState:
    starts: Mapping[str, list[int]] = row.get("starts", {})
    return SyncState(
        row["generation"],
        BrokerCursor.from_json(row["broker"]),
        row["load"],
        start=Position(*row.get("start", BEFORE_ALL)),
        starts={origin: Start(each[0], Position(each[1], each[2])) for origin, each in starts.items()},
        returning=Position(*row["returning"]) if "returning" in row else None,
    )


class SyncStateTable:
    """States of one topic's subscriptions at their last comparison, and their rows in the store."""

    def __init__(self, store: Store, topic: Topic) -> None:
        self._topic = topic
        self.by_name = load_sync_states(store, topic.topic_id)
        self._stored = dict(self.by_name)
        """The states whose rows are in the store. After a failed write they differ from those in memory."""

    async def note(self) -> None:
        """Store the states that differ from their rows."""
        seen, stored = dict(self.by_name), self._stored
        changed = sorted(name for name in stored.keys() | seen.keys() if stored.get(name) != seen.get(name))
        if changed:
            await self._topic.writer.put_many(
                [write_of(self._topic.topic_id, name, seen.get(name)) for name in changed]
            )
            self._stored = seen

    def put_back(self, after: Position, there: Set[str]) -> list[RowWrite]:
        """Forget what was seen at the brokers behind ``after``, where a new life of their data begins.

        ``there`` names the subscriptions that the brokers have. The others were not deleted: forget that they were
        there, so that they are made again. Return the rows to be stored.
        """
        writes: list[RowWrite] = []
        for name, seen in list(self.by_name.items()):
            left = seen.put_back(after) if name in there else None
            if left is None:
                del self.by_name[name]
            else:
                self.by_name[name] = left
            writes.append(write_of(self._topic.topic_id, name, left))
        return writes
