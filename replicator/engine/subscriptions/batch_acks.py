"""Acknowledged messages of batches that are acknowledged in part. Pure.

They are a mapping from position to the bitmap of acknowledged indexes, kept in chunks of :data:`BATCH_CHUNK_ENTRIES`
entry ids. A chunk is one row of the store. When the mark-delete position passes a chunk, the whole chunk is forgotten.
So the cost of saving and forgetting does not grow with the number of partly acknowledged batches.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, MutableMapping
from typing import Final

from pyroaring import BitMap

from snapshots.position import Position

BATCH_CHUNK_SHIFT: Final = 8
BATCH_CHUNK_ENTRIES: Final = 1 << BATCH_CHUNK_SHIFT
"""Number of entry ids in a chunk, whose bitmaps take some kilobytes: little to write again. 100,000 open batches are
some hundred rows to load."""

ChunkId = tuple[int, int]
"""Ledger, and the quotient of entry ids by :data:`BATCH_CHUNK_ENTRIES`."""


def batch_chunk_of(position: Position) -> ChunkId:
    return position[0], position[1] >> BATCH_CHUNK_SHIFT


class BatchAcks(MutableMapping[Position, BitMap]):
    """Acknowledged indexes by position. Bitmaps are stored serialized: 60 bytes for each batch instead of several
    hundred."""

    __slots__ = ("_chunks", "_count", "_order")

    def __init__(self, batches: Iterable[tuple[Position, BitMap]] = ()) -> None:
        self._chunks: dict[ChunkId, dict[int, bytes]] = {}
        self._order: list[ChunkId] = []
        self._count = 0
        for position, indexes in batches:
            self[position] = indexes

    def __getitem__(self, position: Position) -> BitMap:
        return BitMap.deserialize(self._chunks[batch_chunk_of(position)][position[1]])

    def __contains__(self, position: object) -> bool:
        return isinstance(position, Position) and position.entry in self._chunks.get(batch_chunk_of(position), ())

    def __setitem__(self, position: Position, indexes: BitMap) -> None:
        self.put_serialized(position, indexes.serialize())

    def __delitem__(self, position: Position) -> None:
        chunk_id = batch_chunk_of(position)
        chunk = self._chunks[chunk_id]
        del chunk[position[1]]
        self._count -= 1
        if not chunk:
            del self._chunks[chunk_id]
            del self._order[bisect_left(self._order, chunk_id)]

    def __iter__(self) -> Iterator[Position]:
        """Yield the positions in order."""
        for chunk_id in self._order:
            for entry in sorted(self._chunks[chunk_id]):
                yield Position(chunk_id[0], entry)

    def __len__(self) -> int:
        return self._count

    def put_serialized(self, position: Position, indexes: bytes) -> None:
        chunk_id = batch_chunk_of(position)
        chunk = self._chunks.get(chunk_id)
        if chunk is None:
            chunk = self._chunks[chunk_id] = {}
            insort(self._order, chunk_id)
        self._count += position[1] not in chunk
        chunk[position[1]] = indexes

    def chunk(self, chunk_id: ChunkId) -> list[tuple[int, bytes]]:
        """Return the entry ids of a chunk with their serialized bitmaps, in order; empty if the chunk has none."""
        return sorted(self._chunks.get(chunk_id, {}).items())

    def chunk_ids(self) -> list[ChunkId]:
        return list(self._order)

    def between(self, ledger: int, first: int, last: int) -> Iterator[tuple[int, BitMap]]:
        """Yield the entry ids from ``first`` to ``last``, both inclusive, that have acknowledged indexes, with these
        indexes."""
        at = bisect_left(self._order, (ledger, first >> BATCH_CHUNK_SHIFT))
        while at < len(self._order) and self._order[at] <= (ledger, last >> BATCH_CHUNK_SHIFT):
            for entry, indexes in self.chunk(self._order[at]):
                if first <= entry <= last:
                    yield entry, BitMap.deserialize(indexes)
            at += 1

    def copy(self) -> BatchAcks:
        """Return an independent copy. Bitmaps stay serialized."""
        copied = BatchAcks()
        copied._chunks = {chunk_id: dict(chunk) for chunk_id, chunk in self._chunks.items()}
        copied._order, copied._count = list(self._order), self._count
        return copied

    def discard_through(self, position: Position) -> None:
        """Forget every batch at or below ``position``."""
        if not self._order:
            return
        at = bisect_left(self._order, (position[0], max(position[1], 0) >> BATCH_CHUNK_SHIFT))
        for chunk_id in self._order[:at]:
            self._count -= len(self._chunks.pop(chunk_id))
        del self._order[:at]
        if self._order and self._order[0][0] == position[0]:
            chunk = self._chunks[self._order[0]]
            for entry in [entry for entry in chunk if entry <= position[1]]:
                del self[Position(position[0], entry)]
