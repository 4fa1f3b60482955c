"""Reading of many blocks at once by their keys."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from replicator.engine.log.block import Buffer
from replicator.engine.log.left_out import note_of
from replicator.engine.log.segments.places import parse_row
from replicator.engine.log.store import Store
from replicator.engine.log.store_tables import BLOCK_KEY
from snapshots.position import Position

MESSAGES_AT: Final = 20
"""Offset of the number of messages in a block's header (:mod:`replicator.engine.log.block`)."""


def gather_blocks(
    store: Store,
    wanted: Sequence[tuple[int, int, int] | None],
    *,
    bytes_max: int,
    notes: Collection[int] = (),
) -> tuple[list[int | None], bytes]:
    """Return the size of each block in bytes, None for a missing one, and the blocks, one after another.

    ``wanted`` has topic, ledger and first entry of each. At least one block is read, then as many as fit into
    ``bytes_max``. For indexes in ``notes`` the result has the note that the block was left out. Checksums of the others
    are not verified. Raises :class:`~replicator.engine.errors.BlockCorrupt` for a block that the disk cannot read.
    """
    sizes: list[int | None] = []
    pieces: list[Buffer] = []
    taken = 0
    with store.reading_blocks() as txn:
        for number, key in enumerate(wanted):
            value = None if key is None else txn.get(BLOCK_KEY.pack(*key))
            if key is None or value is None:
                sizes.append(None)
                continue
            row = parse_row(value)
            note = note_of(row.header) if number in notes else None
            size = row.size_bytes if note is None else len(note)
            if pieces and taken + size > bytes_max:
                break
            sizes.append(size)
            pieces.append(store.body_at(row, key[0], Position(*key[1:])) if note is None else note)
            taken += size
        return sizes, b"".join(pieces)  # before the transaction ends: the pieces lie in its pages


def messages_of(blocks: pa.Array) -> npt.NDArray[np.uint32]:
    """Return the number of messages that the header of each block in a column has. Blocks must be at least as long as a
    header. For a note the number means nothing."""
    offsets = np.frombuffer(blocks.buffers()[1], np.int64, len(blocks) + 1, blocks.offset * 8)
    content = np.frombuffer(blocks.buffers()[2], np.uint8)
    at = offsets[:-1, np.newaxis] + np.arange(MESSAGES_AT, MESSAGES_AT + 4)
    messages: npt.NDArray[np.uint32] = content[at].view("<u4").reshape(-1)
    return messages
