"""The content of a link's frame since protocol 7: a table of rows, and the blocks behind it. Pure.

Most frames have a few small blocks. An Arrow stream around them takes longer to write and to read than the blocks, and
is larger. Frames for earlier versions, and those of Spark's tasks, are Arrow streams (:mod:`.arrow`);
:func:`decode_frame` reads both forms.

Layout, little-endian::

    magic "RFR1" | rows u32 | table's bytes u32 | notes' bytes u32 | table | notes | blocks, one after another

A row of the table is ``topic's bytes u16 | previous ledger u64 | previous entry i64 | left out u8 | block's bytes u32 |
topic``. A row without a topic has the topic of the row before. ``previous`` and ``left out`` are those of
:class:`~replicator.engine.log.requests.CopiedBlock`. Notes say which messages are traced
(:mod:`replicator.tracing.notes`).

Invariant (DESIGN §3): 11. All lengths are a peer's claims. They are compared with the frame, whose size is limited;
nothing is allocated for them. The number of rows is limited, too, and whoever decodes a large frame can pause.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Sequence
from typing import Final

from replicator.engine.log.arrow import (
    JOINED_BYTES_MAX,
    ROWS_AT_ONCE,
    Outgoing,
    at_once,
    check_rows,
    decode_append_by_steps,
    large_pieces,
    notes_of,
)
from replicator.engine.log.block import Buffer
from replicator.engine.log.link_frame import damaged_frame
from replicator.engine.log.requests import CopiedBlock
from snapshots.position import Position

MAGIC: Final = b"RFR1"
"""Magic bytes of a frame of rows. Arrow streams begin with ``ff ff ff ff`` instead."""
_HEAD: Final = struct.Struct("<4sIII")
_ROW: Final = struct.Struct("<HQqBI")
TOPIC_BYTES_MAX: Final = (1 << 16) - 1
_LEFT_OUT: Final = (False, True)

Decoded = tuple[dict[str, list[CopiedBlock]], bytes]
"""Blocks of a frame by topic, in order, and its notes."""


def encode_rows(blocks: Sequence[Outgoing], notes: bytes = b"") -> list[Buffer]:
    """Return a frame's content, in pieces; large blocks are not copied. Without blocks it is a sign of life."""
    table = bytearray()
    before = ""
    for topic, (ledger, entry), block, left_out in blocks:
        name = b"" if topic == before else topic.encode()
        before = topic
        table += _ROW.pack(len(name), ledger, entry, left_out, len(block))
        table += name
    head = _HEAD.pack(MAGIC, len(blocks), len(table), len(notes))
    pieces: list[Buffer] = [head, table, notes, *(outgoing.block for outgoing in blocks)]
    if sum(map(len, pieces)) <= JOINED_BYTES_MAX:
        return [b"".join(pieces)]
    return list(large_pieces(pieces))


def decode_frame(body: Buffer) -> Decoded:
    """Return the blocks of a frame's content by topic, in order, and its notes. Blocks are views into ``body``.

    Raises :class:`BlockCorrupt` if the content has neither form, or is not whole, and :class:`FrameTooLarge` if it has
    too many rows.
    """
    return at_once(decode_frame_by_steps(body))


def decode_frame_by_steps(body: Buffer) -> Generator[None, None, Decoded]:
    """Do the work of :func:`decode_frame`. Yield after every :data:`ROWS_AT_ONCE` rows: there the caller may pause."""
    view = memoryview(body)
    if bytes(view[: len(MAGIC)]) != MAGIC:
        return (yield from decode_append_by_steps(view)), notes_of(view)
    if len(view) < _HEAD.size:
        raise damaged_frame(f"the link's frame of {len(view)} bytes ends inside its head")
    _, rows, table_bytes, notes_bytes = _HEAD.unpack_from(view)
    notes_at = _HEAD.size + table_bytes
    at = notes_at + notes_bytes
    if at > len(view) or rows * _ROW.size > table_bytes:
        raise damaged_frame(
            f"the link's frame of {len(view)} bytes has no room for the table that it says it has, of {rows} rows and "
            f"{table_bytes} bytes"
        )
    check_rows(rows)
    topics: dict[str, list[CopiedBlock]] = {}
    size, row_bytes, unpack_from = len(view), _ROW.size, _ROW.unpack_from  # once, for there may be thousands of rows
    row_at = _HEAD.size
    of_topic: list[CopiedBlock] | None = None
    for row in range(rows):
        if row and not row % ROWS_AT_ONCE:
            yield
        name_at = row_at + row_bytes
        if name_at > notes_at:
            raise damaged_frame("the table of the link's frame ends inside a row")
        name_bytes, ledger, entry, left_out, block_bytes = unpack_from(view, row_at)
        row_at = name_at + name_bytes
        block_at, at = at, at + block_bytes
        if row_at > notes_at or at > size or left_out >= len(_LEFT_OUT):
            raise damaged_frame("a row in the table of the link's frame is wrong, or says more than the frame has")
        if name_bytes:
            try:
                name = str(view[name_at:row_at], "utf-8")
            except UnicodeDecodeError:
                raise damaged_frame("a row in the table of the link's frame has a topic that is no text") from None
            of_topic = topics.setdefault(name, [])
        elif of_topic is None:
            raise damaged_frame("the first row in the table of the link's frame has no topic")
        of_topic.append(CopiedBlock(Position(ledger, entry), view[block_at:at], _LEFT_OUT[left_out]))
    if row_at != notes_at or at != size:
        raise damaged_frame("the link's frame has more bytes than its table says")
    return topics, bytes(view[notes_at : notes_at + notes_bytes])
