"""Auto-split hash range: the largest range is halved for a newcomer. Cheap, moves few keys, and shares unevenly.

It makes invariant 3 of DESIGN §3 possible: each slot has one owner, and a change affects one other consumer only.

1. The first consumer owns slots 0..65535.
2. A newcomer takes the lower half of the largest range; its owner keeps the upper half. Among equal ranges the one with
   the lowest slots is split. So four joins give C3 | C2 | C4 | C1, as in the seed's drawing.
3. A leaver's range goes to its right neighbour, the last range to its left one.

Balance: after j joins since the last leave, no range has more than ``2 * (65536 // j) + 1`` slots. Proof: while the
largest range has M slots, splits have made at least j ranges, each with at least ``M // 2`` slots. With joins only, no
range is more than twice as large as another. After leaves there is no bound until consumers join again.

Source: seed 000, "Auto-split Hash Range".
"""

from __future__ import annotations

from replicator.engine.errors import InvalidHashRanges
from replicator.engine.subscriptions.key_shared.hashing import SLOTS
from replicator.engine.subscriptions.key_shared.tiling import RangeMap, refuse_sticky_ranges
from replicator.engine.types import KeySharedPolicy


class HashRangeSelector(RangeMap):
    """Implements :class:`~replicator.engine.subscriptions.key_shared.selector.KeySelector`."""

    def add(self, consumer_id: int, name: str, policy: KeySharedPolicy) -> None:
        """Add a consumer. Raise :class:`InvalidHashRanges` if it has sticky ranges, or is the 65,537th."""
        refuse_sticky_ranges(name, policy)
        if not self._owners:
            self._first(consumer_id)
            return
        largest = max(range(len(self._owners)), key=self._size)
        if self._size(largest) == 1:
            raise InvalidHashRanges(
                f"consumer {name!r} cannot get hash slots of this Key_Shared subscription, because each of its {SLOTS} "
                "has its own consumer: close another consumer first"
            )
        self._split(largest, consumer_id, newcomer_is_lower=True)

    def remove(self, consumer_id: int) -> None:
        """Remove a consumer. Its range goes to the right neighbour, the last one to the left."""
        index = self._owners.index(consumer_id)
        self._merge(index, into_right=index + 1 < len(self._owners))

    def record(self, consumer_id: int, messages: int, now_seconds: float) -> None:
        """Ignore the load."""
