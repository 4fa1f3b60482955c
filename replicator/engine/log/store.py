"""The store of one cluster: an LMDB environment, its tables and keys, and reading from it.

Everything durable is here in one environment, so that an append and what belongs to it are one transaction;
LMDB needs no recovery code of ours. Only :mod:`replicator.engine.log.writer` writes.

========== ============================================== =================================================
table      key                                            value
========== ============================================== =================================================
meta       name                                           JSON: format, cluster, store id, id counter
topics     topic name                                     JSON: topic id, incarnation
blocks     topic id | ledger | first entry                entries before u64 | messages before u64 | block
markers    topic id | ledger | first entry                entries u32
high_water topic id | origin                              incarnation u64 | ledger u64 | entry u64
left_out   topic id | origin NUL | ledger | entry + 1     ledger u64 | entry + 1 u64: the hole from the key's
                                                          position (exclusive) to the value's, both of the origin;
                                                          see :mod:`replicator.engine.log.left_out`
link_marks topic id | link's key                          ledger u64 | entry + 1 u64: the local position up to which
                                                          the link's destination has what the link carries
extents    topic id | origin NUL | incarnation | ledger   entries u32 | local ledger u64 | local entry u64
           | first entry (origin's position)
cursors    topic id | subscription                        see :mod:`replicator.engine.subscriptions.cursor_rows`
cursor_rows                                               see there
tombstones topic id | subscription                        see :mod:`replicator.engine.subscriptions.tombstones`
pending_acks                                              see :mod:`replicator.sync.pending_acks`
trims      topic id                                       JSON: up to where the log was trimmed, and by origin
                                                          the newest message that was trimmed
policies   topic id                                       JSON, see :mod:`replicator.engine.policies_codec`
sequences  topic id | producer name                       see :mod:`replicator.engine.producing.sequence_rows`
numbered, numbered_blocks, numbering, copied_sequences,   see :mod:`replicator.engine.producing.sequence_index`
twins
epochs     topic id                                       the topic's epoch of exclusive producers u64
compacted  topic id | generation | ledger | entry         see :mod:`replicator.engine.compaction.compacted_view`
compaction topic id                                       see there
partitioned topic name                                    JSON, see :mod:`replicator.engine.topics.partitions`
tenants    tenant name                                    empty
namespaces tenant/namespace                               JSON, see :mod:`replicator.engine.topics.namespace_policies`
deleted    topic id                                       topic name; see :mod:`replicator.engine.topics.topic_deletion`
========== ============================================== =================================================

All integers in keys are big-endian, so LMDB's order is the order of positions.
"""

from __future__ import annotations

import json
import struct
import uuid
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import lmdb
import numpy as np

from replicator.engine.errors import BlockCorrupt, EntryCorrupt, MessageTooLarge, StoreUnusable
from replicator.engine.log.block import (
    ENTRY_IDS_MAX,
    BlockHeader,
    BlockKind,
    BlockSpan,
    BlockView,
    read_header,
    verify_block,
)
from replicator.engine.log.entry import decode_entry
from replicator.engine.log.left_out import Hole
from replicator.engine.log.store_files import identity, lock_directory, open_environment
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

FORMAT: Final = 1
TABLES: Final = (
    "meta",
    "topics",
    "blocks",
    "markers",
    "high_water",
    "left_out",
    "link_marks",
    "extents",
    "cursors",
    "cursor_rows",
    "tombstones",
    "pending_acks",
    "trims",
    "policies",
    "sequences",
    "numbered",
    "numbered_blocks",
    "numbering",
    "copied_sequences",
    "twins",
    "epochs",
    "compacted",
    "compaction",
    "partitioned",
    "tenants",
    "namespaces",
    "deleted",
)
TOPIC_KEY: Final = struct.Struct(">I")
BLOCK_KEY: Final = struct.Struct(">IQQ")
LOCAL_PREFIX: Final = struct.Struct(">QQ")
MARKER_RUN: Final = struct.Struct(">I")
HIGH_WATER: Final = struct.Struct(">QQQ")
EPOCH: Final = struct.Struct(">Q")
HOLE_END: Final = struct.Struct(">QQ")
EXTENT: Final = struct.Struct(">IQQ")
EXTENT_KEY_TAIL: Final = struct.Struct(">QQQ")
RESERVE_BYTES: Final = 16 * 1024 * 1024
"""Address space beyond a store's limit: deleting takes fresh pages too, so a full store could otherwise not be trimmed,
nor an acknowledgement be kept that lets it be. Appends leave it alone."""

