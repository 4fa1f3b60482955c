"""Base of all dispatchers: consumers, permits, and entries that were sent and not acknowledged. Pure.

The time is passed in. A dispatcher decides which consumer gets which entry; the shell around it reads, sends and saves.
The shell asks what to read (:meth:`Dispatcher.next_read`), reads it, and hands it in (:meth:`Dispatcher.assign`). Each
subscription type is one subclass: :mod:`single_active` (Exclusive, Failover), :mod:`shared`, :mod:`key_shared`.

Rules for all of them:

1. An entry is with at most one consumer. When that one leaves, its entries go to others.
2. Entries that are sent again go before the tail of the log.
3. Permits are messages, not entries; a batch is not split, so the last one may overdraw them (as upstream).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from replicator.engine.subscriptions.dispatch.plan import ActiveChange, Assignment, Candidate, ReadAgain, ReadPlan
from replicator.engine.subscriptions.dispatch.redeliveries import RedeliveryCounts
from replicator.engine.types import SubscribeOptions, SubscriptionType
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

READ_AGAIN_MAX: Final = 1000
"""Limit of positions in one plan to read again, so that reading them does not block the event loop."""


@dataclass(slots=True)
class ConsumerState:
    """State of one connected consumer."""

    id: int
    options: SubscribeOptions
    permits: int = 0
    pending: PositionSet = field(default_factory=PositionSet)
    """Entries that were sent to the consumer and not acknowledged."""
    unacked_messages: int = 0
    blocked: bool = False
    """Whether the consumer has too many unacknowledged messages."""

    @property
    def ready(self) -> bool:
        return self.permits > 0 and not self.blocked


class Dispatcher(ABC):
    """Dispatch state of one subscription. All its consumers have the same type."""

    def __init__(
        self,
        subscription_type: SubscriptionType,
        read_position: Position = BEFORE_ALL,
    ) -> None:
        self.type = subscription_type
        self.consumers: dict[int, ConsumerState] = {}
        self.read_position = read_position
        """Position up to which the log was read."""
        self.redeliveries = RedeliveryCounts()
        self._active_changes: list[ActiveChange] = []

    # Consumers.

    def add_consumer(self, consumer_id: int, options: SubscribeOptions) -> None:
        """Admit a consumer. Raise :class:`ConsumerBusy` or :class:`InvalidHashRanges` if it is not admitted.

        Nothing is changed if that fails.
        """
        assert options.type is self.type
        self._admit(consumer_id, options)
        self.consumers[consumer_id] = ConsumerState(consumer_id, options)
        self._joined(consumer_id)

    def remove_consumer(self, consumer_id: int) -> None:
        """Remove a consumer that has gone. Its unacknowledged entries go to others."""
        self._left(self.consumers.pop(consumer_id))

    def flow(self, consumer_id: int, permits: int) -> None:
        assert permits > 0
        self.consumers[consumer_id].permits += permits

    def give_back(self, consumer_id: int, permits: int) -> None:
        """Take ``permits`` from a consumer, which takes nothing for now."""
        self.consumers[consumer_id].permits -= permits

    def take_active_changes(self) -> list[ActiveChange]:
        """Return the changes of the active consumer since the last call. Consumers must be told of them."""
        changes, self._active_changes = self._active_changes, []
        return changes

    # Sending.

    @abstractmethod
    def permits(self, most: int) -> int:
        """Return the number of messages that may be sent now to all consumers together, but at most ``most``.

        Counting stops at ``most``: there may be thousands of consumers, and each message asks for the number."""

    @abstractmethod
    def next_read(self, now_ms: int) -> ReadPlan | None:
        """Return what to read next, or None if nothing could be sent now."""

    @abstractmethod
    def assign(self, plan: ReadPlan, candidates: Sequence[Candidate], now_ms: int) -> list[Assignment]:
        """Give out the candidates of a plan, in order, as far as permits go. The rest will be asked for again."""

    def assign_next(self, position: Position, messages: int) -> int | None:
        """Give out the entry at ``position``, the first one after :attr:`read_position`, and return its consumer's id.

        Do what :meth:`next_read` and :meth:`assign` would do with it. Return None, and change nothing, if something
        else comes first, or if only those two methods can decide. None of the entry's messages may be acknowledged, and
        it must not have a delayed delivery.
        """
        return None

    @property
    def wake_at_ms(self) -> int | None:
        """Wall-clock time at which to ask again although nothing happened; None if never."""
        return None

    @property
    def may_redeliver(self) -> bool:
        """Return whether an entry before :attr:`read_position` may have to be sent.

        Entries with a delayed delivery do not count before their time.
        """
        return True

    # Entries that were sent.

    @property
    @abstractmethod
    def waits_for_acknowledgements(self) -> bool:
        """Return whether an acknowledgement may allow an entry to be sent that cannot be sent now."""

    @abstractmethod
    def acknowledged(self, position: Position) -> None:
        """Record that the whole entry is consumed: no consumer holds it any more."""

    @abstractmethod
    def acknowledged_all(self, positions: PositionSet) -> None:
        """Record that all entries at ``positions`` are consumed. The cost depends only on how many of them consumers
        hold."""

    def partly_acknowledged(self, position: Position, unacked: int) -> None:  # noqa: B027 - not all types count
        """Record that some messages of a batch are acknowledged, and ``unacked`` are not."""

    @abstractmethod
    def acknowledged_through(self, position: Position) -> None:
        """Record that all entries up to ``position`` are consumed."""

    @abstractmethod
    def redeliver(self, consumer_id: int, positions: Iterable[Position] | None) -> None:
        """Send again entries that the consumer holds: all (None), or those at ``positions``. A type with one active
        consumer always sends all again, so that order is kept."""

    @abstractmethod
    def restart(self, position: Position) -> None:
        """Read again from after ``position`` (seek, reset), with no entries pending any more."""

    # Figures.

    @abstractmethod
    def held(self) -> dict[Position, int]:
        """Return the positions that were sent and not acknowledged, each with the consumer's id. Tests and checks
        use it."""

    def status(self) -> Mapping[str, Any]:
        """Return figures of the subscription type, beyond those of the consumers."""
        return {}

    def consumer_status(self, consumer_id: int) -> Mapping[str, Any]:
        """Return the figures of one consumer."""
        state = self.consumers[consumer_id]
        return {
            "permits": state.permits,
            "unacked_entries": len(state.pending),
            "unacked_messages": state.unacked_messages,
            "blocked_on_unacked": state.blocked,
        }

    # For subclasses.

    def _admit(self, consumer_id: int, options: SubscribeOptions) -> None:  # noqa: B027 - Shared takes everybody
        """Refuse a consumer that the type does not take."""

    def _joined(self, consumer_id: int) -> None:  # noqa: B027
        """Let the subscription type handle a new consumer."""

    @abstractmethod
    def _left(self, state: ConsumerState) -> None:
        """Let the subscription type handle a consumer that has gone."""


def gone(plan: ReadAgain, candidates: Sequence[Candidate]) -> list[Position]:
    """Return the positions of a plan that the log does not have any more.

    Reading goes in order and may stop early. So only positions before the last candidate are known to be missing.
    Without a candidate, all are missing.
    """
    if not candidates:
        return list(plan.positions)
    found = {candidate.position for candidate in candidates}
    last = candidates[-1].position
    return [position for position in plan.positions if position < last and position not in found]
