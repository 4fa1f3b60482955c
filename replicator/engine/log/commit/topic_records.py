"""Rows of the catalog within one transaction: creates, terminates and removes topics.

Invariant (DESIGN §3): 10, a topic that is created again under the same name has another id and another incarnation.
So rows of the deleted topic never pass for rows of the new one.
"""

from __future__ import annotations

import json
from typing import Any, Final

import lmdb

from replicator.engine.errors import LogMoved, TopicNotFound
from replicator.engine.lineage import Deletion
from replicator.engine.log import store_tables as tables
from replicator.engine.log.commit.appending import LogAppender
from replicator.engine.log.requests import BeginLifeRequest, DeleteTopicsRequest, Tail
from replicator.engine.log.store_tables import HighWater, TopicRecord
from replicator.engine.topic_name import parse_topic
from snapshots.position import BEFORE_ALL

TOPIC_ID_MAX: Final = 2**32 - 2
"""Limit of topic ids. Keys have four bytes for an id, and the id after the last one must fit, too, because it ends a
range."""


def create_topic(
    txn: lmdb.Transaction, dbs: dict[str, Any], name: str, appender: LogAppender, incarnation: int | None = None
) -> TopicRecord:
    """Return the topic's record. If there is none, create the topic, and its tenant and namespace. ``incarnation``
    restores a topic that was here before the store was restored.

    Raises :class:`TopicNotFound` if all ids are used, and the error of a wrong name. Then nothing was written.
    """
    stored = txn.get(name.encode(), db=dbs["topics"])
    if stored is not None:
        record = json.loads(bytes(stored))
        return TopicRecord(record["id"], name, record["incarnation"])
    topic_id = int(json.loads(bytes(txn.get(b"last_topic_id", b"0", db=dbs["meta"])))) + 1
    if topic_id > TOPIC_ID_MAX:
        raise TopicNotFound(
            f"topic {name!r} cannot be made: all topic ids are used: delete topics that nobody needs, or use another "
            "cluster"
        )
    parsed = parse_topic(name)
    if incarnation is not None:
        appender.last_id = max(appender.last_id, incarnation)
    record = {"id": topic_id, "incarnation": appender.new_id() if incarnation is None else incarnation}
    txn.put(b"last_topic_id", json.dumps(topic_id).encode(), db=dbs["meta"])
    txn.put(name.encode(), json.dumps(record).encode(), db=dbs["topics"])
    txn.put(parsed.tenant.encode(), b"", overwrite=False, db=dbs["tenants"])
    txn.put(parsed.full_namespace.encode(), b"{}", overwrite=False, db=dbs["namespaces"])
    return TopicRecord(topic_id, name, record["incarnation"])


def begin_life(
    txn: lmdb.Transaction, dbs: dict[str, Any], request: BeginLifeRequest, appender: LogAppender, cluster: str
) -> TopicRecord:
    """Begin a new life of a topic: write its new incarnation, and return its record.

    An incarnation is the number of one life, from creation to deletion. The blocks in the log become an earlier life.
    If ``request`` names no incarnation, use a new id above every id that other clusters know of the topic.
    """
    tail = request.tail
    appender.remember(tail)
    appender.last_id = max(appender.last_id, request.above)
    incarnation = appender.new_id() if request.incarnation is None else request.incarnation
    name = tail.name.encode()
    row = txn.get(name, db=dbs["topics"])
    assert row is not None, f"topic {tail.name} has no row"
    stored = json.loads(bytes(row))
    txn.put(name, json.dumps({**stored, "incarnation": incarnation}).encode(), db=dbs["topics"])
    if (own := tail.high_water.get(cluster)) is not None:
        appender.put_high_water(txn, tail, cluster, HighWater(incarnation, own.position))
    tail.incarnation, tail.ledger = incarnation, None
    return TopicRecord(tail.topic_id, tail.name, incarnation)


def delete_topics(
    txn: lmdb.Transaction, dbs: dict[str, Any], request: DeleteTopicsRequest, appender: LogAppender, cluster: str
) -> list[Deletion]:
    """Move the records of topics from the catalog to the table ``deleted``. Their rows are swept later.

    If ``request`` asks for it, store a :class:`Deletion` for each life of this cluster, and one for the partitioned
    topic, and return these. Raise :class:`LogMoved`, and change nothing, if a topic got messages after the deletion was
    decided.
    """
    for tail in request.tails:
        if request.messages.get(tail.topic_id, tail.messages) != tail.messages:
            raise LogMoved(f"topic {tail.name!r} is not deleted: it got messages meanwhile; try again")
    noted: list[Deletion] = []
    for tail in request.tails:
        appender.remember(tail)
        tail.deleted = True
        name = tail.name.encode()
        txn.delete(name, db=dbs["topics"])
        txn.put(tables.TOPIC_KEY.pack(tail.topic_id), name, db=dbs["deleted"])
        own = tail.high_water.get(cluster)
        if request.noted_ms is not None and own is not None:
            ends = {**request.earlier.get(tail.topic_id, {}), tail.incarnation: own.position}
            for incarnation, last in ends.items():
                deletion = Deletion(tail.name, cluster, incarnation, last, request.noted_ms)
                txn.put(*deletion.row(), db=dbs["deletions"])
                noted.append(deletion)
    if request.partitioned is not None:
        txn.delete(request.partitioned.encode(), db=dbs["partitioned"])
        if request.noted_ms is not None:
            number = max(appender.new_id(), request.above + 1)
            deletion = Deletion(request.partitioned, cluster, number, BEFORE_ALL, request.noted_ms)
            txn.put(*deletion.row(), db=dbs["deletions"])
            noted.append(deletion)
    return noted


def terminate_topic(txn: lmdb.Transaction, dbs: dict[str, Any], tail: Tail, appender: LogAppender) -> None:
    """Terminate a topic: refuse producers from now on. Publishes that came earlier in the writer's queue are stored."""
    appender.remember(tail)
    tail.terminated = True
    txn.put(tables.TOPIC_KEY.pack(tail.topic_id), b"", db=dbs["terminated"])
