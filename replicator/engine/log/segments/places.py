"""Places of blocks in segments, and the rows that store them.

A row of table ``blocks`` has after its local prefix either the block itself or, if the bytes lie in a segment, this,
big-endian::

    "RSG1" | segment u32 | offset u64 | size u32 | the block's head

The head is everything before the entries. So counting, seeking and skipping need no segment. A block that has parts
(:mod:`replicator.engine.log.parts`) is never in a segment.

Table ``placed`` has a row for each block in a segment, by segment and offset: the key of its row in ``blocks``, and its
size. It is the only record of the used space in segments: bytes that it does not name are free.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import lmdb

from replicator.engine.log.block import BlockHeader, Buffer, head_bytes, read_head, read_header
from replicator.engine.log.store_tables import LOCAL_PREFIX

ELSEWHERE: Final = b"RSG1"
_PLACE: Final = struct.Struct(">4sIQI")
_PLACED_KEY: Final = struct.Struct(">IQ")
_PLACED_SIZE: Final = struct.Struct(">I")
_HEAD_AT: Final = LOCAL_PREFIX.size + _PLACE.size


class Place(NamedTuple):
    """A block's bytes: ``size`` bytes from ``offset`` on in a segment."""

    segment: int
    offset: int
    size: int


class BlockRow(NamedTuple):
    """One row of table ``blocks``. ``head`` is the whole block or, if its entries lie in ``place``, the part before its
    entries. ``head`` is valid until the transaction that read the row ends."""

    header: BlockHeader
    size_bytes: int
    head: memoryview
    place: Place | None


def parse_row(value: Buffer) -> BlockRow:
    """Return the parsed row. Raise :class:`~replicator.engine.errors.BlockCorrupt`."""
    view = memoryview(value)
    if bytes(view[LOCAL_PREFIX.size : LOCAL_PREFIX.size + 4]) != ELSEWHERE:
        block = view[LOCAL_PREFIX.size :]
        return BlockRow(read_header(block), len(block), block, None)
    _, segment, offset, size = _PLACE.unpack_from(view, LOCAL_PREFIX.size)
    head = view[_HEAD_AT:]
    return BlockRow(read_head(head, size), size, head, Place(segment, offset, size))


def place_in(value: Buffer) -> Place | None:
    """Return the place of a row's block, or None if the block is in the row. This works for damaged rows, too, so that
    they can be deleted."""
    if bytes(value[LOCAL_PREFIX.size : LOCAL_PREFIX.size + 4]) != ELSEWHERE:
        return None
    _, segment, offset, size = _PLACE.unpack_from(value, LOCAL_PREFIX.size)
    return Place(segment, offset, size)


def placed_value(prefix: Buffer, place: Place, block: memoryview, entries: int) -> bytes:
    """Return the row of table ``blocks`` for ``block``, which has ``entries`` entries and whose bytes lie in ``place``.

    The row has the local prefix ``prefix``, the place, and all of the block that is before its entries.
    """
    head = block[: head_bytes(block, entries)]
    return b"".join((prefix, _PLACE.pack(ELSEWHERE, *place), head))


def moved_value(value: bytes, place: Place) -> bytes:
    """Return the row ``value`` of table ``blocks``, changed to the new place of its block."""
    return b"".join((value[: LOCAL_PREFIX.size], _PLACE.pack(ELSEWHERE, *place), value[_HEAD_AT:]))


def placed_row(place: Place, block_key: bytes) -> tuple[bytes, bytes]:
    """Return key and value of a block's row in table ``placed``."""
    return placed_key(place), _PLACED_SIZE.pack(place.size) + block_key


def placed_key(place: Place) -> bytes:
    return _PLACED_KEY.pack(place.segment, place.offset)


def read_places(txn: lmdb.Transaction, database: Any) -> Iterator[Place]:
    """Yield the place of each block in segments, in order. A start reads all of them."""
    for key, value in txn.cursor(db=database):
        yield Place(*_PLACED_KEY.unpack(key), *_PLACED_SIZE.unpack_from(value))


def read_placed(
    txn: lmdb.Transaction, database: Any, segment: int | None = None, *, above: int = -1
) -> Iterator[tuple[Place, bytes]]:
    """Yield the place of each block in segments, and the key of its row in table ``blocks``, in the order of places.
    With ``segment``, yield only blocks of that segment with an offset greater than ``above``."""
    cursor = txn.cursor(db=database)
    if not cursor.set_range(_PLACED_KEY.pack(segment or 0, above + 1)):
        return
    for key, value in cursor:
        found, offset = _PLACED_KEY.unpack(key)
        if segment is not None and found != segment:
            return
        (size,) = _PLACED_SIZE.unpack_from(value)
        yield Place(found, offset, size), bytes(value[_PLACED_SIZE.size :])
