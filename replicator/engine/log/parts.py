"""Batches of which a link left messages out: which they are, in a block and in a topic. Pure.

Invariant (DESIGN §3): 5. A batch is copied under its identity though a link's SQL filter leaves out some of its
messages: what is left keeps its indexes. The cluster that has such a batch has nothing to deliver of the rest, and
never says that it was consumed.

1. The block says by itself which messages are absent, so whoever copies it on needs to know nothing more.
2. For each block with such batches the store has a row with the indexes of its entries, written with the block; the
   absent messages are read from the block when they are asked for.
3. When the block is trimmed, its batches become holes (:mod:`replicator.engine.log.left_out`): less is claimed of them
   than is known, which repeats messages after a failback at worst.

So what is kept is bounded (invariant 11): a row a block, a bit an entry in memory, and after that the limit on holes.
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
    """The section of a block: for each entry that lacks messages which ones; empty if none does."""
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
    """What :func:`encode_parts` was given; raises :class:`BlockCorrupt` for anything else."""
    count = int.from_bytes(section[:_COUNT_BYTES], "little")
    bits_at = _COUNT_BYTES * (1 + count)
    if not 0 < count <= len(batch_sizes) or len(section) < bits_at:
        raise BlockCorrupt(f"a block of {len(batch_sizes)} entries says that {count} lack messages")
    entries = np.frombuffer(section, "<u4", count, _COUNT_BYTES).astype(np.int64)
    if (entries[1:] <= entries[:-1]).any() or entries[-1] >= len(batch_sizes):
        raise BlockCorrupt("what a block says of the batches that lack messages is not in order")
    sizes = batch_sizes[entries].astype(np.int64)
    lengths = (sizes + 7) // 8
    if int(lengths.sum()) != len(section) - bits_at:
        raise BlockCorrupt("what a block says of the batches that lack messages is cut short, or too long")
    found: dict[int, BitMap] = {}
    for entry, size, length in zip(entries.tolist(), sizes.tolist(), lengths.tolist(), strict=True):
        flags = np.unpackbits(np.frombuffer(section, np.uint8, length, bits_at), bitorder="little")
        indexes = BitMap(np.flatnonzero(flags).astype(np.uint32))
        if not 0 < len(indexes) < size or indexes.max() >= size:
            raise BlockCorrupt(f"a batch of {size} messages is said to lack {len(indexes)}")
        found[entry] = indexes
        bits_at += length
    return found


class PartlyHere:
    """The batches of one topic of which only a part is here.

    ``absent`` gives the indexes that the batch at a local position lacks, ``size`` how many it would have.
    """

    __slots__ = ("_absent", "_size", "local", "origins")

    def __init__(self, absent: Callable[[Position], BitMap], size: Callable[[Position], int]) -> None:
        self._absent = absent
        self._size = size
        self.local = PositionSet()
        self.origins: dict[str, PositionSet] = {}
        """The same entries, by their origin, as positions there."""

    def add(self, local: Position, origin: str, origin_position: Position) -> None:
        self.local.add(local)
        self.origins.setdefault(origin, PositionSet()).add(origin_position)

    def absent(self, position: Position) -> BitMap | None:
        """The indexes that the batch at ``position`` lacks; None if it is whole. Raises :class:`BlockCorrupt`."""
        return self._absent(position) if position in self.local else None

    def present(self, position: Position) -> BitMap:
        """What is here of the batch at ``position``, which is one of :attr:`local`. Raises :class:`BlockCorrupt`."""
        return BitMap(range(self._size(position))) - self._absent(position)