LOOK_BACK_BLOCKS_MAX: Final = 50_000
"""Bounds the time to load a topic: 50,000 headers are read in a tenth of a second."""

REFINE_ENTRIES_MAX: Final = 20_000
"""Entries that a search by time decodes: what producers sent just before the time and the store took just after it."""

PASS_OVER_BLOCKS_MAX: Final = 2_000
"""Headers that one call looks at in vain: some milliseconds, so that many blocks of others hold nobody up."""


@dataclass(frozen=True, slots=True)
class StoredBlock:
    """A block as it lies in this cluster: its local position and its bytes, which are the same everywhere."""

    position: Position
    header: BlockHeader
    block: bytes

    @property
    def last(self) -> Position:
        return Position(self.position.ledger, self.position.entry + self.header.entries - 1)


@dataclass(frozen=True, slots=True)
class Trim:
    """What was trimmed from a log: all up to ``through``; ``vector`` has the newest message of it, by origin."""

    through: Position = BEFORE_ALL
    vector: Mapping[str, Position] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HighWater:
    """The highest origin position that a topic has of one origin, in one incarnation of the topic there."""

    incarnation: int
    position: Position


@dataclass(frozen=True, slots=True)
class TopicRecord:
    topic_id: int
    name: str
    incarnation: int


@dataclass(frozen=True, slots=True)
class LedgerExtent:
    """What the store holds of one ledger of a topic."""

    ledger: int
    first: int
    last: int


