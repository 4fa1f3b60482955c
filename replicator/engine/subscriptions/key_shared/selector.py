"""Interface of selectors, which assign keys to Key_Shared consumers, and the choice among them.

A selector knows which consumers are connected, and which of them owns a key *now*. It does not know pending entries.
The dispatcher makes sure that a key stays with its old consumer until that one has acknowledged its entries.

Every selector keeps the following rules, and property tests check them:

1. Cover: with consumers, each hash has exactly one owner (sticky ranges may leave gaps: nobody's).
2. Minimal movement: a join moves keys to the newcomer only, a leave moves the leaver's keys only. (One exception,
   where three or more share a point of the ring, is told in
   :mod:`~replicator.engine.subscriptions.key_shared.consistent_hash`.)
3. Determinism: the same calls give the same owners, in every process.
4. A refused :meth:`KeySelector.add` changes nothing.
"""

from __future__ import annotations

from typing import Protocol

from replicator.engine.policies import KeyAssignment
from replicator.engine.subscriptions.key_shared.consistent_hash import ConsistentHashSelector
from replicator.engine.subscriptions.key_shared.hash_range import HashRangeSelector
from replicator.engine.subscriptions.key_shared.load_aware import LoadAwareSelector
from replicator.engine.subscriptions.key_shared.sticky import StickySelector
from replicator.engine.types import HashRange, KeySharedPolicy


class KeySelector(Protocol):
    """Interface that assigns keys to the connected consumers of one subscription."""

    @property
    def version(self) -> int:
        """Number that grows with each change of owners. While it is unchanged, results of ``select`` stay valid."""

    @property
    def hash_space(self) -> int:
        """Number of hashes that ``ranges`` divides: 65,536 slots, or the whole ring of 2³²."""

    def add(self, consumer_id: int, name: str, policy: KeySharedPolicy) -> None:
        """Add a consumer. No connected consumer may have its id.

        Raises :class:`InvalidHashRanges`, and changes nothing, if no range is left to split, or if its sticky ranges do
        not fit: they are invalid, taken, missing, or not allowed because the subscription assigns the ranges.
        """

    def remove(self, consumer_id: int) -> None:
        """Remove a consumer that was added."""

    def select(self, key_hash: int) -> int | None:
        """Return the id of the consumer that owns a 32-bit unsigned hash, or None if nobody does."""

    def ranges(self) -> dict[int, list[HashRange]]:
        """Return each consumer's ranges in ascending order, modulo ``hash_space``. Only for reports: on a ring the call
        is slow."""

    def record(self, consumer_id: int, messages: int, now_seconds: float) -> None:
        """Note that ``messages`` were dispatched to a consumer at ``now_seconds`` of a monotonic clock."""


def make_selector(assignment: KeyAssignment, sticky: bool) -> KeySelector:
    """Return a selector without consumers. ``sticky`` says whether the first consumer brings its own ranges."""
    if sticky:
        return StickySelector()
    match assignment:
        case KeyAssignment.HASH_RANGE:
            return HashRangeSelector()
        case KeyAssignment.CONSISTENT_HASHING:
            return ConsistentHashSelector()
        case KeyAssignment.LOAD_AWARE:
            return LoadAwareSelector()
