"""Columns of the source's rows, and the values that all rows of a block share.

A row's place has the same columns in both modes, :data:`COLUMNS` for messages and :data:`ENTRY_COLUMNS` for entries.
"""

from __future__ import annotations

from typing import Any, Final

import pyarrow as pa

from replicator.engine.log.block import BlockHeader, BlockKind
from snapshots.position import Position

TIME_MS_MAX: Final = 253_402_300_799_999
"""End of year 9999, where Spark's timestamps end; a later publish time is a broken clock and becomes null."""

BLOCK_TEXTS: Final = ("cluster", "topic", "kind", "origin")
BLOCK_NUMBERS: Final = ("ledger", "incarnation", "origin_ledger")
"""Columns with one value for all entries of a block."""

_POSITION: Final = [("cluster", pa.string()), ("topic", pa.string()), ("ledger", pa.int64()), ("entry", pa.int64())]
_ORIGIN: Final = [
    ("kind", pa.string()),
    ("origin", pa.string()),
    ("incarnation", pa.int64()),
    ("origin_ledger", pa.int64()),
    ("origin_entry", pa.int64()),
]
COLUMNS: Final = pa.schema(
    [
        *_POSITION,
        ("batch_index", pa.int32()),
        ("batch_size", pa.int32()),
        *_ORIGIN,
        ("marker_type", pa.int32()),
        ("key", pa.string()),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("publish_time", pa.timestamp("us", tz="UTC")),
        ("producer_name", pa.string()),
        ("sequence_id", pa.int64()),
        ("payload", pa.binary()),
    ]
)
"""Columns of messages. ``ledger:entry`` is the entry's position in ``cluster``, ``origin_ledger:origin_entry`` that at
its origin.

``kind`` is ``message``, ``marker`` or ``local_marker``. A marker has ``batch_size`` 0 and its message as ``payload``. A
message outside a batch has ``batch_index`` 0 and ``batch_size`` 1. ``payload`` is null for a tombstone. An encrypted
batch cannot be split: its first row has the whole sealed payload, the others none.
"""

ENTRY_COLUMNS: Final = pa.schema(
    [
        *_POSITION,
        ("batch_size", pa.int32()),
        *_ORIGIN,
        ("written_time", pa.timestamp("us", tz="UTC")),
        ("content", pa.binary()),
    ]
)
"""Columns of entries, for ``mode`` set to ``entries``: a row for each entry, as its producer sent it, without reading
it.

``written_time`` is when the origin committed its block.
"""

_KIND_NAMES: Final = {
    BlockKind.MESSAGES: "message",
    BlockKind.MARKERS: "marker",
    BlockKind.LOCAL_MARKERS: "local_marker",
}


def block_columns(cluster: str, topic: str, first: Position, header: BlockHeader) -> dict[str, Any]:
    """Return the columns :data:`BLOCK_TEXTS` and :data:`BLOCK_NUMBERS` of a block that starts at ``first`` in
    ``cluster``."""
    return {
        "cluster": cluster,
        "topic": topic,
        "ledger": first.ledger,
        "kind": _KIND_NAMES[header.kind],
        "origin": header.origin,
        "incarnation": signed(header.incarnation),
        "origin_ledger": header.origin_first.ledger,
    }


def signed(value: int) -> int:
    """Return an unsigned 64-bit number as Spark's bigint, bit for bit."""
    value &= 2**64 - 1
    return value - 2**64 if value >= 2**63 else value
