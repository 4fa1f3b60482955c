"""Order of one producer's publishes that are on their way at the same time.

Invariants (DESIGN §3): 3, entries are stored in the order in which they were sent; 1, no entry is confirmed that is not
here. If one call is refused and a later one is stored, the first call's entries cannot be published again: they would
come too late, and deduplication would confirm them as duplicates. So:

1. Each call of an order has a :class:`OrderTicket`, in the order in which they were made.
2. When a call is refused (on the event loop, or by the writer's thread), its turn is told before the next call is
   handled. Later calls of that order are then refused with the same error.
3. The publisher begins another order when all calls of this one are answered.
"""

from __future__ import annotations

import threading
from typing import Final

from replicator.engine.errors import EngineError

_guard: Final = threading.Lock()
"""Lock around refusals, which are rare. The event loop and the writer's thread both report them."""


class PublishOrder:
    """Order of the calls of one producer."""

    __slots__ = ("_made", "refused")

    def __init__(self) -> None:
        self._made = 0
        self.refused: tuple[int, EngineError] | None = None
        """Number of the first call that was refused, and the error; None if none was."""

    def turn(self) -> OrderTicket:
        """Return the turn of the next call."""
        self._made += 1
        return OrderTicket(self, self._made)


class OrderTicket:
    """Place of one call in its order."""

    __slots__ = ("_number", "_order")

    def __init__(self, order: PublishOrder, number: int) -> None:
        self._order = order
        self._number = number

    @property
    def refusal(self) -> EngineError | None:
        """Error with which this call must be refused, because an earlier one was; None if it may be stored."""
        refused = self._order.refused
        return refused[1] if refused is not None and refused[0] < self._number else None

    def refused(self, error: EngineError) -> None:
        """Record that this call is refused."""
        with _guard:
            refused = self._order.refused
            if refused is None or self._number < refused[0]:
                self._order.refused = self._number, error
