"""Many blocks at once, by their keys: what those need who know which blocks they want."""

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
"""Where a block's header says how many messages it has (:mod:`replicator.engine.log.block`)."""


def gather_blocks(
    store: Store,
    wanted: Sequence[tuple[int, int, int] | None],
    *,
    bytes_max: int,
    notes: Collection[int] = (),
) -> tuple[list[int | None], bytes]:
    """The blocks whose topic, ledger and first entry are given, one after another, and the size of each in bytes; None
    where there is none. The first ones of ``wanted``: at least one, then while they fit into ``bytes_max``. Of those
    numbered in ``notes`` it is the note that they were left out.

    Of other blocks nothing is looked at, the checksum neither. Raises :class:`~replicator.engine.errors.BlockCorrupt`
    for one that the disk does not give.
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
    """How many messages each block of a column says that it has; the blocks must be at least as long as a header. What
    it makes of a note means nothing."""
    offsets = np.frombuffer(blocks.buffers()[1], np.int64, len(blocks) + 1, blocks.offset * 8)
    content = np.frombuffer(blocks.buffers()[2], np.uint8)
    at = offsets[:-1, np.newaxis] + np.arange(MESSAGES_AT, MESSAGES_AT + 4)
    messages: npt.NDArray[np.uint32] = content[at].view("<u4").reshape(-1)
    return messages
