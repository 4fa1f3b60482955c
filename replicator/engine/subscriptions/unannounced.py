"""Changes of a subscription here that were not yet announced to other clusters. Pure.

Invariants (DESIGN §3): 5, only messages that were consumed here (by a consumer, an operator, TTL or a quota) are noted,
in positions of this cluster; 11, the size is bounded: positions are compressed runs of the log, and more than
:data:`UNANNOUNCED_BATCHES_MAX` open batches are replaced by "announce the whole state".

A change may be announced again and may contain markers: merging is idempotent, and skips markers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from snapshots.position import Position
from snapshots.position_set import PositionSet

UNANNOUNCED_BATCHES_MAX: Final = 10_000
"""Limit of noted batches that are partly acknowledged, about 150 bytes each. Announcing the whole state costs as
much."""


@dataclass(slots=True)
class Unannounced:
    """Unannounced changes. :meth:`CursorState.take_unannounced` returns them, and the caller may keep them."""

    positions: PositionSet = field(default_factory=PositionSet)
    """Entries that are consumed as a whole."""
    batches: dict[Position, None] = field(default_factory=dict)
    """Partly acknowledged batches. The cursor has their acknowledged indexes."""
    whole: bool = False
    """Whether the whole state is to be announced, because its generation is new, or nobody knows what was announced.
    Then nothing else is noted."""
    heard: bool = False
    """Whether other clusters told something about messages that are not in this log. The taker knows what."""

    def __bool__(self) -> bool:
        return self.whole or self.heard or bool(self.positions) or bool(self.batches)

    def note(self, position: Position) -> None:
        """Note that the entry is consumed."""
        if not self.whole:
            self.positions.add(position)
            if self.batches:
                self.batches.pop(position, None)

    def note_batch(self, position: Position) -> None:
        """Note that more messages of the batch are acknowledged."""
        if self.whole:
            return
        self.batches[position] = None
        if len(self.batches) > UNANNOUNCED_BATCHES_MAX:
            self.note_all()

    def note_runs(self, runs: Iterable[tuple[int, int, int]]) -> None:
        """Note that entries ``first`` to ``last`` of each ledger are consumed."""
        if not self.whole:
            for ledger, first, last in runs:
                self.positions.add_range(ledger, first, last)

    def note_set(self, positions: PositionSet) -> None:
        """Note that the entries are consumed."""
        if not self.whole:
            self.positions.update(positions)

    def forget(self, positions: PositionSet) -> None:
        """Remove entries from the change, because they are not consumed any more: nobody acknowledged them."""
        self.positions.difference_update(positions)

    def note_all(self) -> None:
        self.whole = True
        self.positions = PositionSet()
        self.batches = {}
