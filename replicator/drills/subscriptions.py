"""The subscriptions that a drill tests, by the names of ``--subscriptions``.

Owns which kinds there are and how the consumers of each acknowledge.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from replicator.drills.errors import DrillError
from replicator.drills.observations import DrillSubscription
from replicator.engine.types import SubscriptionType

BATCH_INDEX: Final = "batch-index"


class DeferredAcks(Enum):
    """Messages that consumers acknowledge only later, at random, so that there are holes above the mark-delete
    position. They are none, whole entries, or single messages of a batch."""

    NOTHING = "nothing"
    ENTRIES = "whole entries"
    MESSAGES = "single messages of a batch"


@dataclass(frozen=True, slots=True)
class TestedSubscription:
    """Subscription under test, and its consumers."""

    kind: str
    observed: DrillSubscription
    consumers: int
    left_for_later: DeferredAcks
    replicated: bool = True
    """Whether the subscription's state goes to other clusters."""

    @property
    def name(self) -> str:
        return self.observed.name

    @property
    def batch_index_acks(self) -> bool:
        return self.left_for_later is DeferredAcks.MESSAGES


def _tested(
    kind: str, type_: SubscriptionType, consumers: int, left_for_later: DeferredAcks, *, cumulative: bool = False
) -> TestedSubscription:
    return TestedSubscription(
        kind, DrillSubscription(f"drill-{kind}", type_, cumulative=cumulative), consumers, left_for_later
    )


_KINDS: Final = {
    each.kind: each
    for each in (
        _tested("exclusive", SubscriptionType.EXCLUSIVE, 1, DeferredAcks.NOTHING, cumulative=True),
        _tested("shared", SubscriptionType.SHARED, 2, DeferredAcks.ENTRIES),
        _tested("key-shared", SubscriptionType.KEY_SHARED, 2, DeferredAcks.ENTRIES),
        _tested("failover", SubscriptionType.FAILOVER, 2, DeferredAcks.ENTRIES),
        _tested(BATCH_INDEX, SubscriptionType.SHARED, 2, DeferredAcks.MESSAGES),
    )
}
ALL_KINDS: Final = tuple(_KINDS)


def parse_subscriptions(text: str) -> tuple[TestedSubscription, ...]:
    """Parse ``exclusive,shared,…`` or ``all``; raise :class:`DrillError`, which lists the kinds."""
    return chosen(ALL_KINDS if text.strip() == "all" else [part.strip() for part in text.split(",")])


def chosen(kinds: Sequence[str]) -> tuple[TestedSubscription, ...]:
    """Return the subscriptions of these kinds, in the usual order; raise :class:`DrillError`."""
    for kind in kinds:
        if kind not in _KINDS:
            raise DrillError(f"--subscriptions: {kind!r} is not known; there are: all, {', '.join(_KINDS)}")
    return tuple(each for kind, each in _KINDS.items() if kind in kinds)
