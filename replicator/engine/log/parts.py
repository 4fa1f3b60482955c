"""Batches that lack messages because a link left them out, in a block and in a topic. Pure.

Invariant (DESIGN §3): 5. If a link's SQL filter leaves out some messages of a batch, the batch keeps its identity, and
the remaining messages keep their indexes. A cluster with such a batch never claims that the absent messages were
consumed.

1. The block itself says which messages are absent, so copying it further needs no other information.
2. For each block with such batches the store has a row with the indexes of its entries, written with the block. The
   absent messages are read from the block when needed.
3. When the block is trimmed, its batches become holes (:mod:`replicator.engine.log.left_out`). That claims too little,
   and at worst repeats messages after a failback.

Memory and rows are bounded (invariant 11): one row for each block, one bit for each entry in memory, and the limit on
holes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from replicator.engine.errors import BlockCorrupt
from snapshots.position import Position
from snapshots.position_set import PositionSet

_COUNT_BYTES: Final = 4

Sizes = npt.NDArray[np.uint32]


def encode_parts(absent: Mapping[int, BitMap], batch_sizes: Sizes) -> bytes:
    """Return the section of a block that has, for each entry that lacks messages, their indexes. Empty if no entry
    lacks any."""
    if not absent:
        return b""
    entries = sorted(absent)
    bits = []
    for entry in entries:
        indexes, size = absent[entry], int(batch_sizes[entry])
        assert 0 < len(indexes) < size, f"a batch of {size} cannot lack {len(indexes)}: it is whole, or left out"
        assert indexes.max() < size
        flags = np.zeros(size, np.uint8)
        flags[np.asarray(indexes)] = 1
        bits.append(np.packbits(flags, bitorder="little").tobytes())
    return b"".join([np.asarray([len(entries), *entries], "<u4").tobytes(), *bits])


def decode_parts(section: bytes | bytearray | memoryview, batch_sizes: Sizes) -> dict[int, BitMap]:
    """Return the absent indexes by entry, decoded from a section of :func:`encode_parts`. Raise :class:`BlockCorrupt`
    if it is malformed."""
    count = int.from_bytes(section[:_COUNT_BYTES], "little")
    bits_at = _COUNT_BYTES * (1 + count)
    if not 0 < count <= len(batch_sizes) or len(section) < bits_at:
        raise BlockCorrupt(
            f"a block of {len(batch_sizes)} entries lists {count} batches from which a filter removed messages, which "
            "cannot be: it is damaged"
        )
    entries = np.frombuffer(section, "<u4", count, _COUNT_BYTES).astype(np.int64)
    if (entries[1:] <= entries[:-1]).any() or entries[-1] >= len(batch_sizes):
        raise BlockCorrupt("a block's list of messages that a filter removed is not in order: it is damaged")
    sizes = batch_sizes[entries].astype(np.int64)
    lengths = (sizes + 7) // 8
    if int(lengths.sum()) != len(section) - bits_at:
        raise BlockCorrupt("a block's list of messages that a filter removed has a wrong length: it is damaged")
    found: dict[int, BitMap] = {}
    for entry, size, length in zip(entries.tolist(), sizes.tolist(), lengths.tolist(), strict=True):
        flags = np.unpackbits(np.frombuffer(section, np.uint8, length, bits_at), bitorder="little")
        indexes = BitMap(np.flatnonzero(flags).astype(np.uint32))
        if not 0 < len(indexes) < size or indexes.max() >= size:
            raise BlockCorrupt(
                f"a block says that a filter removed {len(indexes)} messages of a batch of {size}, which cannot be: "
                "it is damaged"
            )
        found[entry] = indexes
        bits_at += length
    return found


class PartialBatches:
    """Batches of one topic that lack messages.

    ``absent`` returns the indexes that the batch at a local position lacks. ``size`` returns its original number of
    messages.
    """

    __slots__ = ("_absent", "_size", "local", "origins")

    def __init__(self, absent: Callable[[Position], BitMap], size: Callable[[Position], int]) -> None:
        self._absent = absent
        self._size = size
        self.local = PositionSet()
        self.origins: dict[str, PositionSet] = {}
        """Origin positions of the same entries, by origin."""

    def add(self, local: Position, origin: str, origin_position: Position) -> None:
        self.local.add(local)
        self.origins.setdefault(origin, PositionSet()).add(origin_position)

    def absent(self, position: Position) -> BitMap | None:
        """Return the indexes that the batch at ``position`` lacks, or None if it is whole. Raise
        :class:`BlockCorrupt`."""
        return self._absent(position) if position in self.local else None

    def present(self, position: Position) -> BitMap:
        """Return the indexes that the batch at ``position`` still has. The batch must be in :attr:`local`. Raise
        :class:`BlockCorrupt`."""
        return BitMap(range(self._size(position))) - self._absent(position)
