"""Tables of a store, with their keys and values.

========== ============================================== =================================================
table      key                                            value
========== ============================================== =================================================
meta       name                                           JSON: of "store" the format, the cluster, the store's id and
                                                          the version that had it last; the id counter
topics     topic name                                     JSON: topic id, incarnation
blocks     topic id | ledger | first entry                entries before u64 | messages before u64 | block, or where
                                                          it lies; see :mod:`replicator.engine.log.segments.places`
placed     segment u32 | offset u64                       size u32 | key in ``blocks``: the blocks that lie in segments
markers    topic id | ledger | first entry                entries u32
high_water topic id | origin                              incarnation u64 | ledger u64 | entry u64
left_out   topic id | origin NUL | ledger | entry + 1     ledger u64 | entry + 1 u64: the hole from the key's
                                                          position (exclusive) to the value's, origin positions;
                                                          see :mod:`replicator.engine.log.left_out`
parts      topic id | origin NUL | ledger | entry + 1     ledger u64 | entry u64 | u32 × n: the local position of the
                                                          block that begins at the key's origin position, and the
                                                          indexes of its entries that lack messages; see
                                                          :mod:`replicator.engine.log.parts`
link_marks topic id | link's key                          ledger u64 | entry + 1 u64: the local position up to which
                                                          the link's destination has what the link carries
           topic id | link's key NUL "accepted"           JSON: by origin the range (after, upto] that was last left out
                                                          by decision
extents    topic id | origin NUL | incarnation | ledger   entries u32 | local ledger u64 | local entry u64
           | first entry (origin's position)
cursors    topic id | subscription                        see :mod:`replicator.engine.subscriptions.cursor_rows`
cursor_rows                                               see there
tombstones topic id | subscription                        see :mod:`replicator.engine.subscriptions.tombstones`
pending_acks                                              see :mod:`replicator.sync.pending_acks`
trims      topic id                                       JSON: the position up to which the log was trimmed, how many
                                                          entries and messages were trimmed, by origin the newest
                                                          trimmed message, and the ends of ledgers; see
                                                          :mod:`replicator.engine.log.ledger_ends`
policies   topic id                                       JSON, see :mod:`replicator.engine.policies_codec`
sequences  topic id | producer name                       see :mod:`replicator.engine.producing.sequence_rows`
numbered, numbered_blocks, numbering, copied_sequences,   see :mod:`replicator.engine.producing.sequence_index`
twins
epochs     topic id                                       the topic's epoch of exclusive producers u64
terminated topic id                                       empty: the topic takes nothing more from producers
compacted  topic id | generation | ledger | entry         see :mod:`replicator.engine.compaction.compacted_view`
compaction topic id                                       see there
partitioned topic name                                    JSON, see :mod:`replicator.engine.topics.partitions`
tenants    tenant name                                    empty
namespaces tenant/namespace                               JSON, see :mod:`replicator.engine.topics.namespace_policies`
grants     tenant, tenant/namespace or topic name         JSON, see :mod:`replicator.engine.topics.grants`
audit      microseconds u64 | entry id                    JSON, see :mod:`replicator.index.audit_queue`
deleted    topic id                                       topic name; see :mod:`replicator.engine.topics.topic_deletion`
staging                                                   see :mod:`replicator.engine.staging.rows`
published  topic id | origin NUL | incarnation | ledger   entries u32 | ledger u64 | entry u64: as ``extents``, of where
           | first entry (origin's position)              entries lie at the Apache Pulsar brokers beside the worker;
                                                          see :mod:`replicator.apache.published_extents`
broker_cursors topic id | subscription                    JSON, see :mod:`replicator.apache.sync_states`
broker_notes topic id | kind NUL | more                   JSON: other notes of the bridge about a topic at the brokers,
                                                          see :mod:`replicator.apache.published_extents`
lineage    topic id | origin                              JSON: which store of the origin wrote the copies that are
                                                          here, and which lives it deleted, by incarnation; see
                                                          :mod:`replicator.engine.topics.origin_stores`
deletions  hash of topic, origin and incarnation          JSON: a life of a topic that its origin deleted; see there
kept_settings cluster | store, then hash of kind and name JSON: policies and permissions of another cluster, see
                                                          :mod:`replicator.engine.cluster_settings.kept`
========== ============================================== =================================================

All integers in keys are big-endian, so LMDB's order is the order of positions.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import lmdb

from replicator.engine.log.left_out import Hole
from snapshots.position import BEFORE_ALL, Position

FORMATS: Final = (1, 2)
"""Formats that this version reads. Format 2 is format 1 with blocks in segments. A store without such a block stays
1."""
FORMAT: Final = FORMATS[-1]
"""Format of all tables together. A change that the version before would misread or miss raises it, and that version
then refuses the store. A table, a field or a row that the version before may ignore does not raise it."""
HEAD: Final = "store"
"""Row of ``meta`` with the store's id, cluster and format."""


