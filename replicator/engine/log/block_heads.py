"""Heads of blocks, without the entries, as one Arrow IPC stream.

A block's head says which entries the block holds, and has two checksums of their bytes. So two logs can be compared
without moving their entries. Only reading the entries shows whether their bytes still match the checksums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from replicator.engine.log.block import BlockHeader
from snapshots.position import Position

_COLUMNS: Final = (
    "ledger",
    "first",
    "kind",
    "origin",
    "incarnation",
    "origin_ledger",
    "origin_first",
    "entries",
    "messages",
    "publish_time_ms",
    "size_bytes",
    "parts_bytes",
    "checksums",
)
HEADS_SCHEMA: Final = pa.schema([*((name, pa.uint64()) for name in _COLUMNS), ("sizes", pa.large_binary())])
"""One row for each block. ``origin`` is an index into the names in the schema's metadata (``origins``, commas between
them); ``checksums`` has the header's in its upper half and the body's in the lower. ``sizes`` are the batch sizes as
little-endian u32, empty if all are equal."""


@dataclass(frozen=True, slots=True)
class BlockHead:
    """One block: its local position, its header, its length, and its checksums as in :data:`HEADS_SCHEMA`."""

    first: Position
    header: BlockHeader
    size_bytes: int
    checksums: int
    sizes: bytes


def head_of(first: Position, header: BlockHeader, block: memoryview, size_bytes: int) -> BlockHead:
    """Return the head of a block of ``size_bytes`` whose header was read. Only the bytes of ``block`` before the
    entries are used."""
    at = header.columns_at + 4 * header.entries
    sizes = np.frombuffer(block, "<u4", header.entries, at)
    uneven = bool((sizes != sizes[0]).any())
    return BlockHead(first, header, size_bytes, checksums_of(block), sizes.tobytes() if uneven else b"")


def checksums_of(block: memoryview) -> int:
    """Return the two checksums that a block carries, the header's in the upper half. Neither is verified."""
    return int.from_bytes(block[4:8], "little") << 32 | int.from_bytes(block[8:12], "little")


def encode_heads(heads: Sequence[BlockHead]) -> pa.Buffer:
    """Return ``heads`` as one Arrow IPC stream of :data:`HEADS_SCHEMA`."""
    names = sorted({head.header.origin for head in heads})
    numbers = {name: number for number, name in enumerate(names)}
    rows = [
        (
            *head.first,
            int(head.header.kind),
            numbers[head.header.origin],
            head.header.incarnation,
            *head.header.origin_first,
            head.header.entries,
            head.header.messages,
            head.header.publish_time_ms,
            head.size_bytes,
            head.header.parts_bytes,
            head.checksums,
        )
        for head in heads
    ]
    # Not by `pa.array`: that imports pandas where it is installed, half a second in which a worker stands still.
    table = np.array(rows, dtype=np.uint64).reshape(len(rows), len(_COLUMNS))
    arrays: list[Any] = [
        pa.Array.from_buffers(pa.uint64(), len(rows), [None, pa.py_buffer(column.tobytes())]) for column in table.T
    ]
    offsets = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(head.sizes) for head in heads], out=offsets[1:])
    sizes = pa.py_buffer(b"".join(head.sizes for head in heads))
    arrays.append(pa.Array.from_buffers(pa.large_binary(), len(rows), [None, pa.py_buffer(offsets.tobytes()), sizes]))
    schema = HEADS_SCHEMA.with_metadata({"origins": ",".join(names)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=schema))
    return sink.getvalue()
