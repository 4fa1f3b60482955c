"""Copying a store while its worker writes: pieces of its files as they were at one moment, each with its hash.

Invariant (DESIGN §3): 1, everything confirmed before the copy began is in the copy.

1. LMDB copies its file within one read transaction, page by page in order. So unchanged pages keep their place from
   copy to copy, and only new pieces need to be carried.
2. A thread writes that copy into a pipe. Its reader sets the pace. If the reader stops or goes away, the copying ends.
3. A second transaction begins at the same moment, while the writer stands still. It says what is live in the segments
   (:mod:`replicator.engine.log.segments`). They follow, segment by segment. All other bytes are zeros, so that no
   backup has deleted data.
4. A block in a segment that cannot be read, or whose checksum is wrong, does not end the copying, but is reported
   (:class:`DamagedBlock`). Zeros replace unreadable bytes. They do not match the block's checksum, so nobody takes them
   for the block (invariant 2). Blocks in LMDB's file are copied as they are.
5. While the transactions are open, the store cannot reuse freed pages and segments, and grows with every write. So the
   copying is given up if it takes too long, or if the store comes near its limit (:class:`CopyLimits`).

Only :func:`is_store_file` knows the names of a store's files.
"""

from __future__ import annotations

import hashlib
import os
import select
import threading
import time
from collections.abc import Container, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from typing import IO, Any, Final

import lmdb

from replicator.engine.errors import BlockCorrupt, StoreCopyFailed
from replicator.engine.log.block import Buffer, verify_block
from replicator.engine.log.segments.files import segment_name, segment_number
from replicator.engine.log.segments.places import Place, parse_row, read_placed
from replicator.engine.log.store import RESERVE_BYTES, Store
from replicator.engine.log.store_files import LOG, SEGMENTS
from replicator.engine.log.store_tables import BLOCK_KEY
from snapshots.position import Position

DATA_FILE: Final = "log/data.mdb"
"""Name of LMDB's file, relative to a store's directory, as the names of segments are. All files lie below ``log``,
which is moved as a whole."""
PIECE_BYTES: Final = 1024 * 1024
"""Size of a piece: small enough that a few changed pages carry little else along, and large enough that a store of 64
GiB has only 65,536 pieces."""
COPY_SECONDS_MAX: Final = 3600.0
ROOM_LEFT_MIN: Final = 0.1
"""Share of the store's limit that must stay free."""
DAMAGED_MAX: Final = 100_000
"""Limit of damaged blocks in one copy. Each is reported, by some 200 bytes. With more, the store is not worth a
backup."""


@dataclass(frozen=True, slots=True)
class Piece:
    """``PIECE_BYTES`` of a file, or its end. ``content`` is None if the receiver has the piece already."""

    file: str
    digest: bytes
    size: int
    content: bytes | None


@dataclass(frozen=True, slots=True)
class DamagedBlock:
    """A damaged block in a copy: the entries ``first`` to ``last`` of a topic."""

    topic: str
    first: Position
    last: Position
    reason: str


@dataclass(frozen=True, slots=True)
class CopyLimits:
    """Limits of time and space at which a copy is given up."""

    seconds_max: float = COPY_SECONDS_MAX
    room_left_min: float = ROOM_LEFT_MIN

    def check(self, store: Store, began: float, size_at_begin: int) -> None:
        """Raise :class:`StoreCopyFailed` if the copy takes too long, or if the store has grown and is nearly full. A
        store that was nearly full before may be copied."""
        if time.monotonic() - began > self.seconds_max:
            raise StoreCopyFailed(
                f"the copy took more than {self.seconds_max:.0f} s, in which the store grows by all that it writes: "
                "take the backup where the network and the destination are faster"
            )
        size = store.size_bytes()
        if size > size_at_begin and store.size_max + RESERVE_BYTES - size < self.room_left_min * store.size_max:
            raise StoreCopyFailed(
                f"the store has {size} of {store.size_max} bytes, and grows while it is copied: raise store.size_max, "
                "trim topics, or take the backup when less is published"
            )


def copy_pieces(
    store: Store, known: Container[bytes], limits: CopyLimits | None = None
) -> Generator[Piece | DamagedBlock, None, None]:
    """Yield the pieces of the store's files in order, as they are now; without content if the hash is in ``known``.

    Damaged blocks are yielded between the pieces, and reported to the store's ``on_damaged``. The generator blocks, so
    run it on a thread of its own, and close it if you do not read it to its end. Raises :class:`StoreCopyFailed`.
    """
    limits = limits or CopyLimits()
    for each in _pieces(store, limits):
        if isinstance(each, DamagedBlock):
            yield each
            continue
        file, piece = each
        digest = hashlib.sha256(piece).digest()
        yield Piece(file, digest, len(piece), None if digest in known else piece)


def is_store_file(name: str) -> bool:
    """Return whether a store can have a file with this name."""
    directory, _, file = name.rpartition("/")
    return name == DATA_FILE or (directory == f"{LOG}/{SEGMENTS}" and segment_number(file) is not None)


