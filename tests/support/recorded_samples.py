"""Samples that are recorded of a version and how they must be read, for the recording script and the reading tests.

The recorded files are in ``tests/recorded/``; ``docs/upgrade.md`` says when they are made again.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from engine_support import batch, logged, make_block, marker, message
from pyroaring import BitMap
from wire_worker import WireWorker, single_entry

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.log.arrow import Outgoing, encode_append
from replicator.engine.log.block import BlockKind, Buffer
from replicator.engine.log.entry import encode_entry
from replicator.engine.log.frame_rows import encode_rows
from replicator.engine.log.left_out import LeftOutNote, encode_note
from replicator.engine.log.link_frame import PROTOCOL_VERSION, ROWS_FROM
from replicator.engine.log.segments.settings import SegmentSettings
from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.metadata.metadata_pb2 import MessageMetadata
from snapshots.ack_vector import AckVector, OriginAcks
from snapshots.markers import (
    FailoverEpoch,
    LocalSnapshot,
    Marker,
    SnapshotRequest,
    SnapshotResponse,
    SubscriptionsUpdate,
    SubscriptionUpdate,
)
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import FROM_THE_FIRST, Start

RECORDED: Final = Path(__file__).parents[1] / "recorded"
CLUSTER: Final = "eu-west"
TOPIC: Final = "persistent://public/default/orders"


def markers() -> list[Marker]:
    """Return one marker of each kind, with every field. What a version adds is in markers of its own, so that earlier
    ones stay."""
    acked = PositionSet()
    acked.add_entries(7, BitMap([1, 2, 3, 900]))
    acks = OriginAcks(41, [(BEFORE_ALL, Position(7, 0))], acked, {Position(7, 4): BitMap([0, 2])})
    update = SubscriptionUpdate(
        "billing",
        {"us-east": Position(7, 12)},
        3,
        AckVector({"us-east": acks}),
        whole=True,
        asks=True,
        properties={"team": "money"},
        read_compacted=True,
    )
    starts = {"eu-west": FROM_THE_FIRST, "us-east": Start(41, Position(7, 12))}
    started = SubscriptionUpdate("late", {}, 5, AckVector({"us-east": OriginAcks(41)}), whole=True, starts=starts)
    return [
        SnapshotRequest("s-1", "us-east"),
        SnapshotResponse("s-1", "eu-west", Position(8, 3), {"us-east": Position(7, 12)}, "us-east"),
        LocalSnapshot("s-1", Position(7, 20), {"eu-west": Position(8, 3)}),
        SubscriptionsUpdate((update, SubscriptionUpdate("gone", {}, 4, deleted=True))),
        FailoverEpoch(5, "eu-west", "r-1", 1_700_000_000_000, "planned", "us-east", "eu-west", {"us-east": "eu-west"}),
        SubscriptionsUpdate((started,)),
        SubscriptionsUpdate((SubscriptionUpdate("left", {}, 6, deleted=True, unless_in_use=True),)),
    ]


def sent(protocol: int = PROTOCOL_VERSION) -> list[Outgoing]:
    """Return the content of a link's frame: a message, a batch that lacks a part, a marker after a hole, and a final
    note of left-out entries. From protocol 5 on, it has a message for this cluster alone, too."""
    entries = [message(b"first"), batch([b"a", b"b", b"c"])]
    block = make_block(Position(7, 0), entries, batch_sizes=[1, 3], absent={1: [0]})
    marked = make_block(Position(7, 9), [marker()], kind=BlockKind.MARKERS)
    note = encode_note(LeftOutNote("us-east", 7, Position(7, 30)))
    restricted = make_block(Position(7, 10), [message(b"for you alone")], only=frozenset({CLUSTER}))
    by_protocol = [] if protocol < 5 else [Outgoing(TOPIC, Position(7, 9), restricted)]
    return [
        Outgoing(TOPIC, BEFORE_ALL, block),
        Outgoing(TOPIC, Position(7, 1), marked, left_out=True),
        *by_protocol,
        Outgoing(TOPIC, Position(7, 10 if by_protocol else 9), note),
    ]


def frame_stream(protocol: int = PROTOCOL_VERSION) -> list[Buffer]:
    blocks = sent(protocol)
    return encode_rows(blocks) if protocol >= ROWS_FROM else encode_append(blocks)


def scripted(worker: WireWorker, count: int) -> None:
    """Publish a topic of ``count`` messages, always at the same positions."""
    topic = worker.topic(TOPIC)
    for number in range(count):
        topic.publish(single_entry(b"%02d" % number))


def run_query(spark: Any, url: str, checkpoint: Path) -> dict[int, list[str]]:
    """Run a streaming query until it has read the whole topic; return the messages of each batch."""
    seen: dict[int, list[str]] = {}

    def keep(rows: Any, batch: int) -> None:
        seen[batch] = sorted(row.payload.decode() for row in rows.collect())

    stream = spark.readStream.format("replicator").schema("topic string, payload binary")
    query = (
        stream.options(url=url, entries_per_trigger=4)
        .load()
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return seen


def offsets() -> list[dict[str, dict[str, Position]]]:
    """Return offsets of few topics, which are written plainly, and of many, which are packed."""
    many = {f"{TOPIC}-partition-{number}": Position(7 + number, number * 3) for number in range(150)}
    return [{"us-east": {TOPIC: Position(7, 12)}, "eu-west": {}}, {"us-east": many}]


def described(engine: Engine) -> dict[str, Any]:
    """Return the content of a store as JSON."""
    topics = {topic.name: _described_topic(topic) for topic in engine.topics() if topic.name != EPOCHS_TOPIC}
    catalog = engine.catalog
    return json.loads(
        json.dumps(
            {
                "topics": dict(sorted(topics.items())),
                "tenants": sorted(catalog.tenants()),
                "namespaces": {
                    each: str(catalog.namespace(each))
                    for tenant in sorted(catalog.tenants())
                    for each in sorted(catalog.namespaces(tenant))
                },
                "tables": {name: _rows(engine, name) for name in sorted(engine.store.tables)},
            },
            default=str,
        )
    )


def _described_topic(topic: Any) -> dict[str, Any]:
    content = hashlib.sha256()
    entries = logged(topic)
    for origin, position, entry in entries:
        content.update(f"{origin} {position} ".encode() + entry)
    return {
        "incarnation": topic.incarnation,
        "entries": len(entries),
        "content": content.hexdigest(),
        "first": str(topic.log.first),
        "last": str(topic.log.last),
        "vector": {origin: str(position) for origin, position in sorted(topic.origins.vector().items())},
        "tombstones": dict(topic.subscriptions.tombstones),
        "subscriptions": {
            name: {
                "mark_delete": str(each.cursor.state.mark_delete),
                "generation": each.cursor.state.generation,
                "replicated": each.cursor.state.replicated,
                "properties": dict(each.cursor.state.properties),
                "deleted": [[str(first), str(last)] for first, last in each.cursor.state.individually_deleted.runs()],
                "batches": {str(at): list(indexes) for at, indexes in each.cursor.state.batch_acks.items()},
            }
            for name, each in sorted(topic.subscriptions.items())
        },
    }


def _rows(engine: Engine, table: str) -> int:
    with engine.store.env.begin() as txn:
        return int(txn.stat(engine.store.tables[table])["entries"])


LARGE_BYTES = 20_000
SEGMENTED = EngineSettings(
    segments=SegmentSettings(64 * 1024, body_bytes_min=4096, group_bytes_min=0, recent_bytes_max=1)
)
"""Settings of segments that fit into the repository."""


def large(number: int, *replicate_to: str) -> bytes:
    """Return an entry that is stored in a segment, for those other clusters if any are named."""
    metadata = MessageMetadata(producer_name="p", sequence_id=number, publish_time=1, replicate_to=replicate_to)
    return encode_entry(metadata, b"%8d" % number * 2500)


def small() -> bytes:
    """Return an entry that is stored in the table."""
    return encode_entry(MessageMetadata(producer_name="p", sequence_id=99, publish_time=1), b"small")
