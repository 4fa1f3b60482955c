"""A bounded cache of the blocks that subscriptions are reading, so that a large block is not read entry by entry."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from typing import Final

from replicator.engine.log.block import BlockView
from snapshots.position import BEFORE_ALL, Position

CACHE_BYTES_MAX: Final = 64 * 1024 * 1024

_Key = tuple[int, Position]


class BlockCache:
    """Least recently used blocks go first once the cache holds more than ``bytes_max``."""

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._blocks: OrderedDict[_Key, tuple[BlockView, int]] = OrderedDict()
        self._order: list[_Key] = []

    def get(self, topic_id: int, position: Position) -> tuple[Position, BlockView] | None:
        """The first position and the view of the cached block that holds ``position``."""
        at = bisect_right(self._order, (topic_id, position)) - 1
        if at < 0:
            return None
        key = self._order[at]
        view, _ = self._blocks[key]
        if key[0] != topic_id or key[1].ledger != position.ledger or position.entry >= key[1].entry + len(view):
            return None
        self._blocks.move_to_end(key)
        return key[1], view

    def discard_through(self, topic_id: int, position: Position) -> None:
        """Forget the blocks of a topic that lie at or below ``position``: they were trimmed."""
        start = bisect_right(self._order, (topic_id, BEFORE_ALL))
        end = bisect_right(self._order, (topic_id, position))
        for key in self._order[start:end]:
            _, freed = self._blocks.pop(key)
            self._bytes -= freed
        del self._order[start:end]

    def put(self, topic_id: int, first: Position, view: BlockView, size_bytes: int) -> None:
        key = (topic_id, first)
        if key in self._blocks:
            return
        self._blocks[key] = (view, size_bytes)
        insort(self._order, key)
        self._bytes += size_bytes
        while self._bytes > self._bytes_max and len(self._blocks) > 1:
            oldest, (_, freed) = self._blocks.popitem(last=False)
            self._order.pop(bisect_right(self._order, oldest) - 1)
            self._bytes -= freed