class Store:
    """Opens the environment and reads from it. Safe to use from several threads.

    Raises :class:`StoreUnusable` when the directory cannot be used; nothing is changed then.
    """

    def __init__(self, path: Path, *, cluster: str, size_max: int) -> None:
        self.path = path
        self.cluster = cluster
        self.size_max = size_max
        """Bytes that appends may fill."""
        self._lock = lock_directory(path)
        try:
            self.env, self.tables = open_environment(path, size_max + RESERVE_BYTES, TABLES)
        except BaseException:
            self._lock.close()
            raise
        try:
            self._identity = identity(path / "log" / "data.mdb")
            self._check_meta(cluster)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self.env.close()
        self._lock.close()

    def displaced(self) -> str | None:
        """Why nothing may be confirmed any more: the file that is open is not the one in the directory. Else None."""
        file = self.path / "log" / "data.mdb"
        try:
            found = identity(file)
        except OSError as error:
            return f"{file} is gone while the worker runs ({error.strerror}); nothing more is confirmed"
        return None if found == self._identity else f"{file} was replaced while the worker runs; restart the worker"

    def size_bytes(self) -> int:
        """Bytes in use, pages that are free for re-use included."""
        info, stat = self.env.info(), self.env.stat()
        return int((info["last_pgno"] + 1) * stat["psize"])

    def has_room(self, append_bytes: int) -> bool:
        """Whether that many bytes can be appended. The pages are counted only when the file has been full once."""
        if self.size_bytes() + append_bytes <= self.size_max:
            return True
        with self.env.begin() as txn:
            stats = [txn.stat(db) for db in self.tables.values()]
        pages = sum(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"] for stat in stats)
        return pages * stats[0]["psize"] + append_bytes <= self.size_max

    def _check_meta(self, cluster: str) -> None:
        with self.env.begin(write=True, db=self.tables["meta"]) as txn:
            stored = txn.get(b"store")
            if stored is None:
                head = {"format": FORMAT, "cluster": cluster, "store_id": uuid.uuid4().hex}
                txn.put(b"store", json.dumps(head).encode())
                return
            head = json.loads(stored)
        if head["format"] != FORMAT:
            raise StoreUnusable(
                f"data directory {self.path} has format {head['format']}, this version reads {FORMAT}: "
                "use the version that wrote it, or a newer one"
            )
        if head["cluster"] != cluster:
            raise StoreUnusable(
                f"data directory {self.path} belongs to cluster {head['cluster']!r}, not {cluster!r}: "
                "give each cluster its own directory"
            )

    # Small facts of the worker, such as that a database was reached once.

    def meta(self, name: str) -> Any:
        with self.env.begin(db=self.tables["meta"]) as txn:
            stored = txn.get(name.encode())
        return None if stored is None else json.loads(stored)

    # Catalog and per-topic state.

    def topics(self) -> list[TopicRecord]:
        with self.env.begin(db=self.tables["topics"]) as txn:
            return [_topic_record(bytes(key), bytes(value)) for key, value in txn.cursor()]

    def topic(self, name: str) -> TopicRecord | None:
        with self.env.begin(db=self.tables["topics"]) as txn:
            stored = txn.get(name.encode())
        return None if stored is None else _topic_record(name.encode(), stored)

    def deleted_topics(self) -> list[int]:
        """The ids of topics that are deleted, but for rows that they left behind."""
        with self.env.begin(db=self.tables["deleted"]) as txn:
            return [int(TOPIC_KEY.unpack(key)[0]) for key in txn.cursor().iternext(keys=True, values=False)]

    def tenants(self) -> list[str]:
        """Those that were made by name, or with a topic."""
        with self.env.begin(db=self.tables["tenants"]) as txn:
            return [bytes(key).decode() for key in txn.cursor().iternext(keys=True, values=False)]

    def namespaces(self) -> dict[str, bytes]:
        """The stored policies of each namespace, by ``tenant/namespace``."""
        with self.env.begin(db=self.tables["namespaces"]) as txn:
            return {bytes(key).decode(): bytes(value) for key, value in txn.cursor()}

    def ledgers(self, topic_id: int) -> list[LedgerExtent]:
        """The ledgers of a topic in order; costs two look-ups a ledger."""
        found: list[LedgerExtent] = []
        with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
            cursor = txn.cursor()
            prefix = TOPIC_KEY.pack(topic_id)
            more = cursor.set_range(prefix)
            while more and bytes(cursor.key()[:4]) == prefix:
                _, ledger, first = BLOCK_KEY.unpack(cursor.key())
                if not cursor.set_range(BLOCK_KEY.pack(topic_id, ledger + 1, 0)):
                    cursor.last()
                else:
                    cursor.prev()
                _, _, last_first = BLOCK_KEY.unpack(cursor.key())
                header = read_header(cursor.value()[LOCAL_PREFIX.size :])
                found.append(LedgerExtent(ledger, first, last_first + header.entries - 1))
                more = cursor.next()
        return found

    def totals(self, topic_id: int) -> tuple[int, int]:
        """Entries and messages ever appended to a topic, from its last block."""
        with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
            cursor = txn.cursor()
            found = cursor.set_range(TOPIC_KEY.pack(topic_id + 1))
            if not (cursor.prev() if found else cursor.last()):
                return 0, 0
            if bytes(cursor.key()[:4]) != TOPIC_KEY.pack(topic_id):
                return 0, 0
            value = cursor.value()
            entries, messages = LOCAL_PREFIX.unpack_from(value)
            header = read_header(value[LOCAL_PREFIX.size :])
            return int(entries) + header.entries, int(messages) + header.messages

    def messages_before(self, topic_id: int, position: Position) -> int:
        """Messages appended before the entry at ``position``, which must exist."""
        with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
            cursor = txn.cursor()
            if not seek_block(cursor, topic_id, position):
                return 0
            _, _, first = BLOCK_KEY.unpack(cursor.key())
            value = cursor.value()
            _, messages = LOCAL_PREFIX.unpack_from(value)
            header = read_header(value[LOCAL_PREFIX.size :])
            sizes_at = LOCAL_PREFIX.size + header.columns_at + 4 * header.entries
            sizes = value[sizes_at : sizes_at + 4 * (position.entry - first)]
            return int(messages) + int(np.frombuffer(sizes, "<u4").sum())

    def marker_runs(self, topic_id: int) -> Iterator[tuple[Position, int]]:
        prefix = TOPIC_KEY.pack(topic_id)
        with self.env.begin(db=self.tables["markers"]) as txn:
            cursor = txn.cursor()
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                _, ledger, first = BLOCK_KEY.unpack(cursor.key())
                yield Position(ledger, first), MARKER_RUN.unpack(cursor.value())[0]
                more = cursor.next()

    def high_waters(self, topic_id: int) -> dict[str, HighWater]:
        prefix = TOPIC_KEY.pack(topic_id)
        found: dict[str, HighWater] = {}
        with self.env.begin(db=self.tables["high_water"]) as txn:
            cursor = txn.cursor()
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                incarnation, ledger, entry = HIGH_WATER.unpack(cursor.value())
                found[cursor.key()[4:].decode()] = HighWater(incarnation, Position(ledger, entry))
                more = cursor.next()
        return found

    def left_out(self, topic_id: int, origin: str) -> tuple[Hole, ...]:
        """What links may have left out of an origin, in order."""
        with self.env.begin(db=self.tables["left_out"]) as txn:
            return read_holes(txn, self.tables["left_out"], topic_id, origin)

    def link_marks(self, link_key: str) -> dict[int, Position]:
        """By topic id, how far that link was when it was last noted."""
        suffix = link_key.encode()
        with self.env.begin(db=self.tables["link_marks"]) as txn:
            return {
                TOPIC_KEY.unpack_from(key)[0]: decode_place(bytes(value))
                for key, value in ((bytes(key), value) for key, value in txn.cursor())
                if key[TOPIC_KEY.size :] == suffix
            }

    def message_vector(self, topic_id: int, high_waters: Mapping[str, HighWater]) -> dict[str, Position]:
        """For each origin the origin position of its newest message; looks back from the end of the log.

        What is not found in :data:`LOOK_BACK_BLOCKS_MAX` blocks is given by the high-water mark: at or above the truth.
        For what is trimmed the trim remembers it.
        """
        found: dict[str, Position] = {}
        looked_at = 0
        with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
            cursor = txn.cursor()
            more = cursor.prev() if cursor.set_range(TOPIC_KEY.pack(topic_id + 1)) else cursor.last()
            while more and found.keys() != high_waters.keys() and bytes(cursor.key()[:4]) == TOPIC_KEY.pack(topic_id):
                looked_at += 1
                if looked_at > LOOK_BACK_BLOCKS_MAX:
                    return {origin: found.get(origin, mark.position) for origin, mark in high_waters.items()}
                header = read_header(cursor.value()[LOCAL_PREFIX.size :])
                if header.kind is BlockKind.MESSAGES:
                    found.setdefault(header.origin, header.origin_last)
                more = cursor.prev()
        return {**self.trim(topic_id).vector, **found}

    def trim(self, topic_id: int) -> Trim:
        """What was trimmed from the topic's log."""
        with self.env.begin(db=self.tables["trims"]) as txn:
            stored = txn.get(TOPIC_KEY.pack(topic_id))
        return Trim() if stored is None else decode_trim(stored)

    def cursors(self, topic_id: int) -> dict[str, bytes]:
        return self._by_name("cursors", topic_id)

    def tombstones(self, topic_id: int) -> dict[str, bytes]:
        """The stored tombstones by subscription."""
        return self._by_name("tombstones", topic_id)

    def pending_acks(self, topic_id: int) -> dict[str, bytes]:
        """By subscription, the acknowledgements that wait for messages that are not here yet."""
        return self._by_name("pending_acks", topic_id)

    def _by_name(self, table: str, topic_id: int) -> dict[str, bytes]:
        prefix = TOPIC_KEY.pack(topic_id)
        found: dict[str, bytes] = {}
        with self.env.begin(db=self.tables[table]) as txn:
            cursor = txn.cursor()
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                found[cursor.key()[len(prefix) :].decode()] = cursor.value()
                more = cursor.next()
        return found

    def has_rows(self, table: str, topic_id: int) -> bool:
        """Whether a table whose keys begin with the topic's id has rows of it."""
        prefix = TOPIC_KEY.pack(topic_id)
        with self.env.begin(db=self.tables[table]) as txn:
            cursor = txn.cursor()
            return bool(cursor.set_range(prefix)) and bytes(cursor.key()).startswith(prefix)

    def epoch(self, topic_id: int) -> int | None:
        """The topic's epoch; None if it never had an exclusive producer."""
        with self.env.begin(db=self.tables["epochs"]) as txn:
            stored = txn.get(TOPIC_KEY.pack(topic_id))
        return None if stored is None else int(EPOCH.unpack(stored)[0])

    def cursor_rows(self, topic_id: int) -> Iterator[tuple[bytes, bytes]]:
        """The rows of all cursors of a topic, in the order of their keys."""
        prefix = TOPIC_KEY.pack(topic_id)
        with self.env.begin(db=self.tables["cursor_rows"]) as txn:
            cursor = txn.cursor()
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                yield cursor.item()
                more = cursor.next()

    # The log.

    def read_blocks(
        self,
        topic_id: int,
        after: Position,
        upto: Position,
        *,
        bytes_max: int,
        origins: Collection[str] | None = None,
        verify: bool = True,
    ) -> tuple[list[StoredBlock], Position]:
        """Whole blocks that hold entries in (``after``, ``upto``], in order, at least one if there is one.

        With ``origins``, only the blocks of those origins that a link may carry; the others are passed over
        without reading their bodies, at most :data:`PASS_OVER_BLOCKS_MAX` of them. The second value is where to go on:
        pass it as ``after`` for the next page.
        Raises :class:`BlockCorrupt` for a block whose checksum is wrong: it is never served.
        """
        if after >= upto:
            return [], after
        found: list[StoredBlock] = []
        taken, passed_over, reached = 0, 0, after
        with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
            cursor = txn.cursor()
            more = seek_block(cursor, topic_id, Position(after.ledger, min(max(after.entry + 1, 0), ENTRY_IDS_MAX)))
            while more:
                key_topic, ledger, first = BLOCK_KEY.unpack(cursor.key())
                if key_topic != topic_id or Position(ledger, first) > upto:
                    break
                block = cursor.value()[LOCAL_PREFIX.size :]
                header = read_header(block)
                last = Position(ledger, first + header.entries - 1)
                if last > after:
                    if origins is None or (
                        header.origin in origins and header.kind is not BlockKind.LOCAL_MARKERS
                    ):
                        if found and taken + len(block) > bytes_max:
                            break
                        if verify:
                            self._verify(block, topic_id, Position(ledger, first))
                        found.append(StoredBlock(Position(ledger, first), header, bytes(block)))
                        taken += len(block)
                    else:
                        passed_over += 1
                    reached = min(last, upto)
                    if passed_over >= PASS_OVER_BLOCKS_MAX:
                        break
                more = cursor.next()
        return found, reached

    def block_of(self, topic_id: int, position: Position) -> StoredBlock | None:
        """The block that holds ``position``."""
        blocks, _ = self.read_blocks(topic_id, Position(position.ledger, position.entry - 1), position, bytes_max=0)
        return blocks[0] if blocks else None

    def block_spans(self, topic_id: int, after: Position, *, blocks_max: int) -> list[BlockSpan]:
        """The next ``blocks_max`` blocks that hold entries above ``after``, in order; reads their headers only."""
        found: list[BlockSpan] = []
        with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
            cursor = txn.cursor()
            for first, header, block in _blocks_after(cursor, topic_id, after):
                last = Position(first.ledger, first.entry + header.entries - 1)
                found.append(BlockSpan(first, last, len(block), header.publish_time_ms))
                if len(found) >= blocks_max:
                    break
        return found

    def position_at_time(self, topic_id: int, published_ms: int, *, after: Position = BEFORE_ALL) -> Position:
        """The last position before the first message above ``after`` that was published at ``published_ms`` or later.

        1. Blocks that their origin wrote before that time are passed over by their headers.
        2. In the first that is not, entries are told apart by the publish time that their producer gave.
        3. If all of that block's are before, the next block is looked into; at most :data:`REFINE_ENTRIES_MAX` entries.

        So no message that was published at that time or later is passed over, whatever the links mixed in.
        ``after`` if nothing is before. Costs a header for each block in between.
        """
        reached, decoded = after, 0
        with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
            for first, header, block in _blocks_after(txn.cursor(), topic_id, after):
                if header.kind is not BlockKind.MESSAGES:
                    continue
                last = Position(first.ledger, first.entry + header.entries - 1)
                if header.publish_time_ms >= published_ms:
                    decoded += header.entries
                    if decoded > REFINE_ENTRIES_MAX + header.entries:
                        break
                    self._verify(block, topic_id, first)
                    before = _entries_before(BlockView(block, header), published_ms)
                    if before:
                        reached = max(reached, Position(first.ledger, first.entry + before - 1))
                    if before < header.entries:
                        break
                reached = max(reached, last)
        return reached

    def messages_in(self, topic_id: int, positions: PositionSet) -> int:
        """How many messages the entries at ``positions`` hold together; all of them must exist."""
        start, end = positions.first(), positions.last()
        if start is None or end is None:
            return 0
        total = 0
        with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
            for first, header, block in _blocks_after(txn.cursor(), topic_id, Position(start.ledger, start.entry - 1)):
                if first > end:
                    break
                entries = positions.entries_in(first.ledger, first.entry, first.entry + header.entries - 1)
                if header.messages == header.entries:
                    total += len(entries)
                elif entries:
                    sizes = np.frombuffer(block, "<u4", header.entries, header.columns_at + 4 * header.entries)
                    total += int(sizes[np.asarray(entries.to_array()) - first.entry].sum(dtype=np.int64))
        return total

    def block_start(self, topic_id: int, position: Position) -> Position | None:
        """The first position of the block that holds ``position``, or of the first block above it."""
        with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
            for first, _, _ in _blocks_after(txn.cursor(), topic_id, Position(position.ledger, position.entry - 1)):
                return first
        return None

    def policies(self, topic_id: int) -> bytes | None:
        """The topic's own policies as they were put; None if it has none."""
        with self.env.begin(db=self.tables["policies"]) as txn:
            stored = txn.get(TOPIC_KEY.pack(topic_id))
        return None if stored is None else bytes(stored)

    def extents(self, topic_id: int) -> Iterator[tuple[str, int, Position, Position, int]]:
        """The exact mapping of a topic's copied entries, in the order of origin positions for each origin: origin,
        incarnation, first origin position, first position here, and how many entries."""
        prefix = TOPIC_KEY.pack(topic_id)
        with self.env.begin(db=self.tables["extents"]) as txn:
            cursor = txn.cursor()
            more = cursor.set_range(prefix)
            while more and (key := bytes(cursor.key())).startswith(prefix):
                incarnation, ledger, first = EXTENT_KEY_TAIL.unpack(key[-EXTENT_KEY_TAIL.size :])
                entries, local_ledger, local_first = EXTENT.unpack(cursor.value())
                origin = key[len(prefix) : -EXTENT_KEY_TAIL.size - 1].decode("ascii")
                yield origin, incarnation, Position(ledger, first), Position(local_ledger, local_first), entries
                more = cursor.next()

    def translate(self, topic_id: int, origin: str, incarnation: int, position: Position) -> Position | None:
        """Where an entry of another origin lies here, from the extents; None if it is not here."""
        prefix = extent_key_prefix(topic_id, origin)
        with self.env.begin(db=self.tables["extents"]) as txn:
            cursor = txn.cursor()
            found = cursor.set_range(prefix + EXTENT_KEY_TAIL.pack(incarnation, position.ledger, position.entry + 1))
            if not (cursor.prev() if found else cursor.last()) or not cursor.key().startswith(prefix):
                return None
            at_incarnation, ledger, first = EXTENT_KEY_TAIL.unpack(cursor.key()[len(prefix) :])
            entries, local_ledger, local_first = EXTENT.unpack(cursor.value())
        offset = position.entry - first
        if (at_incarnation, ledger) != (incarnation, position.ledger) or offset >= entries:
            return None
        return Position(local_ledger, local_first + offset)

    def floor(self, topic_id: int, origin: str, incarnation: int, position: Position) -> Position | None:
        """Where the highest entry of another origin at or below ``position`` lies here; None if none is here.

        All of that origin that lies here above it was published above ``position``: invariant 3.
        """
        prefix = extent_key_prefix(topic_id, origin)
        with self.env.begin(db=self.tables["extents"]) as txn:
            cursor = txn.cursor()
            found = cursor.set_range(prefix + EXTENT_KEY_TAIL.pack(incarnation, position.ledger, position.entry + 1))
            if not (cursor.prev() if found else cursor.last()) or not cursor.key().startswith(prefix):
                return None
            at_incarnation, ledger, first = EXTENT_KEY_TAIL.unpack(cursor.key()[len(prefix) :])
            entries, local_ledger, local_first = EXTENT.unpack(cursor.value())
        if at_incarnation != incarnation:
            return None
        offset = position.entry - first if ledger == position.ledger else entries
        return Position(local_ledger, local_first + min(offset, entries - 1))

    def _verify(self, block: memoryview, topic_id: int, position: Position) -> None:
        try:
            verify_block(block)
        except BlockCorrupt as error:
            raise BlockCorrupt(f"{self.path}: topic {topic_id} at {position}: {error}") from None


def read_holes(txn: lmdb.Transaction, database: Any, topic_id: int, origin: str) -> tuple[Hole, ...]:
    """The rows of table ``left_out`` of one topic and origin, in order."""
    prefix = extent_key_prefix(topic_id, origin)
    found: list[Hole] = []
    cursor = txn.cursor(db=database)
    more = cursor.set_range(prefix)
    while more and (key := bytes(cursor.key())).startswith(prefix):
        found.append((decode_place(key[len(prefix) :]), decode_place(bytes(cursor.value()))))
        more = cursor.next()
    return tuple(found)


def encode_place(position: Position) -> bytes:
    """A position that may lie before a ledger's first entry; the bytes are in the order of positions."""
    return HOLE_END.pack(position.ledger, position.entry + 1)


def decode_place(stored: bytes) -> Position:
    ledger, entry = HOLE_END.unpack(stored)
    return Position(ledger, entry - 1)


def extent_key_prefix(topic_id: int, origin: str) -> bytes:
    return TOPIC_KEY.pack(topic_id) + origin.encode("ascii") + b"\0"


def encode_trim(trim: Trim) -> bytes:
    vector = {origin: list(position) for origin, position in trim.vector.items()}
    return json.dumps({"through": list(trim.through), "vector": vector}).encode()


def decode_trim(stored: bytes) -> Trim:
    row = json.loads(stored)
    return Trim(Position(*row["through"]), {origin: Position(*each) for origin, each in row["vector"].items()})


def _blocks_after(
    cursor: lmdb.Cursor, topic_id: int, after: Position
) -> Iterator[tuple[Position, BlockHeader, memoryview]]:
    """The blocks that hold entries above ``after``, each with its local position; a view ends with the transaction."""
    more = seek_block(cursor, topic_id, Position(after.ledger, min(max(after.entry + 1, 0), ENTRY_IDS_MAX)))
    while more:
        key_topic, ledger, first = BLOCK_KEY.unpack(cursor.key())
        if key_topic != topic_id:
            return
        block = memoryview(cursor.value())[LOCAL_PREFIX.size :]
        yield Position(ledger, first), read_header(block), block
        more = cursor.next()


def _entries_before(view: BlockView, published_ms: int) -> int:
    """How many entries at the start of a block were published before that time, by their producers' clocks.

    One that cannot be read is as old as its block, which is not before: it must not stop what looks for others.
    """
    for index, entry in enumerate(view.entries(0, len(view))):
        try:
            metadata, _ = decode_entry(entry, check=False)
        except (EntryCorrupt, MessageTooLarge):
            return index
        if metadata.publish_time >= published_ms:
            return index
    return len(view)


def seek_block(cursor: lmdb.Cursor, topic_id: int, position: Position) -> bool:
    """Put the cursor on the block that holds ``position``, or on the first one above it."""
    key = BLOCK_KEY.pack(topic_id, position.ledger, position.entry)
    if not cursor.set_range(key):
        at_lower = cursor.last()
    elif bytes(cursor.key()) == key:
        return True
    else:
        at_lower = cursor.prev()
    if at_lower:
        found_topic, ledger, first = BLOCK_KEY.unpack(cursor.key())
        if (found_topic, ledger) == (topic_id, position.ledger):
            header = read_header(cursor.value()[LOCAL_PREFIX.size :])
            if first + header.entries > position.entry:
                return True
    return bool(cursor.set_range(key))


def _topic_record(key: bytes, value: bytes) -> TopicRecord:
    record = json.loads(value)
    return TopicRecord(record["id"], key.decode(), record["incarnation"])
