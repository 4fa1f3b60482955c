"""What every assignment of keys to Key_Shared consumers offers, and the choice among them.

A selector knows which consumers are connected and tells which of them owns a key *now*. It does not know what is
pending: that a key stays with its old consumer until that one is done with it is the dispatcher's business.

Every selector keeps, and the property tests check:

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
    """Owners of keys among the connected consumers of one subscription."""

    @property
    def version(self) -> int:
        """Grows by each change of owners; while it stands, what ``select`` said holds."""

    @property
    def hash_space(self) -> int:
        """``ranges`` are in terms of hash modulo this: 65,536 slots, or the whole ring of 2³²."""

    def add(self, consumer_id: int, name: str, policy: KeySharedPolicy) -> None:
        """A consumer joins, with an id that none of the connected ones has.

        Raises :class:`InvalidHashRanges` if it brings ranges that cannot be had, brings none where they are needed or
        some where the subscription assigns them, or if there is nothing left to split; nothing is changed then.
        """

    def remove(self, consumer_id: int) -> None:
        """A consumer that was added leaves."""

    def select(self, key_hash: int) -> int | None:
        """The id of the consumer that owns a 32-bit unsigned hash; None if nobody does."""

    def ranges(self) -> dict[int, list[HashRange]]:
        """What each consumer owns, in ascending order, modulo ``hash_space``. For reports: not cheap on a ring."""

    def record(self, consumer_id: int, messages: int, now_seconds: float) -> None:
        """``messages`` were dispatched to the consumer at ``now_seconds`` of a clock that does not go back."""


def make_selector(assignment: KeyAssignment, sticky: bool) -> KeySelector:
    """A selector without consumers; ``sticky`` is whether the first consumer brings its own ranges."""
    if sticky:
        return StickySelector()
    match assignment:
        case KeyAssignment.HASH_RANGE:
            return HashRangeSelector()
        case KeyAssignment.CONSISTENT_HASHING:
            return ConsistentHashSelector()
        case KeyAssignment.LOAD_AWARE:
            return LoadAwareSelector()
