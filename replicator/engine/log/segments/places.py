"""Where the bytes of a block lie in the segments, and the rows that say so.

A row of table ``blocks`` has after its local prefix either the block itself or, if the bytes lie in a segment, this,
big-endian::

    "RSG1" | segment u32 | offset u64 | size u32 | the block's head

The head is everything before the entries. So whoever counts, seeks or passes over needs no segment. A block that has
parts (:mod:`replicator.engine.log.parts`) is never in a segment.

Table ``placed`` has a row for each such block, by segment and offset: the key of its row in ``blocks``, and its size.
What it does not name is free: that is the only record of what lives in a segment.
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
    """``size`` bytes from ``offset`` of a segment."""

    segment: int
    offset: int
    size: int


class BlockRow(NamedTuple):
    """One row of table ``blocks``. ``head`` is the block, or what stands before its entries if they lie in ``place``;
    it ends with the transaction that the row was read in."""

    header: BlockHeader
    size_bytes: int
    head: memoryview
    place: Place | None


def parse_row(value: Buffer) -> BlockRow:
    """Raises :class:`~replicator.engine.errors.BlockCorrupt`."""
    view = memoryview(value)
    if bytes(view[LOCAL_PREFIX.size : LOCAL_PREFIX.size + 4]) != ELSEWHERE:
        block = view[LOCAL_PREFIX.size :]
        return BlockRow(read_header(block), len(block), block, None)
    _, segment, offset, size = _PLACE.unpack_from(view, LOCAL_PREFIX.size)
    head = view[_HEAD_AT:]
    return BlockRow(read_head(head, size), size, head, Place(segment, offset, size))


def place_in(value: Buffer) -> Place | None:
    """As :func:`parse_row`, the place alone: for who deletes rows, damaged ones too."""
    if bytes(value[LOCAL_PREFIX.size : LOCAL_PREFIX.size + 4]) != ELSEWHERE:
        return None
    _, segment, offset, size = _PLACE.unpack_from(value, LOCAL_PREFIX.size)
    return Place(segment, offset, size)


def placed_value(prefix: Buffer, place: Place, block: memoryview, entries: int) -> bytes:
    """The row of a block whose bytes lie in ``place``."""
    head = block[: head_bytes(block, entries)]
    return b"".join((prefix, _PLACE.pack(ELSEWHERE, *place), head))


def moved_value(value: bytes, place: Place) -> bytes:
    """The same row after its block was moved."""
    return b"".join((value[: LOCAL_PREFIX.size], _PLACE.pack(ELSEWHERE, *place), value[_HEAD_AT:]))


def placed_row(place: Place, block_key: bytes) -> tuple[bytes, bytes]:
    """Key and value of the row of table ``placed``."""
    return placed_key(place), _PLACED_SIZE.pack(place.size) + block_key


def placed_key(place: Place) -> bytes:
    return _PLACED_KEY.pack(place.segment, place.offset)


def read_placed(
    txn: lmdb.Transaction, database: Any, segment: int | None = None, *, above: int = -1
) -> Iterator[tuple[Place, bytes]]:
    """Each block that lies in a segment, or in that one from an offset ``above`` on, and the key of its row in table
    ``blocks``, in the order of their places."""
    cursor = txn.cursor(db=database)
    more = cursor.set_range(_PLACED_KEY.pack(segment or 0, above + 1))
    while more:
        found, offset = _PLACED_KEY.unpack(cursor.key())
        if segment is not None and found != segment:
            return
        value = bytes(cursor.value())
        (size,) = _PLACED_SIZE.unpack_from(value)
        yield Place(found, offset, size), value[_PLACED_SIZE.size :]
        more = cursor.next()
