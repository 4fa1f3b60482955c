"""Shared: entries are spread over all consumers, in turns. Pure; the time is passed in.

1. Replays go before the tail of the log, lowest position first.
2. Consumers of the highest priority (the lowest number) that have permits take turns. Only if none of them has any are
   those of the next priority served. A turn is up to :data:`TURN_MESSAGES_MAX` messages, and no more than permits.
3. An entry with delayed delivery is set aside until it is due; then it is a replay.
4. A consumer at its limit of unacknowledged messages gets nothing, as if it had no permits; at the subscription's limit
   nobody does.
"""

from __future__ import annotations

from bisect import bisect_right, insort_right
from collections.abc import Mapping, Sequence
from typing import Any, Final

from replicator.engine.subscriptions.dispatch.dispatcher import READ_AGAIN_MAX, ConsumerState, gone
from replicator.engine.subscriptions.dispatch.held import HeldEntry
from replicator.engine.subscriptions.dispatch.many_active import ManyActiveDispatcher
from replicator.engine.subscriptions.dispatch.plan import (
    Assignment,
    Candidate,
    ReadAgain,
    ReadPlan,
    ReadTail,
    UnackedLimits,
)
from replicator.engine.types import SubscriptionType
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

TURN_MESSAGES_MAX: Final = 100
"""Most messages that a consumer gets in one turn. It is small, so that load spreads evenly."""


class SharedDispatcher(ManyActiveDispatcher):
    """Dispatch state of a Shared subscription."""

    def __init__(
        self,
        read_position: Position = BEFORE_ALL,
        *,
        limits: UnackedLimits = UnackedLimits(),  # noqa: B008 - a frozen value
    ) -> None:
        super().__init__(SubscriptionType.SHARED, read_position, limits)
        self._replay = PositionSet()
        self._turns: list[int] = []
        """Consumers in the order in which they are served: by priority, and in turns within a priority."""

    def next_read(self, now_ms: int) -> ReadPlan | None:
        if self._held.blocked or not (permits := self.permits(READ_AGAIN_MAX)):
            return None
        if self._delayed.is_due(now_ms):
            self._replay.update(self._delayed.take_due(now_ms))
        if self._replay:
            return ReadAgain(self._replay.head(permits))
        return None if self._delayed.full else ReadTail(self.read_position)

    def assign(self, plan: ReadPlan, candidates: Sequence[Candidate], now_ms: int) -> list[Assignment]:
        assignments: list[Assignment] = []
        again = isinstance(plan, ReadAgain)
        if isinstance(plan, ReadAgain):
            for position in gone(plan, candidates):
                self._replay.discard(position)
        state: ConsumerState | None = None
        left = 0
        for index, candidate in enumerate(candidates):
            position = candidate.position
            if candidate.wanted:
                if candidate.deliver_at_ms > now_ms:
                    if self._delayed.full:
                        break
                    self._delayed.add(position, candidate.deliver_at_ms)
                else:
                    # A turn is taken only when there is something for it: else whoever comes next loses it.
                    if state is None and not self._held.blocked:
                        state, left = self._next_turn()
                    if state is None:
                        break
                    state.permits -= candidate.messages
                    unacked = candidate.unacked or candidate.messages
                    self._held.add(position, HeldEntry(state.id, unacked, 0))
                    assignments.append(Assignment(state.id, index, self.redeliveries.count(position)))
                    left -= candidate.messages
                    if self._held.blocked or left <= 0 or not state.ready:
                        state = None
            if again:
                self._replay.discard(position)
            else:
                self.read_position = position
        return assignments

    def assign_next(self, position: Position, messages: int) -> int | None:
        if self._replay or self._held.blocked or self._delayed.next_due_ms is not None:
            return None
        state, _ = self._next_turn()
        if state is None:
            return None
        state.permits -= messages
        self._held.add(position, HeldEntry(state.id, messages, 0))
        self.read_position = position
        return state.id

    @property
    def may_redeliver(self) -> bool:
        return bool(self._replay)

    def acknowledged(self, position: Position) -> None:
        self._held.remove(position)
        self._replay.discard(position)
        self.redeliveries.forget(position)

    def acknowledged_all(self, positions: PositionSet) -> None:
        self._held.remove_all(positions)
        self._replay.difference_update(positions)
        self._delayed.discard_all(positions)
        self.redeliveries.forget_all(positions)

    def acknowledged_through(self, position: Position) -> None:
        self._held.remove_through(position)
        self._replay.discard_through(position)
        self._delayed.discard_through(position)
        self.redeliveries.forget_through(position)
        self.read_position = max(self.read_position, position)

    def restart(self, position: Position) -> None:
        self.read_position = position
        self._replay = PositionSet()
        self._delayed.clear()
        self._held.clear()
        self.redeliveries.clear()

    def rewind(self, positions: PositionSet) -> None:
        passed = positions.copy()
        passed.discard_after(self.read_position)
        self._replay.update(passed)

    def status(self) -> Mapping[str, Any]:
        return {**super().status(), "replay_entries": len(self._replay)}

    # Inside.

    def _joined(self, consumer_id: int) -> None:
        insort_right(self._turns, consumer_id, key=self._priority)

    def _left(self, state: ConsumerState) -> None:
        self._turns.remove(state.id)
        for position in state.pending:
            self._held.remove(position)
            self._replay.add(position)

    def _take_back(self, position: Position) -> bool:
        if self._held.remove(position) is None:
            return False
        self._replay.add(position)
        return True

    def _priority(self, consumer_id: int) -> int:
        return self.consumers[consumer_id].options.priority

    def _next_turn(self) -> tuple[ConsumerState | None, int]:
        """Return the next consumer, and how many messages it may get in its turn. Put it behind its equals."""
        if len(self._turns) == 1:
            only = self.consumers[self._turns[0]]
            return (only, min(only.permits, TURN_MESSAGES_MAX)) if only.ready else (None, 0)
        for at, consumer_id in enumerate(self._turns):
            state = self.consumers[consumer_id]
            if state.ready:
                del self._turns[at]
                priority = state.options.priority
                self._turns.insert(bisect_right(self._turns, priority, at, key=self._priority), consumer_id)
                return state, min(state.permits, TURN_MESSAGES_MAX)
        return None, 0
