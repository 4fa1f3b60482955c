"""Reads what a store knows about topics, except their entries: the catalog, small rows, and counts."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.left_out import Hole
from replicator.engine.log.segments.places import parse_row
from replicator.engine.log.store_tables import (
    BLOCK_KEY,
    EPOCH,
    EXTENT,
    EXTENT_KEY_TAIL,
    HIGH_WATER,
    LOCAL_PREFIX,
    MARKER_RUN,
    TOPIC_KEY,
    HighWater,
    PartsRow,
    TopicRecord,
    Trim,
    accepted_key,
    decode_place,
    decode_trim,
    extent_key_prefix,
    read_holes,
    read_parts,
)
from replicator.engine.log.stored_blocks import LedgerExtent, seek_block
from snapshots.position import Position

_END = (1 << 64) - 1


class TopicRows:
    """Part of a store that reads rows. :class:`~replicator.engine.log.store.Store` adds the rest."""

    env: lmdb.Environment
    tables: dict[str, Any]
    path: Path
    on_damaged: Callable[[int, Position], None] | None
    """Function that is called, on any thread, when a block is found damaged, with its topic's id and a position in
    it."""

    def meta(self, name: str) -> Any:
        with self.env.begin(db=self.tables["meta"]) as txn:
            stored = txn.get(name.encode())
        return None if stored is None else json.loads(stored)

    def topics(self) -> list[TopicRecord]:
        with self.env.begin() as txn:
            return self.topics_in(txn)

    def topics_in(self, txn: lmdb.Transaction) -> list[TopicRecord]:
        """Return the records of all topics as ``txn`` sees them."""
        return [_topic_record(bytes(key), bytes(value)) for key, value in txn.cursor(db=self.tables["topics"])]

    def topic(self, name: str) -> TopicRecord | None:
        with self.env.begin(db=self.tables["topics"]) as txn:
            stored = txn.get(name.encode())
        return None if stored is None else _topic_record(name.encode(), stored)

    def deleted_topics(self) -> list[int]:
        """Return the ids of deleted topics whose rows are not all deleted yet."""
        with self.env.begin(db=self.tables["deleted"]) as txn:
            return [int(TOPIC_KEY.unpack(key)[0]) for key in txn.cursor().iternext(keys=True, values=False)]

    def tenants(self) -> list[str]:
        """Return all tenants, whether they were created by name or together with a topic."""
        with self.env.begin(db=self.tables["tenants"]) as txn:
            return [bytes(key).decode() for key in txn.cursor().iternext(keys=True, values=False)]

    def namespaces(self) -> dict[str, bytes]:
        """Return the stored policies of each namespace, by ``tenant/namespace``."""
        with self.env.begin(db=self.tables["namespaces"]) as txn:
            return {bytes(key).decode(): bytes(value) for key, value in txn.cursor()}

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
        """Return the holes of an origin, the ranges that links may have left out, in order."""
        with self.env.begin(db=self.tables["left_out"]) as txn:
            return read_holes(txn, self.tables["left_out"], topic_id, origin)

    def parts(self, topic_id: int) -> list[PartsRow]:
        """Return the blocks with batches that lack messages."""
        with self.env.begin(db=self.tables["parts"]) as txn:
            return read_parts(txn, self.tables["parts"], topic_id)

    def link_rows(self, link_key: str) -> tuple[dict[int, Position], dict[int, dict[str, Hole]]]:
        """Return the last stored progress of a link by topic id, and by topic id and origin the range (after, upto]
        that was last left out of what it copies."""
        suffix = link_key.encode()
        marks: dict[int, Position] = {}
        accepted: dict[int, dict[str, Hole]] = {}
        with self.env.begin(db=self.tables["link_marks"]) as txn:
            for key, value in ((bytes(key), bytes(value)) for key, value in txn.cursor()):
                topic_id = TOPIC_KEY.unpack_from(key)[0]
                if key[TOPIC_KEY.size :] == suffix:
                    marks[topic_id] = decode_place(value)
                elif key == accepted_key(topic_id, link_key):
                    accepted[topic_id] = {
                        origin: (Position(*after), Position(*upto))
                        for origin, (after, upto) in json.loads(value).items()
                    }
        return marks, accepted

    def trim(self, topic_id: int) -> Trim:
        """Return the record of the trimmed part of the topic's log."""
        with self.env.begin(db=self.tables["trims"]) as txn:
            stored = txn.get(TOPIC_KEY.pack(topic_id))
        return Trim() if stored is None else decode_trim(stored)

    def cursors(self, topic_id: int) -> dict[str, bytes]:
        return self._by_name("cursors", topic_id)

    def tombstones(self, topic_id: int) -> dict[str, bytes]:
        """Return the stored tombstones by subscription."""
        return self._by_name("tombstones", topic_id)

    def pending_acks(self, topic_id: int) -> dict[str, bytes]:
        """Return, by subscription, the acknowledgements that wait for messages that are not here yet."""
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
        """Return whether a table with keys that begin with a topic's id has rows of this topic."""
        prefix = TOPIC_KEY.pack(topic_id)
        with self.env.begin(db=self.tables[table]) as txn:
            cursor = txn.cursor()
            return bool(cursor.set_range(prefix)) and bytes(cursor.key()).startswith(prefix)

    def epoch(self, topic_id: int) -> int | None:
        """Return the topic's epoch, or None if it never had an exclusive producer."""
        with self.env.begin(db=self.tables["epochs"]) as txn:
            stored = txn.get(TOPIC_KEY.pack(topic_id))
        return None if stored is None else int(EPOCH.unpack(stored)[0])

    def terminated(self, topic_id: int) -> bool:
        """Return whether the topic is terminated, so that producers are refused for ever."""
        with self.env.begin(db=self.tables["terminated"]) as txn:
            return txn.get(TOPIC_KEY.pack(topic_id)) is not None

    def cursor_rows(self, topic_id: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the rows of all cursors of a topic, in the order of their keys."""
        prefix = TOPIC_KEY.pack(topic_id)
        with self.env.begin(db=self.tables["cursor_rows"]) as txn:
            cursor = txn.cursor()
            more = cursor.set_range(prefix)
            while more and cursor.key().startswith(prefix):
                yield cursor.item()
                more = cursor.next()

    def policies(self, topic_id: int) -> bytes | None:
        """Return the topic's own policies as they were stored, or None if it has none."""
        with self.env.begin(db=self.tables["policies"]) as txn:
            stored = txn.get(TOPIC_KEY.pack(topic_id))
        return None if stored is None else bytes(stored)

    def extents(self, topic_id: int) -> Iterator[tuple[str, int, Position, Position, int]]:
        """Yield the extents of a topic's copied entries: origin, incarnation, first origin position, first local
        position, and number of entries. Each origin's extents are in the order of origin positions."""
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
        """Return the local position of an entry of another origin, or None if the entry is not here."""
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

    def floor(self, topic_id: int, origin: str, position: Position) -> Position | None:
        """Return the local position of the highest entry of ``origin`` at or below ``position``; None if none is here.

        All entries of that origin that lie above it here were published above ``position`` (invariant 3). Positions
        ascend from life to life of the topic, so the newest life with an entry at or below ``position`` counts.
        """
        prefix = extent_key_prefix(topic_id, origin)
        with self.env.begin(db=self.tables["extents"]) as txn:
            cursor = txn.cursor()
            end = prefix + EXTENT_KEY_TAIL.pack(*(3 * (_END,)))
            more = cursor.prev() if cursor.set_range(end) else cursor.last()
            while more and bytes(cursor.key()).startswith(prefix):
                incarnation = EXTENT_KEY_TAIL.unpack(cursor.key()[len(prefix) :])[0]
                above = prefix + EXTENT_KEY_TAIL.pack(incarnation, position.ledger, position.entry + 1)
                more = cursor.prev() if cursor.set_range(above) else cursor.last()
                if not more or not bytes(cursor.key()).startswith(prefix):
                    return None
                at_incarnation, ledger, first = EXTENT_KEY_TAIL.unpack(cursor.key()[len(prefix) :])
                if at_incarnation == incarnation or Position(ledger, first) <= position:
                    entries, local_ledger, local_first = EXTENT.unpack(cursor.value())
                    offset = position.entry - first if ledger == position.ledger else entries
                    return Position(local_ledger, local_first + min(offset, entries - 1))
        return None

    # From the headers of blocks.

    def ledgers(self, topic_id: int) -> list[LedgerExtent]:
        """Return the ledgers of a topic in order, by two look-ups for each ledger."""
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
                header = parse_row(cursor.value()).header
                found.append(LedgerExtent(ledger, first, last_first + header.entries - 1))
                more = cursor.next()
        return found

    def totals(self, topic_id: int) -> tuple[int, int]:
        """Return how many entries and how many messages were ever appended to a topic, as its last block says."""
        with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
            cursor = txn.cursor()
            found = cursor.set_range(TOPIC_KEY.pack(topic_id + 1))
            if not (cursor.prev() if found else cursor.last()):
                return 0, 0
            if bytes(cursor.key()[:4]) != TOPIC_KEY.pack(topic_id):
                return 0, 0
            value = cursor.value()
            entries, messages = LOCAL_PREFIX.unpack_from(value)
            header = parse_row(value).header
            return int(entries) + header.entries, int(messages) + header.messages

    def messages_before(self, topic_id: int, position: Position) -> int:
        """Return the number of messages appended before the entry at ``position``, which must exist."""
        with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
            cursor = txn.cursor()
            with self.naming(topic_id, cursor):
                if not seek_block(cursor, topic_id, position):
                    return 0
                _, _, first = BLOCK_KEY.unpack(cursor.key())
                value = cursor.value()
                _, messages = LOCAL_PREFIX.unpack_from(value)
                if position.entry == first:  # a damaged block does not matter then
                    return int(messages)
                row = parse_row(value)
                sizes_at = row.header.columns_at + 4 * row.header.entries
                sizes = row.head[sizes_at : sizes_at + 4 * (position.entry - first)]
                return int(messages) + int(np.frombuffer(sizes, "<u4").sum())

    @contextmanager
    def naming(self, topic_id: int, cursor: lmdb.Cursor) -> Iterator[None]:
        """Turn a :class:`BlockCorrupt` of the block into one that names its topic and the position of the row at
        ``cursor``."""
        try:
            yield
        except BlockCorrupt as error:
            _, ledger, first = BLOCK_KEY.unpack(cursor.key())
            raise self.damaged(error, topic_id, Position(ledger, first)) from None

    def damaged(self, error: BlockCorrupt, topic_id: int, position: Position) -> BlockCorrupt:
        """Return the error that names the damaged block, and report the block for repair."""
        if self.on_damaged is not None:
            self.on_damaged(topic_id, position)
        return BlockCorrupt(
            f"{self.path}: topic {topic_id} at {position}: {error}. `replicator verify --fix` mends it from a cluster "
            "that has a copy, and so does `replicator store repair` while the worker is stopped"
        )


def _topic_record(key: bytes, value: bytes) -> TopicRecord:
    record = json.loads(value)
    return TopicRecord(record["id"], key.decode(), record["incarnation"])
