"""Every dispatcher against one model that keeps, for each entry, who holds it and what it waits for."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import pytest
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replicator.engine.errors import ConsumerBusy
from replicator.engine.policies import KeyAssignment, KeyOrdering, TopicPolicies
from replicator.engine.subscriptions.dispatch.choice import make_dispatcher
from replicator.engine.subscriptions.dispatch.delayed import TICK_MS
from replicator.engine.subscriptions.dispatch.dispatcher import Dispatcher
from replicator.engine.subscriptions.dispatch.plan import Assignment, Candidate, ReadAgain, ReadPlan
from replicator.engine.subscriptions.dispatch.single_active import NOT_PARTITIONED, SingleActiveDispatcher
from replicator.engine.types import KeySharedPolicy, SubscribeOptions, SubscriptionType
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

EXCLUSIVE, FAILOVER, SHARED, KEY_SHARED = (
    SubscriptionType.EXCLUSIVE,
    SubscriptionType.FAILOVER,
    SubscriptionType.SHARED,
    SubscriptionType.KEY_SHARED,
)
KEY_HASHES = [7, (1 << 14) + 5, (1 << 31) + (1 << 15) + 5, (3 << 30) + 50_000]
"""Few, so that entries of a key meet; spread over the slots and over the ring, so that joins and leaves move them."""


@dataclass
class Entry:
    """Entry of the log: its batch size (0 for a marker), its key, and its state between the log and a consumer."""

    messages: int
    key_hash: int = 0
    deliver_at_ms: int = 0
    acked: int = 0
    consumed: bool = False
    holder: int | None = None
    replays: int = 0
    sent: bool = False
    """Since the last seek. What was delayed is on its way once it was sent."""


@dataclass
class Connected:
    name: str
    priority: int
    permits: int = 0


@dataclass
class Model:
    kind: SubscriptionType
    log: dict[Position, Entry] = field(default_factory=dict)
    consumers: dict[int, Connected] = field(default_factory=dict)
    now_ms: int = 1_000

    def due(self, entry: Entry) -> bool:
        return self.kind.one_active or entry.sent or entry.deliver_at_ms <= self.now_ms

    def surely_due(self, entry: Entry) -> bool:
        """Return whether the entry is due even if it was set aside, which rounded its time up to a tick."""
        tick_ms = -(-entry.deliver_at_ms // TICK_MS) * TICK_MS
        return self.kind.one_active or entry.sent or tick_ms <= self.now_ms

    def available(self) -> list[Position]:
        """Return the positions that must be sent, in order. Those that are due since the last tick may be sent too."""
        free = [p for p, e in self.log.items() if e.messages and not e.consumed and e.holder is None]
        return [position for position in free if self.surely_due(self.log[position])]

    def held_by(self, consumer_id: int) -> list[Position]:
        return [position for position, entry in self.log.items() if entry.holder == consumer_id]

    def unacked(self, consumer_id: int | None = None) -> int:
        held = [e for e in self.log.values() if e.holder is not None and consumer_id in (None, e.holder)]
        return sum(entry.messages - entry.acked for entry in held)

    def take_back(self, positions: list[Position], *, counts: bool) -> None:
        for position in positions:
            self.log[position].holder = None
            self.log[position].replays += counts


class DispatcherMachine(RuleBasedStateMachine):
    kind: SubscriptionType

    @initialize(
        partition=st.sampled_from([NOT_PARTITIONED, 0, 1, 5]),
        assignment=st.sampled_from(KeyAssignment),
        ordering=st.sampled_from(KeyOrdering),
        out_of_order=st.sampled_from([False, False, False, True]),
        limits=st.sampled_from([(None, None), (4, None), (None, 7), (5, 9)]),
        sizes=st.lists(st.integers(0, 5), min_size=3, max_size=12),
        key_hashes=st.lists(st.sampled_from(KEY_HASHES), min_size=12, max_size=12),
        permits=st.lists(st.integers(0, 20), max_size=3),
    )
    def start(
        self,
        partition: int,
        assignment: KeyAssignment,
        ordering: KeyOrdering,
        out_of_order: bool,
        limits: tuple[int | None, int | None],
        sizes: list[int],
        key_hashes: list[int],
        permits: list[int],
    ) -> None:
        """Start in the middle of things: consumers are here and have got something. Single rules rarely lead there."""
        kind = self.kind
        self.model = Model(kind)
        self.partition, self.out_of_order = partition, out_of_order
        self.limits = (None, None) if kind.one_active else limits
        self.dispatcher = make_dispatcher(
            kind,
            BEFORE_ALL,
            policies=TopicPolicies(
                key_assignment=assignment,
                key_ordering=ordering,
                max_unacked_messages_per_consumer=limits[0],
                max_unacked_messages_per_subscription=limits[1],
            ),
            topic="t",
            partition=partition,
        )
        self.ledger, self.following, self.next_consumer = 1, 0, 0
        self.append(list(zip(sizes, key_hashes, strict=False)), 0, False)
        for name, count in zip("bac", permits, strict=False):
            self.connect(name, 0)
            if count and self.next_consumer:
                self._flow(self.next_consumer - 1, count)
            self._pump(len(sizes))

    @rule(
        entries=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(KEY_HASHES)), min_size=1, max_size=6),
        delay_ms=st.sampled_from([0, 0, 0, 30]),
        new_ledger=st.booleans(),
    )
    def publish(self, entries: list[tuple[int, int]], delay_ms: int, new_ledger: bool) -> None:
        self.append(entries, delay_ms, new_ledger)
        self._pump(8)

    def append(self, entries: list[tuple[int, int]], delay_ms: int, new_ledger: bool) -> None:
        if new_ledger:
            self.ledger, self.following = self.ledger + 2, 0
        deliver_at_ms = self.model.now_ms + delay_ms if delay_ms else 0
        for messages, key_hash in entries:
            self.model.log[Position(self.ledger, self.following)] = Entry(messages, key_hash, deliver_at_ms)
            self.following += 1

    @rule(milliseconds=st.integers(1, 40))
    def wait(self, milliseconds: int) -> None:
        self.model.now_ms += milliseconds

    @rule(name=st.sampled_from("abc"), priority=st.sampled_from([0, 0, 0, 1]))
    def connect(self, name: str, priority: int) -> None:
        model, consumer_id = self.model, self.next_consumer
        options = SubscribeOptions(
            model.kind,
            name,
            priority,
            KeySharedPolicy(allow_out_of_order_delivery=self.out_of_order),
        )
        if model.consumers and model.kind is EXCLUSIVE:
            with pytest.raises(ConsumerBusy):
                self.dispatcher.add_consumer(consumer_id, options)
            return
        self.dispatcher.add_consumer(consumer_id, options)
        self.next_consumer += 1
        model.consumers[consumer_id] = Connected(name, priority)
        self._active_changed()

    @precondition(lambda self: self.model.consumers)
    @rule(data=st.data())
    def disconnect(self, data: Any) -> None:
        self._disconnect(self._consumer(data))

    def _disconnect(self, consumer_id: int) -> None:
        self.dispatcher.remove_consumer(consumer_id)
        self.model.take_back(self.model.held_by(consumer_id), counts=False)
        del self.model.consumers[consumer_id]
        self._active_changed()

    def _active_changed(self) -> None:
        """Take back the unacknowledged entries of all consumers except the active one."""
        if not isinstance(self.dispatcher, SingleActiveDispatcher):
            return
        for consumer_id in self.model.consumers:
            if consumer_id != self._active():
                self.model.take_back(self.model.held_by(consumer_id), counts=False)

    def _active(self) -> int | None:
        consumers = self.model.consumers
        if not consumers:
            return None
        highest = min(consumer.priority for consumer in consumers.values())
        ids = [consumer_id for consumer_id, consumer in consumers.items() if consumer.priority == highest]
        if self.partition == NOT_PARTITIONED:
            return ids[0]
        return sorted(ids, key=lambda id_: (consumers[id_].name, id_))[self.partition % len(ids)]

    @precondition(lambda self: self.model.consumers)
    @rule(data=st.data(), permits=st.integers(1, 20), pumped=st.booleans())
    def flow(self, data: Any, permits: int, pumped: bool) -> None:
        self._flow(self._consumer(data), permits)
        if pumped:
            self._pump(8)

    def _flow(self, consumer_id: int, permits: int) -> None:
        self.dispatcher.flow(consumer_id, permits)
        self.model.consumers[consumer_id].permits += permits

    @rule(entries_max=st.integers(1, 8), times=st.integers(1, 3))
    def pump(self, entries_max: int, times: int) -> None:
        for _ in range(times):
            self._pump(entries_max)

    def _pump(self, entries_max: int) -> int:
        """Read as planned, at most so many entries, and hand out, as the shell does. Return how many were read."""
        model = self.model
        expected = model.available()
        plan: ReadPlan | None
        if (alone := self._assign_next()) is not None:
            plan, candidates, assignments = alone
        else:
            plan = self.dispatcher.next_read(model.now_ms)
            if plan is None:
                return 0
            candidates = self._read(plan, entries_max)
            assignments = self.dispatcher.assign(plan, candidates, model.now_ms)
        if isinstance(plan, ReadAgain) and candidates and not assignments:
            assert self.dispatcher.next_read(model.now_ms) != plan, "it would be read again for ever"
        positions = [candidates[assignment.candidate].position for assignment in assignments]
        assert model.kind is KEY_SHARED or positions == sorted(positions), "sent out of order"
        for (consumer_id, _, redelivery_count), position in zip(assignments, positions, strict=True):
            entry, consumer = model.log[position], model.consumers[consumer_id]
            assert not entry.consumed
            assert entry.holder is None, "sent to two consumers"
            assert entry.messages
            assert model.due(entry), "sent before its time"
            assert consumer.permits > 0, "sent to a consumer without a permit"
            assert redelivery_count == entry.replays
            if model.kind is KEY_SHARED:
                self._check_key(position, consumer_id)
            else:
                assert not any(p < position and model.log[p].holder is None for p in expected), "sent out of order"
            if model.kind.one_active:
                assert consumer_id == self._active()
            for limit, unacked in zip(self.limits, (model.unacked(consumer_id), model.unacked()), strict=True):
                assert limit is None or unacked < limit, "sent over the limit of unacknowledged messages"
            entry.holder, entry.sent = consumer_id, True
            consumer.permits -= entry.messages
        return len(candidates)

    def _assign_next(self) -> tuple[ReadPlan, list[Candidate], list[Assignment]] | None:
        """Give out the next entry of the log without a plan, if that is allowed and the dispatcher does it.

        A copy of the dispatcher must do the same with a plan, and be in the same state then.
        """
        if self.model.kind is KEY_SHARED:  # it needs the key
            return None
        dispatcher, log = self.dispatcher, self.model.log
        position = next((each for each in log if each > dispatcher.read_position), None)
        if position is None or not log[position].messages or log[position].consumed or log[position].acked:
            return None
        if log[position].deliver_at_ms > self.model.now_ms:
            return None
        other, before = deepcopy(dispatcher), state_of(dispatcher)
        consumer_id = dispatcher.assign_next(position, log[position].messages)
        if consumer_id is None:
            assert state_of(dispatcher) == before
            return None
        plan = other.next_read(self.model.now_ms)
        assert plan is not None
        candidates = self._read(plan, 1)
        assert [each.position for each in candidates] == [position]
        assignments = other.assign(plan, candidates, self.model.now_ms)
        assert assignments == [Assignment(consumer_id, 0, dispatcher.redeliveries.count(position))]
        assert state_of(dispatcher) == state_of(other)
        return plan, candidates, assignments

    def _check_key(self, position: Position, consumer_id: int) -> None:
        """Check that each key has one consumer, and that only delayed entries are overtaken by later ones of their
        key."""
        entry = self.model.log[position]
        for other_position, other in self.model.log.items():
            if other.key_hash != entry.key_hash or other.consumed or not other.messages:
                continue
            if not self.out_of_order:
                assert other.holder in (None, consumer_id), "a key with two consumers"
            if other_position < position and not other.deliver_at_ms:
                assert other.holder is not None, f"{position} overtook {other_position} of its key"

    def _read(self, plan: ReadPlan, entries_max: int) -> list[Candidate]:
        log = self.model.log
        in_plan = list(plan.positions) if isinstance(plan, ReadAgain) else [p for p in log if p > plan.after]
        return [
            Candidate(
                p,
                log[p].messages,
                bool(log[p].messages) and not log[p].consumed,
                log[p].messages - log[p].acked,
                log[p].key_hash,
                log[p].deliver_at_ms,
            )
            for p in in_plan[:entries_max]
        ]

    @precondition(lambda self: any(entry.messages for entry in self.model.log.values()))
    @rule(data=st.data())
    def acknowledge(self, data: Any) -> None:
        """Acknowledge an entry: mostly one that a consumer holds, else one that none holds any more, or not yet."""
        held = [p for p, entry in self.model.log.items() if entry.holder is not None]
        anything = [p for p, entry in self.model.log.items() if entry.messages]
        position = data.draw(st.sampled_from(held * 3 + anything))
        self._acknowledge(position)

    def _acknowledge(self, position: Position) -> None:
        self.dispatcher.acknowledged(position)
        self._consume(position)
        self._mark_delete()

    @precondition(lambda self: any(entry.messages for entry in self.model.log.values()))
    @rule(data=st.data())
    def acknowledge_many_at_once(self, data: Any) -> None:
        """Acknowledge as another cluster does, whoever holds the entries here."""
        anything = [p for p, entry in self.model.log.items() if entry.messages]
        positions = data.draw(st.lists(st.sampled_from(anything), max_size=6))
        self.dispatcher.acknowledged_all(PositionSet([*positions, Position(99, 9)]))
        for position in positions:
            self._consume(position)
        self._mark_delete()

    @precondition(lambda self: any(e.holder is not None and e.messages > 1 for e in self.model.log.values()))
    @rule(data=st.data())
    def acknowledge_some_of_a_batch(self, data: Any) -> None:
        batches = [p for p, e in self.model.log.items() if e.holder is not None and e.messages > 1]
        position = data.draw(st.sampled_from(batches))
        entry = self.model.log[position]
        entry.acked = max(entry.acked, data.draw(st.integers(1, entry.messages - 1)))
        self.dispatcher.partly_acknowledged(position, entry.messages - entry.acked)

    @precondition(lambda self: self.model.log)
    @rule(data=st.data())
    def acknowledge_through(self, data: Any) -> None:
        """Acknowledge cumulatively, by a consumer (one active), another cluster, or an operator."""
        through = data.draw(st.sampled_from(list(self.model.log)[: len(self.model.log) // 2 + 1]))
        self.dispatcher.acknowledged_through(through)
        for position in self.model.log:
            if position <= through:
                self._consume(position)
        self._mark_delete()

    def _consume(self, position: Position) -> None:
        entry = self.model.log[position]
        entry.consumed, entry.holder, entry.replays, entry.acked = True, None, 0, 0

    def _mark_delete(self) -> None:
        """Tell the dispatcher how far everything is consumed, as the cursor does."""
        mark_delete = BEFORE_ALL
        for position, entry in self.model.log.items():
            if entry.messages and not entry.consumed:
                break
            mark_delete = position
        if mark_delete != BEFORE_ALL:
            self.dispatcher.acknowledged_through(mark_delete)

    @precondition(lambda self: self.model.consumers)
    @rule(data=st.data(), everything=st.booleans())
    def redeliver(self, data: Any, everything: bool) -> None:
        consumer_id = self._consumer(data)
        asked = None
        held = self.model.held_by(consumer_id)
        if not everything:
            asked = data.draw(st.lists(st.sampled_from([*self.model.log, Position(99, 9)]), max_size=5))
            if not self.model.kind.one_active:
                held = [position for position in held if position in asked]
        self.dispatcher.redeliver(consumer_id, asked)
        self.model.take_back(held, counts=True)

    @precondition(lambda self: self.model.log)
    @rule(data=st.data(), really=st.sampled_from([True, False, False, False]))
    def seek(self, data: Any, really: bool) -> None:
        if not really:  # it undoes what the other rules have made, so it is to be rare
            return
        start = data.draw(st.sampled_from([BEFORE_ALL, *self.model.log]))
        self.dispatcher.restart(start)
        for position, entry in self.model.log.items():
            entry.consumed, entry.holder, entry.replays, entry.acked = position <= start, None, 0, 0
            entry.sent = False

    def _consumer(self, data: Any) -> int:
        return data.draw(st.sampled_from(sorted(self.model.consumers)))

    @invariant()
    def the_dispatcher_knows_who_holds_what(self) -> None:
        if not hasattr(self, "model"):
            return
        dispatcher, model = self.dispatcher, self.model
        holders = {p: entry.holder for p, entry in model.log.items() if entry.holder is not None}
        assert dispatcher.held() == holders
        for consumer_id, state in dispatcher.consumers.items():
            assert state.permits == model.consumers[consumer_id].permits
            assert list(state.pending) == model.held_by(consumer_id)
            if not model.kind.one_active:
                assert state.unacked_messages == model.unacked(consumer_id)

    def teardown(self) -> None:
        """Check that all remaining messages arrive, once consumers give permits and acknowledge. Nothing is lost."""
        if not hasattr(self, "model"):
            return
        model = self.model
        if not model.consumers:
            self.connect("z", 0)
        model.now_ms += 1_000
        for _ in range(10 * len(model.log) + 10):
            for consumer_id, consumer in model.consumers.items():
                if consumer.permits <= 0:
                    self._flow(consumer_id, 10 - consumer.permits)
            self._pump(3)
            held = [p for p, entry in model.log.items() if entry.holder is not None]
            if held and len(held) % 2:
                self._acknowledge(held[-1])  # out of order
            elif held:
                self._acknowledge(held[0])
        left = [p for p, entry in model.log.items() if entry.messages and not entry.consumed]
        assert not left, f"never delivered: {left}"


def state_of(dispatcher: Dispatcher) -> dict[str, Any]:
    """Return everything by which two dispatchers of one type may differ."""
    consumers = {
        id_: (state.permits, list(state.pending), state.unacked_messages, state.blocked)
        for id_, state in dispatcher.consumers.items()
    }
    return {
        "consumers": consumers,
        "read": dispatcher.read_position,
        "held": dispatcher.held(),
        "status": dispatcher.status(),
        "turns": list(getattr(dispatcher, "_turns", ())),
        "waits": dispatcher.waits_for_acknowledgements,
        "again": dispatcher.may_redeliver,
        "wakes": dispatcher.wake_at_ms,
    }


class ExclusiveMachine(DispatcherMachine):
    kind = EXCLUSIVE


class FailoverMachine(DispatcherMachine):
    kind = FAILOVER


class SharedMachine(DispatcherMachine):
    kind = SHARED


class KeySharedMachine(DispatcherMachine):
    kind = KEY_SHARED


TestExclusive = ExclusiveMachine.TestCase
TestFailover = FailoverMachine.TestCase
TestShared = SharedMachine.TestCase
TestKeyShared = KeySharedMachine.TestCase
TestExclusive.settings = settings(max_examples=examples(30), stateful_step_count=30)
TestFailover.settings = TestShared.settings = settings(max_examples=examples(60), stateful_step_count=40)
TestKeyShared.settings = settings(max_examples=examples(200), stateful_step_count=40)
