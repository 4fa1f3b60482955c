"""The order of one producer's publishes that are on their way at the same time.

Invariants (DESIGN §3): 3, nothing is stored before what was sent before it; 1, nothing is confirmed that is not here.
Where one call is refused and a later one is stored, the entries of the first cannot be published again: they would come
too late, and deduplication would take them for duplicates, which are confirmed. So:

1. Each call of an order has a :class:`Turn`, in the order in which they were made.
2. When a call is refused, wherever that is decided (on the event loop, or by the writer's thread), its turn is told
   before the next call is looked at. Later calls of that order are then refused with the same error.
3. Whoever publishes begins another order when all calls of this one are answered.
"""

from __future__ import annotations

import threading
from typing import Final

from replicator.engine.errors import EngineError

_guard: Final = threading.Lock()
"""Of refusals, which are rare; the event loop and the writer's thread both tell of them."""


class PublishOrder:
    """The calls of one producer."""

    __slots__ = ("_made", "refused")

    def __init__(self) -> None:
        self._made = 0
        self.refused: tuple[int, EngineError] | None = None
        """The first call that was refused, and why."""

    def turn(self) -> Turn:
        """Of the next call."""
        self._made += 1
        return Turn(self, self._made)


class Turn:
    """The place of one call."""

    __slots__ = ("_number", "_order")

    def __init__(self, order: PublishOrder, number: int) -> None:
        self._order = order
        self._number = number

    @property
    def refusal(self) -> EngineError | None:
        """Why this call may not be stored: an earlier one was refused for that."""
        refused = self._order.refused
        return refused[1] if refused is not None and refused[0] < self._number else None

    def refused(self, error: EngineError) -> None:
        """This call is refused."""
        with _guard:
            refused = self._order.refused
            if refused is None or self._number < refused[0]:
                self._order.refused = self._number, error