class Table(NamedTuple):
    """A table of a store. ``per_topic`` says that its keys begin with a topic's id: deleting a topic deletes these
    rows."""

    name: str
    per_topic: bool = False


_REGISTRY: Final = (
    Table("meta"),
    Table("topics"),
    Table("blocks", per_topic=True),
    Table("placed"),
    Table("markers", per_topic=True),
    Table("high_water", per_topic=True),
    Table("left_out", per_topic=True),
    Table("parts", per_topic=True),
    Table("link_marks", per_topic=True),
    Table("extents", per_topic=True),
    Table("cursors", per_topic=True),
    Table("cursor_rows", per_topic=True),
    Table("tombstones", per_topic=True),
    Table("pending_acks", per_topic=True),
    Table("trims", per_topic=True),
    Table("policies", per_topic=True),
    Table("sequences", per_topic=True),
    Table("numbered", per_topic=True),
    Table("numbered_blocks", per_topic=True),
    Table("numbering", per_topic=True),
    Table("copied_sequences", per_topic=True),
    Table("twins", per_topic=True),
    Table("epochs", per_topic=True),
    Table("terminated", per_topic=True),
    Table("compacted", per_topic=True),
    Table("compaction", per_topic=True),
    Table("partitioned"),
    Table("schemas"),
    Table("tenants"),
    Table("namespaces"),
    Table("grants"),
    Table("audit"),
    Table("deleted"),
    Table("staging"),
    Table("published", per_topic=True),
    Table("broker_cursors", per_topic=True),
    Table("broker_notes", per_topic=True),
    Table("lineage", per_topic=True),
    Table("deletions"),
    Table("kept_settings"),
)
TABLES: Final = tuple(table.name for table in _REGISTRY)
TABLES_OF_TOPICS: Final = tuple(table.name for table in _REGISTRY if table.per_topic)
"""Tables whose keys begin with a topic's id, in the order in which the rows of a deleted topic are deleted."""
TOPIC_KEY: Final = struct.Struct(">I")
BLOCK_KEY: Final = struct.Struct(">IQQ")
LOCAL_PREFIX: Final = struct.Struct(">QQ")
MARKER_RUN: Final = struct.Struct(">I")
HIGH_WATER: Final = struct.Struct(">QQQ")
EPOCH: Final = struct.Struct(">Q")
HOLE_END: Final = struct.Struct(">QQ")
PARTS: Final = struct.Struct(">QQ")
EXTENT: Final = struct.Struct(">IQQ")
EXTENT_KEY_TAIL: Final = struct.Struct(">QQQ")


@dataclass(frozen=True, slots=True)
class Trim:
    """Record of the trimmed part of a log: all entries up to ``through``.

    ``vector`` has the newest trimmed message of each origin. ``ends`` has, by origin, the last trimmed entry of each of
    the origin's ledgers, as origin positions; under ``HERE`` it has that of each ledger of this log
    (:mod:`replicator.engine.log.ledger_ends`). ``counts`` are the numbers of trimmed entries and messages; None in a
    row that an earlier version wrote without counts.
    """

    through: Position = BEFORE_ALL
    vector: Mapping[str, Position] = field(default_factory=dict)
    ends: Mapping[str, Sequence[Position]] = field(default_factory=dict)
    counts: tuple[int, int] | None = None


