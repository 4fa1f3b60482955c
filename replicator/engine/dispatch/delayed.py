"""Messages that are to be delivered later: positions by the time at which they are due. Pure; the time is passed in.

Nothing of this is stored: after a restart the log is read again from the mark-delete position, and what is still
not due comes here again. Times are rounded up to ticks of :data:`TICK_MS`, so that nothing comes early and a million
messages for about the same time cost a few compressed bitmaps.
"""

from __future__ import annotations

import heapq
from typing import Final

from replicator.engine.position_set import PositionSet
from snapshots.position import Position

TICK_MS: Final = 10
DELAYED_MAX: Final = 1_000_000
"""Entries of one subscription that may wait; past it nothing more is read until some are due (invariant 11)."""


class DelayedEntries:
    """The delayed entries of one subscription."""

    __slots__ = ("_by_tick", "_count", "_ticks")

    def __init__(self) -> None:
        self._by_tick: dict[int, PositionSet] = {}
        self._ticks: list[int] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def full(self) -> bool:
        return self._count >= DELAYED_MAX

    @property
    def next_due_ms(self) -> int | None:
        """When the first is due, by the wall clock; None if there is none."""
        return self._ticks[0] * TICK_MS if self._ticks else None

    def add(self, position: Position, deliver_at_ms: int) -> None:
        tick = -(-deliver_at_ms // TICK_MS)
        positions = self._by_tick.get(tick)
        if positions is None:
            positions = self._by_tick[tick] = PositionSet()
            heapq.heappush(self._ticks, tick)
        if position not in positions:
            positions.add(position)
            self._count += 1

    def take_due(self, now_ms: int) -> PositionSet:
        """Remove and return what is due."""
        due = PositionSet()
        while self._ticks and self._ticks[0] * TICK_MS <= now_ms:
            positions = self._by_tick.pop(heapq.heappop(self._ticks))
            self._count -= len(positions)
            due.update(positions)
        return due

    def clear(self) -> None:
        self._by_tick.clear()
        self._ticks.clear()
        self._count = 0
