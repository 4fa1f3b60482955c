"""Rows of a link's segment for the SQL of the link: its messages, between its unchanged blocks. No I/O.

A lane's rows come in the order of its segment: a description of the segment, then each block unchanged, followed by a
row for each of its messages. The SQL decides on the messages only; all other rows pass. The sink gets the remaining
rows in the same order, so it has each block when it learns which of its messages stay.

An entry that is encrypted, a chunk, or unreadable is no message to the SQL (:mod:`replicator.pipeline.live.filtering`):
its row passes. Markers, and the service's own topic, have no rows but their block's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any, Final

import numpy as np
import pyarrow as pa

from replicator.engine.errors import BlockCorrupt, EngineError
from replicator.engine.log.block import BlockKind, BlockView, verify_block
from replicator.engine.log.entry import decode_entry
from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.pipeline.live.filtering import is_readable_by_sql
from replicator.pipeline.source.message_rows import MessageRows
from replicator.pipeline.source.schema import COLUMNS, block_columns
from snapshots.position import Position


class Row(IntEnum):
    """Kind of a row."""

    MESSAGE = 0
    SEALED = 1
    """Entry that the SQL cannot read."""
    BLOCK = 2
    """Block, whose messages follow."""
    WHOLE = 3
    """Block that is sent unchanged, whatever the SQL says: its messages have no rows."""
    SEGMENT = 4
    """Description of the lane's work, in JSON."""
    MISSING = 5
    """Block that is not at the source any more."""
    FAILED = 6
    """Error that kept the remaining rows from being made."""


CONTROL: Final = pa.schema(
    [
        ("_row", pa.int32()),
        ("_block", pa.int32()),
        ("_first", pa.int32()),
        ("_content", pa.binary()),
    ]
)
"""Columns of control rows. ``_block`` is a block's number in the segment, ``_first`` the number of an entry's first
message in its block."""


def row_schema(sql: Sequence[str]) -> pa.Schema:
    """Return the columns of rows that the expressions ``sql`` may refer to: those whose names occur in them."""
    text = " ".join(sql).lower()
    named = [field for field in COLUMNS if field.name in text or field.name in ("kind", "batch_index")]
    return pa.schema([*CONTROL, *named])


def control_row(schema: pa.Schema, row: Row, block: int = 0, content: bytes | None = None) -> pa.RecordBatch:
    """Return a row that is not a message."""
    values: dict[str, Any] = {"_row": int(row), "_block": block, "_first": 0, "_content": content}
    values["kind"] = row.name.lower()
    return pa.RecordBatch.from_arrays(
        [pa.array([values.get(field.name)], field.type) for field in schema], schema=schema
    )


def block_rows(
    schema: pa.Schema, cluster: str, topic: str, number: int, local: tuple[int, int], block: bytes
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a block that lies at ``local`` in ``cluster``."""
    try:
        header = verify_block(block)
    except BlockCorrupt:  # for the sink to find out, and to say
        yield control_row(schema, Row.WHOLE, number, block)
        return
    if header.kind is not BlockKind.MESSAGES or topic == EPOCHS_TOPIC:
        yield control_row(schema, Row.WHOLE, number, block)
        return
    yield control_row(schema, Row.BLOCK, number, block)
    view = BlockView(block, header)
    rows = MessageRows(schema)
    ends = np.cumsum(view.batch_sizes, dtype=np.int64).tolist()
    place = block_columns(cluster, topic, Position(*local), header)
    place["_block"] = number
    for index, entry in enumerate(view.entries()):
        place["entry"] = local[1] + index
        place["origin_entry"] = header.origin_first.entry + index
        place["_first"] = ends[index - 1] if index else 0
        place["_row"] = int(Row.MESSAGE)
        try:
            seen = is_readable_by_sql(decode_entry(entry, check=False)[0])
            if seen:
                rows.add_entry(place, entry, header.kind, tuple(view.absent.get(index, ())))
        except EngineError:
            seen = False
        if not seen:
            if len(rows):
                yield rows.take()
            yield _sealed(schema, place)
        elif rows.full:
            yield rows.take()
    if len(rows):
        yield rows.take()


def _sealed(schema: pa.Schema, place: dict[str, Any]) -> pa.RecordBatch:
    values = place | {"_row": int(Row.SEALED), "kind": "sealed"}
    return pa.RecordBatch.from_arrays(
        [pa.array([values.get(field.name)], field.type) for field in schema], schema=schema
    )
