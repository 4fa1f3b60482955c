"""Blocks as Arrow tables: the schemas of the data plane, and turning blocks into Arrow IPC streams and back.

Blocks travel as opaque bytes in a ``large_binary`` column; no entry is looked at on the way. A stream that
comes from the network is checked here before anything of it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa

from replicator.engine.errors import BlockCorrupt
from replicator.engine.store import StoredBlock
from replicator.engine.writer import CopiedBlock
from snapshots.position import Position

BLOCK_SCHEMA: Final = pa.schema(
    [
        ("ledger", pa.uint64()),
        ("first", pa.uint64()),
        ("entries", pa.uint32()),
        ("block", pa.large_binary()),
    ]
)
"""Reading a topic: a row a block, with the local position of its first entry."""

APPEND_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("previous_ledger", pa.uint64()),
        ("previous_entry", pa.int64()),
        ("block", pa.large_binary()),
    ]
)
"""Appending to topics: a row a block, with the origin position that the sender had sent before it."""

Outgoing = tuple[str, Position, bytes]
"""Topic, the origin position sent before, and the block."""


def encode_read(blocks: Sequence[StoredBlock]) -> pa.Buffer:
    """One Arrow IPC stream of :data:`BLOCK_SCHEMA`."""
    return _stream(
        BLOCK_SCHEMA,
        [
            [stored.position.ledger for stored in blocks],
            [stored.position.entry for stored in blocks],
            [stored.header.entries for stored in blocks],
            [stored.block for stored in blocks],
        ],
    )


def encode_append(blocks: Sequence[Outgoing]) -> pa.Buffer:
    """One Arrow IPC stream of :data:`APPEND_SCHEMA`; with no blocks it is a sign of life."""
    return _stream(
        APPEND_SCHEMA,
        [
            [topic for topic, _, _ in blocks],
            [previous.ledger for _, previous, _ in blocks],
            [previous.entry for _, previous, _ in blocks],
            [block for _, _, block in blocks],
        ],
    )


def decode_append(body: bytes) -> dict[str, list[CopiedBlock]]:
    """The blocks of a stream by topic, in order, as views into ``body``.

    Raises :class:`BlockCorrupt` for anything that is not a whole stream of :data:`APPEND_SCHEMA`.
    """
    topics: dict[str, list[CopiedBlock]] = {}
    for topic, ledger, entry, block in _rows(body):
        if topic is None or ledger is None or entry is None or block is None:
            raise BlockCorrupt("the Arrow stream has a row with a missing value")
        topics.setdefault(topic, []).append(CopiedBlock(Position(ledger, entry), block))
    return topics


def _rows(body: bytes) -> Iterator[tuple[str | None, int | None, int | None, memoryview | None]]:
    try:
        with pa.ipc.open_stream(pa.py_buffer(body)) as reader:
            if not reader.schema.equals(APPEND_SCHEMA):
                raise BlockCorrupt(f"the Arrow stream has columns {reader.schema.names}, not {APPEND_SCHEMA.names}")
            batches = list(reader)
        for batch in batches:
            batch.validate(full=True)
            blocks = batch.column("block")
            views = [None if value.as_buffer() is None else memoryview(value.as_buffer()) for value in blocks]
            yield from zip(
                batch.column("topic").to_pylist(),
                batch.column("previous_ledger").to_pylist(),
                batch.column("previous_entry").to_pylist(),
                views,
                strict=True,
            )
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise BlockCorrupt(f"the body is not a whole Arrow IPC stream: {str(error)[:200]}") from None


def _stream(schema: pa.Schema, columns: Sequence[Sequence[object]]) -> pa.Buffer:
    arrays = [pa.array(values, field.type) for values, field in zip(columns, schema, strict=True)]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.record_batch(arrays, schema=schema))
    return sink.getvalue()
