"""Base of the dispatchers for Shared and Key_Shared, which spread entries over all consumers with permits. Pure.

Each unacknowledged entry counts for its consumer and for the subscription; at a limit dispatch pauses (:mod:`held`).
Entries with delayed delivery are set aside until they are due (:mod:`delayed`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from replicator.engine.subscriptions.dispatch.delayed import DelayedEntries
from replicator.engine.subscriptions.dispatch.dispatcher import Dispatcher
from replicator.engine.subscriptions.dispatch.held import HeldEntries
from replicator.engine.subscriptions.dispatch.plan import UnackedLimits
from replicator.engine.types import SubscriptionType
from snapshots.position import Position
from snapshots.position_set import PositionSet


class ManyActiveDispatcher(Dispatcher):
    """Dispatch state of a subscription whose consumers are all active."""

    def __init__(
        self,
        subscription_type: SubscriptionType,
        read_position: Position,
        limits: UnackedLimits,
    ) -> None:
        super().__init__(subscription_type, read_position)
        self._held = HeldEntries(self.consumers, limits)
        self._delayed = DelayedEntries()

    def permits(self, most: int) -> int:
        permits = 0
        for state in self.consumers.values():
            if state.permits > 0 and not state.blocked:
                permits += state.permits
                if permits >= most:
                    return most
        return permits

    @property
    def wake_at_ms(self) -> int | None:
        return self._delayed.next_due_ms

    @property
    def waits_for_acknowledgements(self) -> bool:
        return self._held.paused or self._delayed.full

    def partly_acknowledged(self, position: Position, unacked: int) -> None:
        self._held.shrink(position, unacked)

    def redeliver(self, consumer_id: int, positions: Iterable[Position] | None) -> None:
        pending = self.consumers[consumer_id].pending
        for position in list(pending) if positions is None else [p for p in positions if p in pending]:
            if self._take_back(position):  # named twice in a request, it is one redelivery
                self.redeliveries.add(position)

    @abstractmethod
    def rewind(self, positions: PositionSet) -> None:
        """Deliver the entries at ``positions``, though the log was read past them. They counted as consumed until
        now."""

    def set_limits(self, limits: UnackedLimits) -> None:
        """Apply changed policies."""
        self._held.set_limits(limits)

    def held(self) -> dict[Position, int]:
        return {position: entry.consumer_id for position, entry in self._held.items()}

    def status(self) -> Mapping[str, Any]:
        return {
            "unacked_messages": self._held.unacked_messages,
            "blocked_on_unacked": self._held.blocked,
            "delayed_entries": len(self._delayed),
        }

    @abstractmethod
    def _take_back(self, position: Position) -> bool:
        """Take an entry back from its consumer, so that it is sent again. Return whether a consumer held it."""
