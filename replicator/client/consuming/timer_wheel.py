"""Timer wheel for many keys with few wake-ups. Sans-IO; times are milliseconds of one clock that never goes back.

Keys that are due within the same tick come out together, so that a tracker can put them into one request. A key never
comes out before its time, and at most one tick after it.

Algorithm:
1. Time is cut into ticks of ``tick_ms``. A key goes into the slot of the first tick that ends at or after its time.
2. Only slots that hold something exist, and a heap has their numbers: an idle wheel costs nothing and needs no timer,
   which is what lets a process have thousands of consumers.
3. :meth:`TimerWheel.take_due` rotates the wheel to the present and empties the slots that it passes, oldest first.

Source: seed 002 (a wheel of fixed ticks whose head is emptied at each turn).
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

K = TypeVar("K")


class TimerWheel(Generic[K]):
    """Keys by the tick in which they are due; each key once."""

    __slots__ = ("_hand", "_numbers", "_slot_of", "_slots", "_tick_ms")

    def __init__(self, tick_ms: int) -> None:
        assert tick_ms > 0
        self._tick_ms = tick_ms
        self._slots: dict[int, dict[K, None]] = {}  # dicts, because sets do not keep the order
        self._numbers: list[int] = []
        self._slot_of: dict[K, int] = {}
        self._hand = 0
        """Number of the last slot that was emptied; all slots before it are empty, too."""

    def __len__(self) -> int:
        return len(self._slot_of)

    def __contains__(self, key: K) -> bool:
        return key in self._slot_of

    def keys(self) -> list[K]:
        """Return all keys, in the order in which they were first put."""
        return list(self._slot_of)

    def put(self, key: K, due_ms: float) -> None:
        """Let ``key`` come out at ``due_ms``, or soon if that is over. A key that is in already moves to its new
        time."""
        self.remove(key)
        number = max(-int(-due_ms // self._tick_ms), self._hand + 1)
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = {}
            heapq.heappush(self._numbers, number)
        slot[key] = None
        self._slot_of[key] = number

    def remove(self, key: K) -> bool:
        """Remove ``key`` before its time; return whether it was in."""
        number = self._slot_of.pop(key, None)
        if number is None:
            return False
        del self._slots[number][key]  # an empty slot stays until its time: its number is in the heap
        return True

    def take_due(self, now_ms: float) -> list[K]:
        """Remove and return the keys that were due up to now, in the order of their time."""
        self._hand = max(self._hand, int(now_ms // self._tick_ms))
        due: list[K] = []
        while self._numbers and self._numbers[0] <= self._hand:
            due.extend(self._slots.pop(heapq.heappop(self._numbers)))
        for key in due:
            del self._slot_of[key]
        return due

    def take_first(self) -> list[K]:
        """Remove and return the keys of the slot that is due next, before its time; [] if there are none."""
        while self._numbers:
            slot = self._slots.pop(heapq.heappop(self._numbers))
            for key in slot:
                del self._slot_of[key]
            if slot:
                return list(slot)
        return []

    def next_due_ms(self) -> float | None:
        """Return when to call :meth:`take_due` next; None while the wheel is empty."""
        while self._numbers and not self._slots[self._numbers[0]]:
            del self._slots[heapq.heappop(self._numbers)]
        return self._numbers[0] * self._tick_ms if self._numbers else None

    def clear(self) -> None:
        """Forget every key."""
        self._slots.clear()
        self._numbers.clear()
        self._slot_of.clear()
