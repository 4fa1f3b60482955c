"""Messages with delayed delivery: their positions by due time. Pure; the time is passed in.

They are not stored. After a restart the log is read again from the mark-delete position, and messages that are not due
yet come here again. Times are rounded up to ticks of :data:`TICK_MS`. So no message comes early, and a million messages
for about the same time cost a few compressed bitmaps.
"""

from __future__ import annotations

import heapq
from typing import Final

from snapshots.position import Position
from snapshots.position_set import PositionSet

TICK_MS: Final = 10
TICKS_AT_ONCE: Final = 10_000
"""Ticks that are taken at once, which takes some milliseconds. After a long sleep a million may be due."""
DELAYED_MAX: Final = 1_000_000
"""Limit of delayed entries of one subscription. Beyond it nothing more is read until some are due (invariant 11)."""


class DelayedEntries:
    """Delayed entries of one subscription."""

    __slots__ = ("_by_tick", "_kept", "_passed", "_ticks", "_waiting")

    def __init__(self) -> None:
        self._by_tick: dict[int, PositionSet] = {}
        self._ticks: list[int] = []
        self._waiting = PositionSet()
        """Entries that still wait. Other entries among the ticks do not count any more."""
        self._kept = 0
        """Number of entries among the ticks."""

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def full(self) -> bool:
        return self._kept >= DELAYED_MAX and len(self._waiting) >= DELAYED_MAX  # most often nothing is kept

    @property
    def next_due_ms(self) -> int | None:
        """Wall-clock time at which the first entry is due; None if there is none."""
        return self._ticks[0] * TICK_MS if self._ticks else None

    def add(self, position: Position, deliver_at_ms: int) -> None:
        tick = -(-deliver_at_ms // TICK_MS)
        positions = self._by_tick.get(tick)
        if positions is None:
            positions = self._by_tick[tick] = PositionSet()
            heapq.heappush(self._ticks, tick)
        if position not in positions:
            positions.add(position)
            self._kept += 1
        self._waiting.add(position)

    def is_due(self, now_ms: int) -> bool:
        """Return whether :meth:`take_due` would return anything now."""
        return bool(self._ticks) and self._ticks[0] * TICK_MS <= now_ms

    def take_due(self, now_ms: int) -> PositionSet:
        """Remove and return due entries. Of many, return only the first: :attr:`next_due_ms` is then still in the
        past."""
        due = PositionSet()
        for _ in range(TICKS_AT_ONCE):
            if not self._ticks or self._ticks[0] * TICK_MS > now_ms:
                break
            positions = self._by_tick.pop(heapq.heappop(self._ticks))
            self._kept -= len(positions)
            due.update(positions)
        if due:
            due.intersection_update(self._waiting)
            self._waiting.difference_update(due)
        return due

    def discard_through(self, position: Position) -> None:
        """Forget the entries up to ``position``, which are consumed."""
        if not self._kept:
            return
        self._waiting.discard_through(position)
        self._sweep_if_worthwhile()

    def discard_all(self, positions: PositionSet) -> None:
        """Forget the entries at ``positions``, which are consumed."""
        self._waiting.difference_update(positions)
        self._sweep_if_worthwhile()

    def clear(self) -> None:
        self._by_tick.clear()
        self._ticks.clear()
        self._waiting = PositionSet()
        self._kept = 0

    def _sweep_if_worthwhile(self) -> None:
        # Ticks are swept once they hold more entries that have gone than that wait. So each entry costs little.
        if self._kept > 2 * len(self._waiting) + TICKS_AT_ONCE:
            self._sweep()

    def _sweep(self) -> None:
        for positions in self._by_tick.values():
            positions.intersection_update(self._waiting)
        self._by_tick = {tick: positions for tick, positions in self._by_tick.items() if positions}
        self._ticks = sorted(self._by_tick)
        self._kept = len(self._waiting)
