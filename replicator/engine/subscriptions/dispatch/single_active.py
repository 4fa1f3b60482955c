"""Dispatcher for Exclusive and Failover: one consumer gets everything, in order; the others of a Failover stand by.
Pure.

Choice of the active consumer (seed 000, upstream's ``AbstractDispatcherSingleActiveConsumer``):

1. Only consumers of the highest priority (the lowest number) count.
2. On a partition they are sorted by name, and partition i goes to the one at ``i mod n``.
3. On a topic without partitions it is the one that subscribed first. If the same consumers subscribe to several such
   topics, it is the one whose name hashes highest together with the topic's, so that the topics spread.

A new active consumer gets everything that is unacknowledged, from the first entry on. The old one may still process
messages that it prefetched: Failover orders messages, it does not fence consumers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import mmh3

from replicator.engine.errors import ConsumerBusy
from replicator.engine.subscriptions.dispatch.dispatcher import READ_AGAIN_MAX, ConsumerState, Dispatcher, gone
from replicator.engine.subscriptions.dispatch.plan import (
    ActiveChange,
    Assignment,
    Candidate,
    ReadAgain,
    ReadPlan,
    ReadTail,
)
from replicator.engine.types import SubscribeOptions, SubscriptionType
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

NOT_PARTITIONED = -1


class SingleActiveDispatcher(Dispatcher):
    """Dispatch state of an Exclusive or Failover subscription."""

    def __init__(
        self,
        subscription_type: SubscriptionType,
        read_position: Position = BEFORE_ALL,
        *,
        topic: str = "",
        partition: int = NOT_PARTITIONED,
    ) -> None:
        assert subscription_type.one_active
        super().__init__(subscription_type, read_position)
        self._topic = topic
        self._partition = partition
        self._spread = False
        self._replay = PositionSet()
        self.active: int | None = None
        """Id of the consumer that gets everything."""

    def spread_over_topics(self, spread: bool) -> None:
        """Note whether the consumers subscribe to several topics that are not partitioned."""
        if spread != self._spread:
            self._spread = spread
            self._pick()

    def permits(self, most: int) -> int:
        return min(most, max(0, self.consumers[self.active].permits)) if self.active is not None else 0

    def next_read(self, now_ms: int) -> ReadPlan | None:
        if not (permits := self.permits(READ_AGAIN_MAX)):
            return None
        if self._replay:
            return ReadAgain(self._replay.head(permits))
        return ReadTail(self.read_position)

    def assign(self, plan: ReadPlan, candidates: Sequence[Candidate], now_ms: int) -> list[Assignment]:
        assert self.active is not None
        state = self.consumers[self.active]
        assignments: list[Assignment] = []
        again = isinstance(plan, ReadAgain)
        if isinstance(plan, ReadAgain):
            for position in gone(plan, candidates):
                self._replay.discard(position)
        for index, candidate in enumerate(candidates):
            position = candidate.position
            if candidate.wanted:
                if state.permits <= 0:
                    break
                state.permits -= candidate.messages
                state.pending.add(position)
                assignments.append(Assignment(state.id, index, self.redeliveries.count(position)))
            if again:
                self._replay.discard(position)
            else:
                self.read_position = position
        return assignments

    def assign_next(self, position: Position, messages: int) -> int | None:
        if self.active is None or self._replay:
            return None
        state = self.consumers[self.active]
        if state.permits <= 0:
            return None
        state.permits -= messages
        state.pending.add(position)
        self.read_position = position
        return state.id

    @property
    def may_redeliver(self) -> bool:
        return bool(self._replay)

    @property
    def waits_for_acknowledgements(self) -> bool:
        return False

    def acknowledged(self, position: Position) -> None:
        if self.active is not None:
            self.consumers[self.active].pending.discard(position)
        self._replay.discard(position)
        self.redeliveries.forget(position)

    def acknowledged_all(self, positions: PositionSet) -> None:
        if self.active is not None:
            self.consumers[self.active].pending.difference_update(positions)
        self._replay.difference_update(positions)
        self.redeliveries.forget_all(positions)

    def acknowledged_through(self, position: Position) -> None:
        if self.active is not None:
            self.consumers[self.active].pending.discard_through(position)
        self._replay.discard_through(position)
        self.redeliveries.forget_through(position)
        self.read_position = max(self.read_position, position)

    def redeliver(self, consumer_id: int, positions: Iterable[Position] | None) -> None:
        """Send all entries of the consumer again, whatever ``positions`` are: single ones would come out of order. A
        standby has none."""
        state = self.consumers[consumer_id]
        for position in state.pending:
            self.redeliveries.add(position)
        self._take_back(state)

    def restart(self, position: Position) -> None:
        self.read_position = position
        self._replay = PositionSet()
        self.redeliveries.clear()
        for state in self.consumers.values():
            state.pending = PositionSet()

    def held(self) -> dict[Position, int]:
        return {position: state.id for state in self.consumers.values() for position in state.pending}

    # Inside.

    def _admit(self, consumer_id: int, options: SubscribeOptions) -> None:
        if self.type is SubscriptionType.EXCLUSIVE and self.consumers:
            raise ConsumerBusy("the subscription is Exclusive and has a consumer: disconnect that one, or use Failover")

    def _joined(self, consumer_id: int) -> None:
        self._pick()
        if consumer_id != self.active:
            self._active_changes.append(ActiveChange(consumer_id, False))

    def _left(self, state: ConsumerState) -> None:
        self._take_back(state)
        if state.id == self.active:
            self.active = None
            self._pick()
        elif self._partition != NOT_PARTITIONED or self._spread:
            self._pick()

    def _pick(self) -> None:
        chosen = self._choose()
        if chosen == self.active:
            return
        if self.active is not None:
            self._take_back(self.consumers[self.active])
            self._active_changes.append(ActiveChange(self.active, False))
        self.active = chosen
        if chosen is not None:
            self._active_changes.append(ActiveChange(chosen, True))

    def _choose(self) -> int | None:
        if not self.consumers:
            return None
        highest = min(state.options.priority for state in self.consumers.values())
        eligible = [state for state in self.consumers.values() if state.options.priority == highest]
        if self._partition != NOT_PARTITIONED:
            eligible.sort(key=lambda state: state.options.consumer_name)  # stable: equal names stay in their order
            return eligible[self._partition % len(eligible)].id
        if self._spread:
            return max(eligible, key=lambda state: mmh3.hash(state.options.consumer_name + self._topic, 0, False)).id
        return eligible[0].id

    def _take_back(self, state: ConsumerState) -> None:
        self._replay.update(state.pending)
        state.pending = PositionSet()
