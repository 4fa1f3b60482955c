"""A bounded cache of the blocks that subscriptions and links are reading, and of those that were just committed.

Invariant (DESIGN §3): 11, what the cache holds is limited by the bytes that blocks and their objects take. A look-up,
an insertion and an eviction cost the same however full the cache is.

Blocks lie in slots of :data:`SLOT_ENTRIES` positions of one ledger, each in every slot that it touches. So a search
looks at the blocks of one slot only.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import OrderedDict
from typing import Final

from replicator.engine.log.block import BlockView
from snapshots.position import Position

CACHE_BYTES_MAX: Final = 64 * 1024 * 1024
SLOT_ENTRIES: Final = 256
"""A slot holds that many blocks at most."""
BLOCK_OBJECT_BYTES: Final = 1_400
"""The memory of a cached block beside its bytes: its view, header, positions and its places in the cache, measured."""

_Key = tuple[int, Position]
_Slot = tuple[int, int]
"""A ledger, and the number of the slot in it."""


class BlockCache:
    """Least recently used blocks go first once the cache holds more than ``bytes_max``; with 0 it holds nothing.

    One block is kept whatever its size: a large one would otherwise be read again for each of its entries.
    """

    __slots__ = ("_blocks", "_bytes", "_bytes_max", "_slots")

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._blocks: OrderedDict[_Key, BlockView] = OrderedDict()
        self._slots: dict[int, dict[_Slot, list[int]]] = {}
        """By topic and slot, the first entries of the blocks that touch the slot, in order."""

    def __len__(self) -> int:
        return len(self._blocks)

    @property
    def size_bytes(self) -> int:
        """The bytes of the cached blocks, with those of their objects."""
        return self._bytes

    def get(self, topic_id: int, position: Position) -> tuple[Position, BlockView] | None:
        """Return the first position and the view of the cached block that holds ``position``; None if there is none."""
        ledger, entry = position
        slots = self._slots.get(topic_id)
        firsts = None if slots is None else slots.get((ledger, entry // SLOT_ENTRIES))
        if firsts is None:
            return None
        at = bisect_right(firsts, entry) - 1
        if at < 0:
            return None
        key = (topic_id, Position(ledger, firsts[at]))
        view = self._blocks[key]
        if entry >= firsts[at] + len(view):
            return None
        self._blocks.move_to_end(key)
        return key[1], view

    def discard_through(self, topic_id: int, position: Position) -> None:
        """Forget the blocks of a topic that begin at or below ``position``: they were trimmed."""
        slots = self._slots.get(topic_id, {})
        reached = position.ledger, position.entry // SLOT_ENTRIES
        found = {
            Position(slot[0], first)
            for slot, firsts in slots.items()
            if slot <= reached
            for first in firsts
            if (slot[0], first) <= position
        }
        for first in found:
            self._remove((topic_id, first), self._blocks.pop((topic_id, first)))

    def put(self, topic_id: int, first: Position, view: BlockView) -> None:
        """Keep a block that begins at ``first``, and evict others if there is no room for it."""
        key = (topic_id, first)
        if key in self._blocks:
            return
        self._blocks[key] = view
        slots = self._slots.get(topic_id)
        if slots is None:
            slots = self._slots[topic_id] = {}
        ledger, entry = first
        for slot in _touched(entry, view):
            firsts = slots.get((ledger, slot))
            if firsts is None:
                slots[ledger, slot] = [entry]
            elif firsts[-1] > entry:
                insort(firsts, entry)
            else:
                firsts.append(entry)
        self._bytes += len(view.block) + BLOCK_OBJECT_BYTES
        while self._bytes > self._bytes_max and len(self._blocks) > bool(self._bytes_max):
            self._remove(*self._blocks.popitem(last=False))

    def _remove(self, key: _Key, view: BlockView) -> None:
        topic_id, (ledger, entry) = key
        slots = self._slots[topic_id]
        for slot in _touched(entry, view):
            firsts = slots[ledger, slot]
            firsts.pop(bisect_right(firsts, entry) - 1)
            if not firsts:
                del slots[ledger, slot]
        if not slots:
            del self._slots[topic_id]
        self._bytes -= len(view.block) + BLOCK_OBJECT_BYTES


def _touched(entry: int, view: BlockView) -> range:
    """Return the numbers of the slots that the block touches whose first entry is ``entry``."""
    return range(entry // SLOT_ENTRIES, (entry + len(view) - 1) // SLOT_ENTRIES + 1)
