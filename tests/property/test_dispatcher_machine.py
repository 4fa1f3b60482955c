"""The dispatcher against a model that keeps, for every entry, who holds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replicator.engine.dispatcher import Candidate, Dispatcher, ReadPlan
from replicator.engine.errors import ConsumerBusy
from replicator.engine.types import SubscriptionType
from snapshots.position import BEFORE_ALL, Position

kinds = st.sampled_from(SubscriptionType)


@dataclass
class Entry:
    """One entry of the log: its batch size (0 for a marker), and where it is on its way."""

    messages: int
    consumed: bool = False
    holder: int | None = None
    replays: int = 0


@dataclass
class Model:
    log: dict[Position, Entry] = field(default_factory=dict)
    permits: dict[int, int] = field(default_factory=dict)
    kind: SubscriptionType = SubscriptionType.EXCLUSIVE

    def available(self) -> list[Position]:
        """What is to be sent, in order."""
        return [p for p, e in self.log.items() if e.messages and not e.consumed and e.holder is None]

    def held_by(self, consumer_id: int) -> list[Position]:
        return [position for position, entry in self.log.items() if entry.holder == consumer_id]

    def take_back(self, positions: list[Position]) -> None:
        for position in positions:
            self.log[position].holder = None
            self.log[position].replays += 1


class DispatcherMachine(RuleBasedStateMachine):
    @initialize(kind=kinds, sizes=st.lists(st.integers(0, 5), min_size=3, max_size=15), permits=st.integers(0, 20))
    def start(self, kind: SubscriptionType, sizes: list[int], permits: int) -> None:
        """In the middle of things: a consumer is here and has got something. Single rules rarely lead there."""
        self.model = Model(kind=kind)
        self.dispatcher = Dispatcher(kind)
        self.ledger, self.following, self.next_consumer = 1, 0, 0
        self.append(sizes, False)
        if permits:
            self.connect(kind)
            self._flow(0, permits)
            self._pump(len(sizes))

    @rule(sizes=st.lists(st.integers(0, 5), min_size=1, max_size=6), new_ledger=st.booleans())
    def append(self, sizes: list[int], new_ledger: bool) -> None:
        if new_ledger:
            self.ledger, self.following = self.ledger + 2, 0
        for size in sizes:
            self.model.log[Position(self.ledger, self.following)] = Entry(size)
            self.following += 1

    @rule(kind=kinds)
    def connect(self, kind: SubscriptionType) -> None:
        model, consumer_id = self.model, self.next_consumer
        before = (dict(self.dispatcher.consumers), self.dispatcher.type)
        if model.permits and (kind is not model.kind or kind is SubscriptionType.EXCLUSIVE):
            with pytest.raises(ConsumerBusy):
                self.dispatcher.add_consumer(consumer_id, kind)
            assert (self.dispatcher.consumers, self.dispatcher.type) == before
            return
        self.dispatcher.add_consumer(consumer_id, kind)
        self.next_consumer += 1
        model.kind = kind
        model.permits[consumer_id] = 0

    @precondition(lambda self: self.model.permits)
    @rule(data=st.data())
    def disconnect(self, data: Any) -> None:
        consumer_id = self._consumer(data)
        self.dispatcher.remove_consumer(consumer_id)
        self.model.take_back(self.model.held_by(consumer_id))
        del self.model.permits[consumer_id]

    @precondition(lambda self: self.model.permits)
    @rule(data=st.data(), permits=st.integers(1, 20))
    def flow(self, data: Any, permits: int) -> None:
        self._flow(self._consumer(data), permits)

    def _flow(self, consumer_id: int, permits: int) -> None:
        self.dispatcher.flow(consumer_id, permits)
        self.model.permits[consumer_id] += permits

    @rule(entries_max=st.integers(1, 8))
    def pump(self, entries_max: int) -> None:
        self._pump(entries_max)

    def _pump(self, entries_max: int) -> int:
        """What the shell does: read as planned, at most so many entries, and hand out. Returns how many were read."""
        plan = self.dispatcher.next_read()
        assert (plan is not None) == any(permits > 0 for permits in self.model.permits.values())
        if plan is None:
            return 0
        candidates = self._read(plan, entries_max)
        expected = self.model.available()
        for nth, (consumer_id, index, redelivery_count) in enumerate(self.dispatcher.assign(plan, candidates)):
            position = candidates[index].position
            assert position == expected[nth], "sent out of order, twice, or to two consumers"
            assert self.model.permits[consumer_id] > 0, "sent to a consumer without a permit"
            entry = self.model.log[position]
            assert redelivery_count == entry.replays
            entry.holder = consumer_id
            self.model.permits[consumer_id] -= entry.messages
        return len(candidates)

    def _read(self, plan: ReadPlan, entries_max: int) -> list[Candidate]:
        in_plan = [p for p in self.model.log if plan.after < p and (plan.upto is None or p <= plan.upto)]
        return [
            Candidate(
                p, self.model.log[p].messages, bool(self.model.log[p].messages) and not self.model.log[p].consumed
            )
            for p in in_plan[:entries_max]
        ]

    @precondition(lambda self: any(entry.messages for entry in self.model.log.values()))
    @rule(data=st.data())
    def acknowledge(self, data: Any) -> None:
        """Mostly of an entry that somebody holds; also of one that nobody holds any more, or not yet."""
        held = [p for p, entry in self.model.log.items() if entry.holder is not None]
        anything = [p for p, entry in self.model.log.items() if entry.messages]
        position = data.draw(st.sampled_from(held * 3 + anything))
        self.dispatcher.acknowledged(position)
        self._consume(position)

    @precondition(lambda self: self.model.log)
    @rule(data=st.data())
    def acknowledge_through(self, data: Any) -> None:
        through = data.draw(st.sampled_from(list(self.model.log)[: len(self.model.log) // 2 + 1]))
        self.dispatcher.acknowledged_through(through)
        for position in self.model.log:
            if position <= through:
                self._consume(position)

    def _consume(self, position: Position) -> None:
        entry = self.model.log[position]
        entry.consumed, entry.holder, entry.replays = True, None, 0

    @precondition(lambda self: self.model.permits)
    @rule(data=st.data(), everything=st.booleans())
    def redeliver(self, data: Any, everything: bool) -> None:
        consumer_id = self._consumer(data)
        asked = None
        held = self.model.held_by(consumer_id)
        if not everything:
            asked = data.draw(st.lists(st.sampled_from([*self.model.log, Position(99, 9)]), max_size=5))
            if self.model.kind is SubscriptionType.SHARED:
                held = [position for position in held if position in asked]
        self.dispatcher.redeliver(consumer_id, asked)
        self.model.take_back(held)

    @precondition(lambda self: self.model.log)
    @rule(data=st.data(), really=st.sampled_from([True, False, False, False]))
    def seek(self, data: Any, really: bool) -> None:
        if not really:  # it undoes what the other rules have made, so it is to be rare
            return
        start = data.draw(st.sampled_from([BEFORE_ALL, *self.model.log]))
        self.dispatcher.restart(start)
        for position, entry in self.model.log.items():
            entry.consumed, entry.holder, entry.replays = position <= start, None, 0

    def _consumer(self, data: Any) -> int:
        return data.draw(st.sampled_from(sorted(self.model.permits)))

    @invariant()
    def each_entry_is_with_at_most_one_consumer_and_none_is_lost(self) -> None:
        if not hasattr(self, "model"):
            return
        dispatcher, model = self.dispatcher, self.model
        assert {i: state.permits for i, state in dispatcher.consumers.items()} == model.permits
        for consumer_id, state in dispatcher.consumers.items():
            assert list(state.pending) == model.held_by(consumer_id)
        to_send = [p for p in model.available() if p <= dispatcher.read_position]
        assert list(dispatcher.replay) == to_send
        assert all(entry.holder is None for p, entry in model.log.items() if p > dispatcher.read_position)

    def teardown(self) -> None:
        """Whatever happened, a consumer that takes everything gets everything that is left, in order."""
        if not hasattr(self, "model"):
            return
        for consumer_id in list(self.model.permits):
            self.dispatcher.remove_consumer(consumer_id)
            self.model.take_back(self.model.held_by(consumer_id))
        self.model.permits = {self.next_consumer: 10**6}
        self.dispatcher.add_consumer(self.next_consumer, SubscriptionType.EXCLUSIVE)
        self.dispatcher.flow(self.next_consumer, 10**6)
        while self._pump(3):
            pass
        assert self.model.available() == []


TestDispatcherMachine = DispatcherMachine.TestCase
TestDispatcherMachine.settings = settings(max_examples=150, stateful_step_count=40)