class HighWater(NamedTuple):
    """Highest origin position that a topic has of one origin, in one incarnation of the topic there."""

    incarnation: int
    position: Position


@dataclass(frozen=True, slots=True)
class TopicRecord:
    topic_id: int
    name: str
    incarnation: int


def read_holes(txn: lmdb.Transaction, database: Any, topic_id: int, origin: str) -> tuple[Hole, ...]:
    """Return the rows of table ``left_out`` of one topic and origin, in order."""
    prefix = extent_key_prefix(topic_id, origin)
    found: list[Hole] = []
    cursor = txn.cursor(db=database)
    more = cursor.set_range(prefix)
    while more and (key := bytes(cursor.key())).startswith(prefix):
        found.append((decode_place(key[len(prefix) :]), decode_place(bytes(cursor.value()))))
        more = cursor.next()
    return tuple(found)


@dataclass(frozen=True, slots=True)
class PartsRow:
    """A block in which some batches lack messages: the indexes of these batches are in ``entries``."""

    origin: str
    origin_first: Position
    local_first: Position
    entries: tuple[int, ...]


def parts_row(topic_id: int, row: PartsRow) -> tuple[bytes, bytes]:
    """Return key and value of a row of table ``parts``."""
    key = extent_key_prefix(topic_id, row.origin) + encode_place(row.origin_first)
    return key, PARTS.pack(*row.local_first) + struct.pack(f">{len(row.entries)}I", *row.entries)


def read_parts(txn: lmdb.Transaction, database: Any, topic_id: int) -> list[PartsRow]:
    """Return the rows of table ``parts`` of one topic, of each origin in order."""
    prefix = TOPIC_KEY.pack(topic_id)
    found: list[PartsRow] = []
    cursor = txn.cursor(db=database)
    more = cursor.set_range(prefix)
    while more and (key := bytes(cursor.key())).startswith(prefix):
        value = bytes(cursor.value())
        place_at = len(key) - HOLE_END.size
        found.append(
            PartsRow(
                key[len(prefix) : place_at - 1].decode(),
                decode_place(key[place_at:]),
                Position(*PARTS.unpack_from(value)),
                struct.unpack_from(f">{(len(value) - PARTS.size) // 4}I", value, PARTS.size),
            )
        )
        more = cursor.next()
    return found


def encode_place(position: Position) -> bytes:
    """Return a position as bytes that sort like positions. It may lie before a ledger's first entry."""
    return HOLE_END.pack(position.ledger, position.entry + 1)


def decode_place(stored: bytes) -> Position:
    ledger, entry = HOLE_END.unpack(stored)
    return Position(ledger, entry - 1)


def accepted_key(topic_id: int, link_key: str) -> bytes:
    """Return the key of :func:`accepted_row`."""
    return TOPIC_KEY.pack(topic_id) + link_key.encode() + b"\0accepted"


def accepted_row(topic_id: int, link_key: str, accepted: Mapping[str, Hole]) -> tuple[bytes, bytes]:
    """Return key and value of the row in ``link_marks`` with the range, by origin, that a decision last left out of a
    link's copy."""
    return accepted_key(topic_id, link_key), json.dumps(accepted).encode()


def extent_key_prefix(topic_id: int, origin: str) -> bytes:
    return TOPIC_KEY.pack(topic_id) + origin.encode("ascii") + b"\0"


def encode_trim(trim: Trim) -> bytes:
    vector = {origin: list(position) for origin, position in trim.vector.items()}
    ends = {origin: [list(position) for position in each] for origin, each in trim.ends.items()}
    row = {"through": list(trim.through), "vector": vector, "ends": ends, "counts": trim.counts}
    return json.dumps(row).encode()


def decode_trim(stored: bytes) -> Trim:
    row = json.loads(stored)
    counts = row.get("counts")
    return Trim(
        Position(*row["through"]),
        {origin: Position(*each) for origin, each in row["vector"].items()},
        {origin: [Position(*position) for position in each] for origin, each in row.get("ends", {}).items()},
        None if counts is None else (counts[0], counts[1]),
    )
