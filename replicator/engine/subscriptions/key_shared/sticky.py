"""Sticky ranges: each consumer brings the slots that it wants, and gets these or is refused.

1. A consumer must bring ranges. They must lie in 0..65535, start no later than they end, and overlap neither each other
   nor those of a connected consumer. Otherwise the consumer is refused, and nothing changes.
2. A slot that nobody brought has no owner: its messages wait until a consumer brings it.

Movement: none, because a join takes only slots without an owner. Balance: it depends on the ranges of the users.
Source: seed 000, "Sticky".
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import Final

from replicator.engine.errors import InvalidHashRanges
from replicator.engine.subscriptions.key_shared.hashing import SLOTS
from replicator.engine.types import HashRange, KeySharedPolicy


class StickySelector:
    """Implements :class:`~replicator.engine.subscriptions.key_shared.selector.KeySelector`."""

    hash_space: Final = SLOTS

    def __init__(self) -> None:
        self.version = 0
        self._names: dict[int, str] = {}
        # All ranges of all consumers, sorted; they do not overlap, so starts and ends are both ascending.
        self._ranges: list[HashRange] = []
        self._starts: list[int] = []
        self._owners: list[int] = []

    def add(self, consumer_id: int, name: str, policy: KeySharedPolicy) -> None:
        """Add a consumer. Raise :class:`InvalidHashRanges`, which names the wrong range, and the consumer that has
        it."""
        assert consumer_id not in self._names
        wanted = _checked(name, policy)
        for brought in wanted:
            self._refuse_if_taken(name, brought)
        for brought in wanted:
            at = bisect_left(self._starts, brought.start)
            self._ranges.insert(at, brought)
            self._starts.insert(at, brought.start)
            self._owners.insert(at, consumer_id)
        self._names[consumer_id] = name
        self.version += 1

    def remove(self, consumer_id: int) -> None:
        """Remove a consumer. Its slots have no owner until another consumer brings them."""
        del self._names[consumer_id]
        kept = [at for at, owner in enumerate(self._owners) if owner != consumer_id]
        self._ranges = [self._ranges[at] for at in kept]
        self._starts = [self._starts[at] for at in kept]
        self._owners = [self._owners[at] for at in kept]
        self.version += 1

    def select(self, key_hash: int) -> int | None:
        """Return the consumer that brought the hash's slot, or None if nobody did."""
        slot = key_hash % SLOTS
        at = bisect_right(self._starts, slot) - 1
        return self._owners[at] if at >= 0 and slot <= self._ranges[at].end else None

    def ranges(self) -> dict[int, list[HashRange]]:
        """Return the ranges that each consumer brought, in the order in which they joined."""
        owned: dict[int, list[HashRange]] = {consumer_id: [] for consumer_id in self._names}
        for owner, brought in zip(self._owners, self._ranges, strict=True):
            owned[owner].append(brought)
        return owned

    def record(self, consumer_id: int, messages: int, now_seconds: float) -> None:
        """Ignore the load."""

    def _refuse_if_taken(self, name: str, brought: HashRange) -> None:
        # Of the ranges that start at or before this one's end, the last reaches furthest: it overlaps, or none does.
        at = bisect_right(self._starts, brought.end) - 1
        if at >= 0 and (taken := self._ranges[at]).end >= brought.start:
            raise InvalidHashRanges(
                f"sticky range {_text(brought)} of consumer {name!r} overlaps {_text(taken)}, "
                f"which consumer {self._names[self._owners[at]]!r} has: choose another, or close that consumer first"
            )


def _checked(name: str, policy: KeySharedPolicy) -> list[HashRange]:
    """Return the ranges that a consumer brings, sorted. Raise :class:`InvalidHashRanges` if they are invalid by
    themselves."""
    if not policy.sticky_ranges:
        raise InvalidHashRanges(
            f"consumer {name!r} brings no sticky ranges, and those of this subscription do: give it the slots that it "
            "is to serve, or disconnect the others first"
        )
    for brought in policy.sticky_ranges:
        if not 0 <= brought.start <= brought.end < SLOTS:
            raise InvalidHashRanges(
                f"sticky range {_text(brought)} of consumer {name!r} must be start..end with 0 <= start <= end <= "
                f"{SLOTS - 1}"
            )
    wanted = sorted(policy.sticky_ranges)
    for before, after in pairwise(wanted):
        if after.start <= before.end:
            raise InvalidHashRanges(
                f"sticky ranges {_text(before)} and {_text(after)} of consumer {name!r} overlap each other: give "
                "ranges that do not"
            )
    return wanted


def _text(brought: HashRange) -> str:
    return f"{brought.start}..{brought.end}"
