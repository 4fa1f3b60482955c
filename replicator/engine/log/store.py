"""The store of one cluster: an LMDB environment, and reading the blocks of topics from it.

All durable rows are in one environment, so that an append and its other rows are one transaction. LMDB recovers by
itself after a crash. Only :mod:`replicator.engine.log.writer` writes. :mod:`replicator.engine.log.store_tables`
describes the tables. :class:`~replicator.engine.log.topic_rows.TopicRows` reads rows other than blocks, and counts in
the headers of blocks.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import lmdb
import numpy as np
from pyroaring import BitMap

from replicator import __version__
from replicator.engine.errors import BlockCorrupt
from replicator.engine.log.block import (
    ENTRY_IDS_MAX,
    BlockKind,
    BlockSpan,
    BlockView,
    Buffer,
    verify_block,
)
from replicator.engine.log.block_heads import BlockHead, head_of
from replicator.engine.log.segments.places import BlockRow, parse_row, read_places
from replicator.engine.log.segments.segments import Segments
from replicator.engine.log.segments.settings import SegmentSettings
from replicator.engine.log.store_files import (
    LOG,
    SEGMENTS,
    check_head,
    check_new,
    check_not_restoring,
    identity,
    lock_directory,
    no_room,
    open_environment,
    open_tables,
    read_row,
    unusable_store,
)
from replicator.engine.log.store_tables import BLOCK_KEY, FORMATS, HEAD, LOCAL_PREFIX, TABLES, TOPIC_KEY, HighWater
from replicator.engine.log.stored_blocks import (
    StoredBlock,
    StoredHeader,
    blocks_after,
    entries_before,
    seek_block,
)
from replicator.engine.log.topic_rows import TopicRows
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

RESERVE_BYTES: Final = 16 * 1024 * 1024
"""Address space beyond a store's limit, which appends do not use. Deletions take new pages, too, so a full store could
otherwise neither be trimmed nor keep the acknowledgements that allow trimming."""

LOOK_BACK_BLOCKS_MAX: Final = 50_000
"""Limit of headers that loading a topic reads: 50,000 headers take a tenth of a second."""

REFINE_ENTRIES_MAX: Final = 20_000
"""Limit of entries that a search by time decodes. Producers sent these just before the time, and the store took them
just after it."""

PASS_OVER_BLOCKS_MAX: Final = 2_000
"""Limit of headers that one call skips, which takes some milliseconds. So many blocks of other origins do not block
other tasks."""


class Store(TopicRows):
    """One cluster's store: opens the environment and reads from it. Safe to use from several threads. Raises
    :class:`StoreUnusable`, and changes nothing, if the directory cannot be used."""

    def __init__(self, path: Path, *, cluster: str, size_max: int, segments: SegmentSettings | None = None) -> None:
        self.path = path
        self.data_file = path / LOG / "data.mdb"
        self._data_file_name = str(self.data_file)
        self.cluster = cluster
        self.size_max = size_max
        """Limit of the store's bytes, up to which appends may fill it."""
        self.on_damaged = None
        self.commit_lock = threading.Lock()
        """Lock that is held while a transaction is written. Its holder can rely on an unchanged store."""
        check_not_restoring(path)
        self._lock = lock_directory(path)
        try:
            self.env = open_environment(path, size_max + RESERVE_BYTES, len(TABLES))
        except BaseException:
            self._lock.close()
            raise
        try:
            self._identity = identity(self.data_file)
            self._page_bytes = int(self.env.stat()["psize"])
            self.head = self._checked_head()
            self.tables = open_tables(self.env, path, TABLES)
            self._note_head()
            with self.env.begin(buffers=True) as txn:
                placed = read_places(txn, self.tables["placed"])
                self.segments = Segments(path / LOG / SEGMENTS, segments or SegmentSettings(), placed)
        except OSError as error:
            self.env.close()
            self._lock.close()
            raise unusable_store(path, error) from None
        except BaseException:
            self.env.close()
            self._lock.close()
            raise

    def close(self) -> None:
        self.segments.close()
        self.env.close()
        self._lock.close()

    def replaced_reason(self) -> str | None:
        """Return why nothing may be confirmed any more, because the open file is not the one in the directory. Return
        None if it is."""
        file = self.data_file
        try:
            status = os.stat(self._data_file_name)  # noqa: PTH116 - before each commit, and a Path takes twice as long
            found = status.st_dev, status.st_ino
        except OSError as error:
            return f"{file} is gone while the worker runs ({error.strerror}); nothing more is confirmed"
        return None if found == self._identity else f"{file} was replaced while the worker runs; restart the worker"

    def size_bytes(self) -> int:
        """Return the bytes in use. Free pages of the table count. Of segments, only bytes of existing blocks count."""
        return self.table_bytes() + self.segments.space.live_bytes()

    def table_bytes(self) -> int:
        """Return the bytes of ``data.mdb`` up to its last page."""
        return int(self.env.info()["last_pgno"] + 1) * self._page_bytes

    def free_pages_bytes(self) -> int:
        """Return the bytes of pages in ``data.mdb`` that are free, or will be when their readers end."""
        return self.table_bytes() - self._pages_bytes()

    def _pages_bytes(self) -> int:
        with self.env.begin() as txn:
            stats = [txn.stat(db) for db in self.tables.values()]
        return self._page_bytes * sum(
            int(stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) for stat in stats
        )

    def has_room(self, append_bytes: int, table_bytes: int | None = None) -> bool:
        """Return whether ``append_bytes`` can be appended. The pages are counted only if the file was full once.

        ``table_bytes`` is the result of :meth:`table_bytes`, if the caller has it.
        """
        size_bytes = self.size_bytes() if table_bytes is None else table_bytes + self.segments.space.live_bytes()
        if size_bytes + append_bytes <= self.size_max:
            return True
        return self._pages_bytes() + self.segments.space.live_bytes() + append_bytes <= self.size_max

    def pressure(self) -> float:
        """Return the used share of the space that may be used. It can exceed 1. Dead bytes in segments count as used.

        The limit is ``size_max``, or the space of the disk if that is less.
        """
        taken = self._pages_bytes() + self.segments.space.taken_bytes()
        disk = os.statvfs(self.path)
        return taken / max(1, min(self.size_max, taken + disk.f_bavail * disk.f_frsize))

    def _checked_head(self) -> dict[str, Any]:
        """Return the stored head, or a new one for a new store.

        Raises :class:`StoreUnusable` before anything is written: tables of another version stay as they are.
        """
        stored = read_row(self.env, self.path, "meta", HEAD)
        if stored is None:
            check_new(self.env, self.path)
            return {"format": FORMATS[0], "cluster": self.cluster, "store_id": uuid.uuid4().hex}
        head: dict[str, Any] = json.loads(stored)
        check_head(self.path, self.cluster, head)
        return head

    def _note_head(self) -> None:
        """Store the version that uses the store now. A version that cannot read the store can then name it."""
        if self.head.get("version") != __version__:
            self.head["version"] = __version__
            try:
                with self.env.begin(write=True, db=self.tables["meta"]) as txn:
                    txn.put(HEAD.encode(), json.dumps(self.head).encode())
            except lmdb.DiskError:
                raise no_room(self.path) from None

    # Catalog and per-topic state.

    def message_vector(self, topic_id: int, high_waters: Mapping[str, HighWater]) -> dict[str, Position]:
        """Return, for each origin, the origin position of its newest message, searched from the end of the log.

        For an origin that is not found in :data:`LOOK_BACK_BLOCKS_MAX` blocks, use its high-water mark, which is at or
        above the true position. For trimmed messages, use the record of the trim.
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
                header = parse_row(cursor.value()).header
                if header.kind is BlockKind.MESSAGES:
                    found.setdefault(header.origin, header.origin_last)
                more = cursor.prev()
        return {**self.trim(topic_id).vector, **found}

    def newest_message(self, topic_id: int, origin: str, upto: Position) -> Position | None:
        """Return the origin position of the newest message of ``origin`` that lies here at or below ``upto``.

        Return None if there is none in :data:`PASS_OVER_BLOCKS_MAX` blocks.
        """
        with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
            cursor = txn.cursor()
            after = BLOCK_KEY.pack(topic_id, upto.ledger, upto.entry + 1)
            more = cursor.prev() if cursor.set_range(after) else cursor.last()
            for _ in range(PASS_OVER_BLOCKS_MAX):
                if not more or bytes(cursor.key()[: TOPIC_KEY.size]) != TOPIC_KEY.pack(topic_id):
                    return None
                header = parse_row(cursor.value()).header
                if header.origin == origin and header.kind is BlockKind.MESSAGES:
                    return header.origin_last
                more = cursor.prev()
        return None

    # The log.

    @contextmanager
    def reading_blocks(self) -> Iterator[lmdb.Transaction]:
        """Yield a transaction on table ``blocks`` in which the bodies of its rows may be read."""
        began = self.segments.readers.begin()
        try:
            with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
                yield txn
        finally:
            self.segments.readers.end(began)

    def body_at(self, row: BlockRow, topic_id: int, position: Position) -> Buffer:
        """Return the block of a row, within :meth:`reading_blocks`. If it lies in the table, it is valid only there.

        Raises :class:`BlockCorrupt` if the disk does not give it. Its checksum is not verified.
        """
        try:
            return row.head if row.place is None else self.segments.read(row.place, row.head)
        except BlockCorrupt as error:
            raise self.damaged(error, topic_id, position) from None

    def block_for_writer(self, stored: Buffer, topic_id: int, position: Position) -> BlockView:
        """Return the block of the row ``stored`` within a transaction of the writer.

        Raises :class:`BlockCorrupt` for a damaged block, and reports the block for repair.
        """
        try:
            row = parse_row(stored)
            block = row.head if row.place is None else self.segments.read_for_writer(row.place, row.head)
            return BlockView(block, verify_block(block))
        except BlockCorrupt as error:
            raise self.damaged(error, topic_id, position) from None

    def read_blocks(
        self,
        topic_id: int,
        after: Position,
        upto: Position,
        *,
        bytes_max: int,
        blocks_max: int | None = None,
        origins: Collection[str] | None = None,
        verify: bool = True,
    ) -> tuple[list[StoredBlock], Position]:
        """Return whole blocks that hold entries in (``after``, ``upto``], in order, at least one if there is one.

        With ``origins``, return only blocks of those origins that a link may carry. Skip the others without reading
        their bodies, at most :data:`PASS_OVER_BLOCKS_MAX` of them. The second value is the ``after`` of the next page.
        Raises :class:`BlockCorrupt` for a block whose checksum is wrong: it is never served. Without ``verify``, only a
        block that cannot be read raises it, and only if the page would begin with that block.
        """
        found: list[StoredBlock] = []

        def take(position: Position, row: BlockRow) -> None:
            block = self.body_at(row, topic_id, position)
            if verify:
                self._verify(block, topic_id, position)
            found.append(StoredBlock(position, row.header, bytes(block) if row.place is None else block))

        try:
            reached = self._take_blocks(take, topic_id, after, upto, bytes_max, blocks_max, origins)
        except BlockCorrupt:
            if verify or not found:
                raise
            reached = min(found[-1].last, upto)
        return found, reached

    def read_headers(
        self,
        topic_id: int,
        after: Position,
        upto: Position,
        *,
        bytes_max: int,
        blocks_max: int,
        origins: Collection[str],
    ) -> tuple[list[StoredHeader], Position]:
        """Return the headers of the blocks that :meth:`read_blocks` would return.

        Bodies are not read, and their checksums are not verified. ``bytes_max`` limits the bytes of the blocks.
        """
        found: list[StoredHeader] = []

        def take(position: Position, row: BlockRow) -> None:
            found.append(StoredHeader(position, row.header, row.size_bytes))

        reached = self._take_blocks(take, topic_id, after, upto, bytes_max, blocks_max, origins)
        return found, reached

    def _take_blocks(
        self,
        take: Callable[[Position, BlockRow], None],
        topic_id: int,
        after: Position,
        upto: Position,
        bytes_max: int,
        blocks_max: int | None,
        origins: Collection[str] | None,
    ) -> Position:
        """Call ``take`` with the blocks of a page; see :meth:`read_blocks`. Return where the next page begins."""
        if after >= upto:
            return after
        taken_bytes, taken, passed_over, reached = 0, 0, 0, after
        with self.reading_blocks() as txn:
            cursor = txn.cursor()
            more = seek_block(cursor, topic_id, Position(after.ledger, min(max(after.entry + 1, 0), ENTRY_IDS_MAX)))
            while more:
                key_topic, ledger, first = BLOCK_KEY.unpack(cursor.key())
                if key_topic != topic_id or Position(ledger, first) > upto:
                    break
                row = parse_row(cursor.value())
                header = row.header
                last = Position(ledger, first + header.entries - 1)
                if last > after:
                    if origins is None or (header.origin in origins and header.kind is not BlockKind.LOCAL_MARKERS):
                        if taken and (taken_bytes + row.size_bytes > bytes_max or taken == blocks_max):
                            break
                        take(Position(ledger, first), row)
                        taken += 1
                        taken_bytes += row.size_bytes
                    else:
                        passed_over += 1
                    reached = min(last, upto)
                    if passed_over >= PASS_OVER_BLOCKS_MAX:
                        break
                more = cursor.next()
        return reached

    def block_of(self, topic_id: int, position: Position) -> StoredBlock | None:
        """Return the block that holds ``position``; None if there is none."""
        blocks, _ = self.read_blocks(topic_id, Position(position.ledger, position.entry - 1), position, bytes_max=0)
        return blocks[0] if blocks else None

    def block_spans(self, topic_id: int, after: Position, *, blocks_max: int) -> list[BlockSpan]:
        """Return the spans of the next ``blocks_max`` blocks with entries above ``after``, in order. Only headers
        are read."""
        found: list[BlockSpan] = []
        with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
            cursor = txn.cursor()
            for first, row in blocks_after(cursor, topic_id, after):
                last = Position(first.ledger, first.entry + row.header.entries - 1)
                found.append(BlockSpan(first, last, row.size_bytes, row.header.publish_time_ms))
                if len(found) >= blocks_max:
                    break
        return found

    def block_heads(self, topic_id: int, after: Position, upto: Position, *, blocks_max: int) -> list[BlockHead]:
        """Return the heads of the next ``blocks_max`` blocks that hold entries in (``after``, ``upto``]."""
        found: list[BlockHead] = []

        def take(position: Position, row: BlockRow) -> None:
            found.append(head_of(position, row.header, row.head, row.size_bytes))

        self._take_blocks(take, topic_id, after, upto, sys.maxsize, blocks_max, None)
        return found

    def position_at_time(self, topic_id: int, published_ms: int, *, after: Position = BEFORE_ALL) -> Position:
        """Return the last position before the first message above ``after`` published at ``published_ms`` or later.

        1. Skip blocks that their origin wrote before that time, by their headers.
        2. In the first other block, compare the publish times that the producers gave the entries.
        3. If all of its entries are earlier, go on in the next block, for at most :data:`REFINE_ENTRIES_MAX` entries.

        So no message that was published at that time or later is skipped, whatever the links mixed in.
        The result is ``after`` if no message is earlier. The cost is one header for each block in between.
        """
        reached, decoded = after, 0
        with self.reading_blocks() as txn:
            for first, row in blocks_after(txn.cursor(), topic_id, after):
                header = row.header
                if header.kind is not BlockKind.MESSAGES:
                    continue
                last = Position(first.ledger, first.entry + header.entries - 1)
                if header.publish_time_ms >= published_ms:
                    decoded += header.entries
                    if decoded > REFINE_ENTRIES_MAX + header.entries:
                        break
                    block = self.body_at(row, topic_id, first)
                    self._verify(block, topic_id, first)
                    before = entries_before(BlockView(block, header), published_ms)
                    if before:
                        reached = max(reached, Position(first.ledger, first.entry + before - 1))
                    if before < header.entries:
                        break
                reached = max(reached, last)
        return reached

    def messages_in(self, topic_id: int, positions: PositionSet) -> int:
        """Return the number of messages in the entries at ``positions``. All of these entries must exist.

        A run of positions without holes costs two look-ups at most, however many blocks it has, because each row says
        how many messages were appended before its block.
        """
        total = 0
        with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
            cursor = txn.cursor()
            with self.naming(topic_id, cursor):
                for ledger, entries in positions.by_ledger():
                    at, end = entries.min(), entries.max()
                    through: int | None = None  # messages up to the end of the block before a skipped part of a run
                    while seek_block(cursor, topic_id, Position(ledger, at)):
                        key_topic, key_ledger, first = BLOCK_KEY.unpack(cursor.key())
                        if (key_topic, key_ledger) != (topic_id, ledger):
                            break
                        value = cursor.value()
                        before, row = LOCAL_PREFIX.unpack_from(value)[1], parse_row(value)
                        last = first + row.header.entries - 1
                        total += _messages_at(row, first, positions.entries_in(ledger, first, last))
                        if through is not None:
                            total += before - through
                        if end <= last:
                            break
                        at, through = entries.next_set_bit(last + 1), None
                        if at == last + 1:  # the run goes on: skip the blocks that lie wholly in it
                            at, through = positions.run_end(Position(ledger, at)).entry, before + row.header.messages
        return total

    def block_start(self, topic_id: int, position: Position) -> Position | None:
        """Return the first position of the block that holds ``position``, or of the first block above it."""
        with self.env.begin(db=self.tables["blocks"], buffers=True) as txn:
            for first, _ in blocks_after(txn.cursor(), topic_id, Position(position.ledger, position.entry - 1)):
                return first
        return None

    def _verify(self, block: Buffer, topic_id: int, position: Position) -> None:
        try:
            verify_block(block)
        except BlockCorrupt as error:
            raise self.damaged(error, topic_id, position) from None


def _messages_at(row: BlockRow, first: int, entries: BitMap) -> int:
    """Return the number of messages in those entries of a block. ``first`` is the id of its first entry."""
    header = row.header
    if header.messages == header.entries or not entries:
        return len(entries)
    sizes = np.frombuffer(row.head, "<u4", header.entries, header.columns_at + 4 * header.entries)
    return int(sizes[np.asarray(entries.to_array()) - first].sum(dtype=np.int64))
