"""Counts of redeliveries of each entry. They are in memory, bounded, and forgotten when the entry is consumed, or when
the last consumer leaves. Pure.

A disconnect does not count. A consumer that crashes has often prefetched messages that it never processed, and dead
letter policies use this count.
"""

from __future__ import annotations

from itertools import takewhile
from typing import Final

from snapshots.position import Position
from snapshots.position_set import PositionSet

TRACKED_MAX: Final = 1_000_000
"""Limit of counted entries, about 150 MB at worst. Beyond it the oldest entry's count is forgotten: that entry goes to
a dead letter topic later."""


class RedeliveryCounts:
    """Redelivery counts by position."""

    __slots__ = ("_counts", "_positions")

    def __init__(self) -> None:
        self._counts: dict[Position, int] = {}
        self._positions = PositionSet()

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, position: Position) -> int:
        return self._counts.get(position, 0)

    def add(self, position: Position) -> None:
        count = self._counts.get(position, 0)
        if count == 0:
            if len(self._counts) >= TRACKED_MAX:
                oldest = self._positions.first()
                assert oldest is not None
                self.forget(oldest)
            self._positions.add(position)
        self._counts[position] = count + 1

    def forget(self, position: Position) -> None:
        if self._counts.pop(position, None) is not None:
            self._positions.discard(position)

    def forget_through(self, position: Position) -> None:
        if not self._counts:
            return
        for counted in takewhile(lambda counted: counted <= position, self._positions):
            del self._counts[counted]
        self._positions.discard_through(position)

    def forget_all(self, positions: PositionSet) -> None:
        for counted in (known := self._positions.common(positions)):
            del self._counts[counted]
        self._positions.difference_update(known)

    def clear(self) -> None:
        self._counts.clear()
        self._positions = PositionSet()