_Copied = tuple[str, bytes] | DamagedBlock


def _pieces(store: Store, limits: CopyLimits) -> Iterator[_Copied]:
    began, size_at_begin = time.monotonic(), store.size_bytes()
    reading, writing = os.pipe()
    with ExitStack() as stack:
        stack.callback(store.segments.readers.end, store.segments.readers.begin())
        pipe = os.fdopen(reading, "rb", buffering=0)
        with store.commit_lock:
            copying = _Copying(store.env, writing)
            stack.callback(copying.thread.join)  # the pipe is closed then: it ends at its next page
            stack.callback(pipe.close)
            select.select([pipe], [], [])  # something comes: LMDB has chosen what it copies
            txn = stack.enter_context(store.env.begin(buffers=True))
        while piece := _read_piece(pipe):
            limits.check(store, began, size_at_begin)
            yield DATA_FILE, piece
        copying.thread.join()
        if copying.failed is not None:
            raise StoreCopyFailed(
                f"the copy of the store ended early: {copying.failed}; run the command again, and if it ends so again, "
                "look at the disk of the store"
            )
        for copied in _segment_pieces(store, txn):
            limits.check(store, began, size_at_begin)
            yield copied


def _segment_pieces(store: Store, txn: lmdb.Transaction) -> Iterator[_Copied]:
    """Yield the pieces of each segment up to the end of its last live block, with zeros for everything dead. Yield
    damaged blocks between them."""
    blocks = _SegmentBlocks(store, txn)
    for number, places in groupby(read_placed(txn, store.tables["placed"]), key=lambda found: found[0].segment):
        file, begin, piece = f"{LOG}/{SEGMENTS}/{segment_name(number)}", 0, bytearray(PIECE_BYTES)
        end = 0
        for place, key in places:
            at, (block, damaged) = 0, blocks.read(place, key)
            if damaged is not None:
                yield damaged
            end = place.offset + place.size
            while at < place.size:
                while place.offset + at >= begin + PIECE_BYTES:
                    yield file, bytes(piece)
                    begin, piece = begin + PIECE_BYTES, bytearray(PIECE_BYTES)
                inside = place.offset + at - begin
                taken = min(place.size - at, PIECE_BYTES - inside)
                piece[inside : inside + taken] = block[at : at + taken]
                at += taken
        yield file, bytes(piece[: end - begin])


class _SegmentBlocks:
    """Reads and verifies the blocks of segments that a transaction refers to."""

    def __init__(self, store: Store, txn: lmdb.Transaction) -> None:
        self._store = store
        self._txn = txn
        self._names: dict[int, str] | None = None
        self._damaged = 0

    def read(self, place: Place, key: bytes) -> tuple[Buffer, DamagedBlock | None]:
        """Return the bytes to copy for a block, and its damage, if there is any. Raise :class:`StoreCopyFailed` if too
        many blocks are damaged."""
        topic_id, ledger, entry = BLOCK_KEY.unpack(key)
        first = last = Position(ledger, entry)
        block: Buffer = bytes(place.size)
        value = self._txn.get(key, db=self._store.tables["blocks"])
        if value is None:  # no topic has it
            return block, None
        try:
            row = parse_row(value)
            last = Position(ledger, entry + row.header.entries - 1)
            block = self._store.segments.read(place, row.head)  # other bytes there may be what was deleted: no copy
            verify_block(block)
        except BlockCorrupt as error:
            return block, self._noted(topic_id, first, last, str(error))
        return block, None

    def _noted(self, topic_id: int, first: Position, last: Position, reason: str) -> DamagedBlock | None:
        if self._names is None:
            self._names = {record.topic_id: record.name for record in self._store.topics_in(self._txn)}
        if (name := self._names.get(topic_id)) is None:  # of a deleted topic: nobody misses it
            return None
        self._damaged += 1
        if self._damaged > DAMAGED_MAX:
            raise StoreCopyFailed(
                f"more than {DAMAGED_MAX} blocks of the store are damaged: mend it by `replicator verify --fix`, or by "
                "`replicator store repair` while the worker does not run"
            )
        if self._store.on_damaged is not None:
            self._store.on_damaged(topic_id, first)
        return DamagedBlock(name, first, last, reason)


def _read_piece(pipe: IO[bytes]) -> bytes:
    taken: list[bytes] = []
    left = PIECE_BYTES
    while left and (read := pipe.read(left)):
        taken.append(read)
        left -= len(read)
    return b"".join(taken)


class _Copying:
    """LMDB's own copy, made on a thread and written into a pipe, which is closed at its end."""

    def __init__(self, env: Any, writing: int) -> None:
        self.failed: str | None = None
        self._env = env
        self._writing = writing
        self.thread = threading.Thread(target=self._run, name="store copy", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            self._env.copyfd(self._writing)
        except (lmdb.Error, OSError) as error:
            self.failed = str(error)
        finally:
            os.close(self._writing)
