"""What changed in a subscription here and was not yet announced to other clusters. Pure.

Invariants (DESIGN §3): 5, only what was consumed here (by a consumer, or because an operator, TTL or a quota said so)
is noted, in positions of this cluster; 11, its size is bounded: positions are compressed runs of the log, and with more
than :data:`UNANNOUNCED_BATCHES_MAX` open batches "announce all of it" takes their place.

What is noted may be announced again and may contain markers: merging is idempotent, and markers are passed over.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from snapshots.position import Position
from snapshots.position_set import PositionSet

UNANNOUNCED_BATCHES_MAX: Final = 10_000
"""Batches of which some messages were acknowledged, about 150 bytes each; announcing the whole state costs as much."""


@dataclass(slots=True)
class Unannounced:
    """Taken with :meth:`CursorState.take_unannounced`, and then the taker's to keep."""

    positions: PositionSet = field(default_factory=PositionSet)
    """Entries that are consumed as a whole."""
    batches: dict[Position, None] = field(default_factory=dict)
    """Batches of which some messages are acknowledged; which ones, the cursor knows."""
    whole: bool = False
    """The whole state is: its generation is new, or nobody knows what was announced. Nothing else is noted then."""
    heard: bool = False
    """Others said something of messages that are not in this log; what, the taker knows."""

    def __bool__(self) -> bool:
        return self.whole or self.heard or bool(self.positions) or bool(self.batches)

    def note(self, position: Position) -> None:
        """The entry is consumed."""
        if not self.whole:
            self.positions.add(position)
            if self.batches:
                self.batches.pop(position, None)

    def note_batch(self, position: Position) -> None:
        """More messages of the batch are acknowledged."""
        if self.whole:
            return
        self.batches[position] = None
        if len(self.batches) > UNANNOUNCED_BATCHES_MAX:
            self.note_all()

    def note_runs(self, runs: Iterable[tuple[int, int, int]]) -> None:
        """Entries ``first`` to ``last`` of each ledger are consumed."""
        if not self.whole:
            for ledger, first, last in runs:
                self.positions.add_range(ledger, first, last)

    def note_set(self, positions: PositionSet) -> None:
        """The entries are consumed."""
        if not self.whole:
            self.positions.update(positions)

    def forget(self, positions: PositionSet) -> None:
        """Remove entries from the change, because they are not consumed any more: nobody acknowledged them."""
        self.positions.difference_update(positions)

    def note_all(self) -> None:
        self.whole = True
        self.positions = PositionSet()
        self.batches = {}
