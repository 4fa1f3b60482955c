"""Slots 0..65535 as ranges that touch each other, one for each consumer, with operations to split and merge them.

It is the base of the two selectors that split ranges. They choose the range to split, and the new owner of a leaver's.

Invariant: ``_starts`` is strictly ascending and begins with 0; each range ends where the next one starts, the last one
at the last slot. So each slot has exactly one owner, by construction.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from replicator.engine.errors import InvalidHashRanges
from replicator.engine.subscriptions.key_shared.hashing import SLOTS
from replicator.engine.types import HashRange, KeySharedPolicy


def refuse_sticky_ranges(name: str, policy: KeySharedPolicy) -> None:
    """Raise :class:`InvalidHashRanges` if a consumer brings ranges to a subscription that assigns them itself."""
    if policy.sticky_ranges is not None:
        raise InvalidHashRanges(
            f"consumer {name!r} brings sticky ranges, and this subscription assigns ranges to its consumers itself: "
            "connect without ranges, or disconnect the others first"
        )


class RangeMap:
    """Ranges and their owners. A consumer takes a few dozen bytes. A look-up is a binary search."""

    hash_space: Final = SLOTS

    def __init__(self) -> None:
        self.version = 0
        self._starts: list[int] = []
        self._owners: list[int] = []

    def select(self, key_hash: int) -> int | None:
        """Return the owner of a hash, or None without consumers."""
        if not self._owners:
            return None
        return self._owners[bisect_right(self._starts, key_hash % SLOTS) - 1]

    def ranges(self) -> dict[int, list[HashRange]]:
        """Return each consumer's range, in the order of slots."""
        return {
            owner: [HashRange(start, start + self._size(index) - 1)]
            for index, (start, owner) in enumerate(zip(self._starts, self._owners, strict=True))
        }

    def _size(self, index: int) -> int:
        """Return the number of slots of the range at ``index``."""
        end = self._starts[index + 1] if index + 1 < len(self._starts) else SLOTS
        return end - self._starts[index]

    def _first(self, consumer_id: int) -> None:
        """Give all slots to the first consumer."""
        assert not self._owners
        self._starts = [0]
        self._owners = [consumer_id]
        self.version += 1

    def _split(self, index: int, newcomer: int, *, newcomer_is_lower: bool) -> None:
        """Halve a range of two slots or more. Of an odd range the newcomer gets the smaller half."""
        size = self._size(index)
        assert size > 1
        assert newcomer not in self._owners
        lower = size // 2 if newcomer_is_lower else size - size // 2
        self._starts.insert(index + 1, self._starts[index] + lower)
        self._owners.insert(index if newcomer_is_lower else index + 1, newcomer)
        self.version += 1

    def _merge(self, index: int, *, into_right: bool) -> None:
        """Give the range at ``index`` to its neighbour, or forget it if it is the only one."""
        # Of the two that become one the lower start stays, whoever owns it then.
        del self._starts[index + 1 if into_right else index]
        del self._owners[index]
        self.version += 1
