"""A real engine, on disk, against a simple model: every subscription type, every kind of acknowledgement, restarts.

What must hold (DESIGN §3): nothing is lost; nothing is with two consumers at once; a key keeps its order; the
mark-delete position never passes an unacknowledged message; redelivery counts are right; a restart gives the same
state.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import pytest
from engine_support import PUBLISH_TIME_MS, TOPIC, marker
from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from pyroaring import BitMap

from replicator.engine.engine import Engine
from replicator.engine.errors import ConsumerBusy, InvalidAck, InvalidSeek, NotAllowedError
from replicator.engine.log.entry import append_to_batch, encode_entry
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.types import Ack, Delivery, InitialPosition, SubscribeOptions, SubscriptionType
from replicator.metadata.metadata_pb2 import MessageMetadata, SingleMessageMetadata
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

T = TypeVar("T")
KEYS = ["", "a", "b", "c", "d"]
SUBSCRIPTION = "sub"


def keyed_batch(key: str, size: int, sequence_id: int) -> bytes:
    """Return an encoded entry of ``size`` messages of one key; without a batch if ``size`` is 1."""
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=PUBLISH_TIME_MS)
    if key:
        metadata.partition_key = key
    if size == 1:
        return encode_entry(metadata, b"x")
    metadata.num_messages_in_batch = size
    body = bytearray()
    for _ in range(size):
        append_to_batch(body, SingleMessageMetadata(payload_size=0), b"x")
    return encode_entry(metadata, body)


@dataclass
class Entry:
    """One entry as the model knows it; size 0 is a marker."""

    size: int
    key: str = ""
    acked: set[int] = field(default_factory=set)
    holder: int | None = None
    redeliveries: int = 0

    @property
    def consumed(self) -> bool:
        return len(self.acked) == self.size

    def consume(self) -> None:
        self.acked = set(range(self.size))
        self.holder = None


class Consumer:
    """A connected consumer: what the engine sends it is checked on arrival."""

    def __init__(self, machine: SubscriptionMachine, name: str) -> None:
        self.machine = machine
        self.name = name
        self.permits = 0
        self.engine: EngineConsumer | None = None

    @property
    def id(self) -> int:
        assert self.engine is not None
        return self.engine.id

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            self.machine.arrived(self, delivery)


class SubscriptionMachine(RuleBasedStateMachine):
    kind: SubscriptionType

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.directory = Path(tempfile.mkdtemp())
        self.log: dict[Position, Entry] = {}
        self.consumers: list[Consumer] = []
        self.failures: list[str] = []
        self.engine = self.run(Engine.open(self.directory, cluster="us-east"))
        self.topic: Topic = self.run(self.engine.topic(TOPIC))
        self.sequence_id = 0

    # Running the engine.

    def run(self, call: Awaitable[T]) -> T:
        """Run one call, and everything that it sets off in the engine."""

        async def settled() -> T:
            try:
                return await call
            finally:
                while any(each._pump.scheduled for each in self.topic.subscriptions.values()):  # noqa: ASYNC110
                    await asyncio.sleep(0)

        async def first() -> T:
            return await call

        result = self.loop.run_until_complete(settled() if hasattr(self, "topic") else first())
        assert not self.failures, self.failures
        return result

    @property
    def subscription(self) -> Subscription:
        return self.topic.subscriptions[SUBSCRIPTION]

    def arrived(self, consumer: Consumer, delivery: Delivery) -> None:
        """Check a delivery. The engine's pump calls this, so problems are kept, and raised by :meth:`run`."""
        entry = self.log[delivery.position]
        acked = set(BitMap.deserialize(delivery.acked)) if delivery.acked is not None else set()
        problems = {
            "a marker was delivered": entry.size == 0,
            "delivered though it is consumed": entry.consumed,
            "delivered to two": entry.holder is not None,
            f"acked says {acked}": acked != entry.acked,
            f"redelivery count {delivery.redelivery_count}": delivery.redelivery_count != entry.redeliveries,
            "sent without a permit": consumer.permits <= 0,
            "batch size": delivery.batch_size != entry.size,
        }
        if self.kind.one_active:
            first = next(p for p, e in self.log.items() if e.size and not e.consumed and e.holder is None)
            problems[f"out of order: {first} was next"] = delivery.position != first
        if self.kind is SubscriptionType.KEY_SHARED:
            same_key = {p: e for p, e in self.log.items() if e.key == entry.key and e.size and not e.consumed}
            problems["a key with two consumers"] = any(e.holder not in (None, consumer.id) for e in same_key.values())
            problems["overtook its key"] = any(p < delivery.position and e.holder is None for p, e in same_key.items())
        self.failures += [
            f"{delivery.position} to {consumer.name}: {what}" for what, wrong in problems.items() if wrong
        ]
        entry.holder = consumer.id
        consumer.permits -= entry.size

    # Rules.

    @initialize(sizes=st.lists(st.integers(1, 4), min_size=2, max_size=8), consumers=st.integers(0, 3))
    def start(self, sizes: list[int], consumers: int) -> None:
        self.run(self.topic.subscriptions.create(SUBSCRIPTION, BEFORE_ALL, replicated=True))
        self._publish([(KEYS[at % len(KEYS)], size) for at, size in enumerate(sizes)])
        for _ in range(consumers):
            self.subscribe()
            if self.consumers:
                self._flow(self.consumers[-1], 3)

    @rule(entries=st.lists(st.tuples(st.sampled_from(KEYS), st.integers(1, 4)), min_size=1, max_size=5))
    def publish(self, entries: list[tuple[str, int]]) -> None:
        self._publish(entries)

    def _publish(self, entries: list[tuple[str, int]]) -> None:
        encoded = [keyed_batch(key, size, self.sequence_id + at) for at, (key, size) in enumerate(entries)]
        self.sequence_id += len(encoded)

        async def publish() -> None:
            # The positions are known only afterwards, and deliveries come before: so the model looks ahead.
            tail = self.topic.tail
            ledger = tail.ledger
            if ledger is None:
                (position,) = [await self.topic.writing.marker(marker())]
                self.log[position] = Entry(0)
                ledger = position.ledger
            expected = [Position(ledger, tail.next_entry + at) for at in range(len(encoded))]
            for position, (key, size) in zip(expected, entries, strict=True):
                self.log[position] = Entry(size, key)
            assert await self.topic.publish(encoded) == expected

        self.run(publish())

    @rule()
    def marker(self) -> None:
        async def write() -> None:
            position = await self.topic.writing.marker(marker())
            self.log[position] = Entry(0)

        self.run(write())

    @rule()
    def subscribe(self) -> None:
        name = f"c{len(self.consumers)}"
        consumer = Consumer(self, name)
        options = SubscribeOptions(self.kind, name, initial=InitialPosition.EARLIEST)
        if self.kind is SubscriptionType.EXCLUSIVE and self.consumers:
            with pytest.raises(ConsumerBusy):
                self.run(self.topic.subscribe(SUBSCRIPTION, options, consumer.deliver))
            return
        consumer.engine = self.run(self.topic.subscribe(SUBSCRIPTION, options, consumer.deliver))
        self.consumers.append(consumer)

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def close(self, data: Any) -> None:
        consumer = self._any(data)
        self.consumers.remove(consumer)
        self._take_back(consumer, count=False)
        if not self.consumers:  # counted anew for whoever comes next
            for entry in self.log.values():
                entry.redeliveries = 0
        self._act(lambda: consumer.engine.close())  # type: ignore[union-attr]

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), permits=st.integers(1, 12))
    def flow(self, data: Any, permits: int) -> None:
        self._flow(self._any(data), permits)

    def _flow(self, consumer: Consumer, permits: int) -> None:
        consumer.permits += permits
        self._act(lambda: consumer.engine.flow(permits))  # type: ignore[union-attr]

    @precondition(lambda self: self.consumers and any(e.holder is not None for e in self.log.values()))
    @rule(data=st.data(), partly=st.booleans())
    def acknowledge(self, data: Any, partly: bool) -> None:
        held = [p for p, e in self.log.items() if e.holder is not None]
        position = data.draw(st.sampled_from(held))
        entry = self.log[position]
        indexes = None
        if partly and entry.size > 1:
            indexes = tuple(data.draw(st.sets(st.integers(0, entry.size - 1), min_size=1)))
        if indexes is None:
            entry.consume()
        else:
            entry.acked |= set(indexes)
            if entry.consumed:
                entry.holder = None
        self.run(self.consumers[0].engine.acknowledge([Ack(position, indexes)]))  # type: ignore[union-attr]
        self._check()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), counted=st.booleans(), wrong=st.sampled_from([None, None, None, (0, -1), (0, 2**40), (9, 9)]))
    def acknowledge_entries(self, data: Any, counted: bool, wrong: tuple[int, int] | None) -> None:
        """Acknowledge whole entries, as clients gather them: held or not, and some of them twice or late."""
        held = [p for p, e in self.log.items() if e.holder is not None]
        anything = [p for p, e in self.log.items() if e.size]
        positions = data.draw(st.lists(st.sampled_from(held * 3 + anything), min_size=1, max_size=6))
        if not counted:
            self.subscription.backlog.moved()  # nobody asked for the backlog, so nothing is counted
        consumer, told = self.consumers[0].engine, self.loop.create_future()
        assert consumer is not None
        if wrong is not None:
            asked = [*positions, Position(max(self.log).ledger + wrong[0], wrong[1])]
            with pytest.raises(InvalidAck):
                consumer.acknowledge_entries(asked, told.set_result)
            assert not told.done()
            self._check()
            return
        for position in positions:
            self.log[position].consume()

        async def acknowledge() -> None:
            consumer.acknowledge_entries(positions, told.set_result)
            assert await told is None

        self.run(acknowledge())
        self._check()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def acknowledge_cumulatively(self, data: Any) -> None:
        messages = [p for p, e in self.log.items() if e.size]
        position = data.draw(st.sampled_from(messages[: len(messages) // 2 + 1]))
        index = data.draw(st.none() | st.integers(0, self.log[position].size - 1))
        call = self.consumers[0].engine.acknowledge_cumulative(position, index)  # type: ignore[union-attr]
        if not self.kind.one_active:
            with pytest.raises(NotAllowedError):
                self.run(call)
            return
        for earlier, entry in self.log.items():
            if earlier < position or (earlier == position and index is None):
                entry.consume()
        if index is not None and not self.log[position].consumed:
            self.log[position].acked |= set(range(index + 1))
            if self.log[position].consumed:
                self.log[position].consume()
        self.run(call)
        self._check()

    @precondition(lambda self: self.consumers)
    @rule(data=st.data(), everything=st.booleans())
    def redeliver(self, data: Any, everything: bool) -> None:
        consumer = self._any(data)
        held = [p for p, e in self.log.items() if e.holder == consumer.id]
        asked = None
        if not everything:
            asked = data.draw(st.lists(st.sampled_from(list(self.log)), max_size=4))
            if not self.kind.one_active:
                held = [p for p in held if p in asked]
        for position in held:
            self.log[position].holder = None
            self.log[position].redeliveries += 1
        self._act(lambda: consumer.engine.redeliver(asked))  # type: ignore[union-attr]

    @rule(data=st.data(), really=st.sampled_from([True, False, False, False]))
    def seek(self, data: Any, really: bool) -> None:
        if not really:
            return
        last = max(self.log)
        beyond = Position(last.ledger, last.entry + 2)
        with pytest.raises(InvalidSeek):
            self.run(self.subscription.moves.seek(beyond))
        target = data.draw(st.sampled_from([*self.log, BEFORE_ALL, Position(last.ledger, last.entry + 1)]))
        for position, entry in self.log.items():
            entry.acked = set(range(entry.size)) if position < target else set()
            entry.holder, entry.redeliveries = None, 0
        self.run(self.subscription.moves.seek(target))
        self._check()

    @rule(messages=st.integers(0, 6), really=st.sampled_from([True, False, False]))
    def skip(self, messages: int, really: bool) -> None:
        if not really:
            return
        left = messages
        for entry in self.log.values():
            unacked = [index for index in range(entry.size) if index not in entry.acked]
            entry.acked |= set(unacked[:left])
            left -= min(left, len(unacked))
            if entry.consumed:
                entry.holder = None
        assert self.run(self.subscription.moves.skip(messages)) == messages - left
        self._check()

    @rule(data=st.data(), announce=st.booleans())
    def other_clusters_acknowledge(self, data: Any, announce: bool) -> None:
        """Merge acknowledgements of other clusters. Consumers that hold such a message, or wait for it, need not
        process it: nobody gets it again."""
        some = st.sampled_from(list(self.log))
        held = st.sampled_from([p for p, e in self.log.items() if e.holder is not None] or list(self.log))
        whole = data.draw(st.lists(some | held, max_size=4))
        batches = data.draw(st.dictionaries(some | held, st.sets(st.integers(0, 3), min_size=1), max_size=2))
        for position in whole:
            self.log[position].consume()
        for position, indexes in batches.items():
            entry = self.log[position]
            entry.acked |= {index for index in indexes if index < entry.size}
            if entry.consumed:
                entry.consume()

        async def merge() -> None:
            bitmaps = {position: BitMap(indexes) for position, indexes in batches.items()}
            self.subscription.merging.acks(PositionSet([*whole, Position(2**40, 7)]), bitmaps, announce=announce)
            await self.subscription.saved()

        self.run(merge())
        self._check()

    @rule(position=st.sampled_from([Position(2**40, 7), Position(1, 0)]))
    def acknowledge_what_does_not_exist(self, position: Position) -> None:
        if not self.consumers:
            return
        with pytest.raises(InvalidAck):
            self.run(self.consumers[0].engine.acknowledge([Ack(max(self.log)), Ack(position)]))  # type: ignore[union-attr]
        self._check()

    @rule(really=st.sampled_from([True, False, False]))
    def restart(self, really: bool) -> None:
        """Restart the worker: consumers and redelivery counts are gone, the state is the same."""
        if not really:
            return
        before = self._state()
        for consumer in self.consumers:
            self._take_back(consumer, count=False)
        self.consumers = []

        async def reopen() -> None:
            await self.engine.close()
            self.engine = await Engine.open(self.directory, cluster="us-east")
            self.topic = await self.engine.topic(TOPIC)

        self.run(reopen())
        for entry in self.log.values():
            entry.redeliveries = 0
        assert self._state() == before
        self._check()

    # Inside.

    def _any(self, data: Any) -> Consumer:
        return data.draw(st.sampled_from(self.consumers))

    def _act(self, action: Callable[[], None]) -> None:
        async def act() -> None:
            action()

        self.run(act())

    def _take_back(self, consumer: Consumer, *, count: bool) -> None:
        for entry in self.log.values():
            if entry.holder == consumer.id:
                entry.holder = None
                entry.redeliveries += count

    def _state(self) -> tuple[Any, ...]:
        cursor = self.subscription.cursor
        acked = {p: set(found) for p in self.log if (found := cursor.acked_indexes(p)) is not None}
        return cursor.mark_delete, {p for p in self.log if cursor.is_consumed(p)}, acked, cursor.generation

    def _check(self) -> None:
        """Check that the cursor says exactly what the model says."""
        cursor = self.subscription.cursor
        expected = BEFORE_ALL
        for position, entry in self.log.items():
            if not entry.consumed:
                break
            expected = position
        assert cursor.mark_delete == expected, "mark-delete"
        for position, entry in self.log.items():
            if entry.size:
                acked = cursor.acked_indexes(position)
                assert cursor.is_consumed(position) == entry.consumed, position
                assert entry.consumed or set(acked or ()) == entry.acked, position
        dispatcher = self.subscription.dispatching.dispatcher
        if dispatcher is not None and not self.kind.one_active:
            for consumer in self.consumers:
                held = [entry for entry in self.log.values() if entry.holder == consumer.id]
                unacked = sum(entry.size - len(entry.acked) for entry in held)
                assert dispatcher.consumers[consumer.id].unacked_messages == unacked
        unconsumed = [entry for entry in self.log.values() if not entry.consumed]
        assert self.subscription.backlog_messages() == sum(entry.size for entry in unconsumed)
        assert cursor.backlog_entries() == len(unconsumed)

    def teardown(self) -> None:
        """Check that consumers with permits that acknowledge get all remaining messages."""
        try:
            if not self.failures:
                self._drain()
        finally:
            self.loop.run_until_complete(self.engine.close())
            self.loop.close()
            shutil.rmtree(self.directory)

    def _drain(self) -> None:
        if not self.consumers:
            self.subscribe()
        for _ in range(3 * len(self.log) + 10):
            for consumer in self.consumers:
                if consumer.permits <= 0:
                    self._flow(consumer, 50)
            held = [p for p, e in self.log.items() if e.holder is not None]
            if not held and all(entry.consumed for entry in self.log.values()):
                break
            for position in held:
                self.log[position].consume()
            if held:
                self.run(self.consumers[0].engine.acknowledge([Ack(p) for p in held]))  # type: ignore[union-attr]
        left = [p for p, entry in self.log.items() if not entry.consumed]
        assert not left, f"never delivered: {left}"
        self._check()
        assert self.subscription.cursor.mark_delete == max(self.log)


class ExclusiveMachine(SubscriptionMachine):
    kind = SubscriptionType.EXCLUSIVE


class FailoverMachine(SubscriptionMachine):
    kind = SubscriptionType.FAILOVER


class SharedMachine(SubscriptionMachine):
    kind = SubscriptionType.SHARED


class KeySharedMachine(SubscriptionMachine):
    kind = SubscriptionType.KEY_SHARED


TestExclusiveSubscription = ExclusiveMachine.TestCase
TestFailoverSubscription = FailoverMachine.TestCase
TestSharedSubscription = SharedMachine.TestCase
TestKeySharedSubscription = KeySharedMachine.TestCase
_settings = settings(max_examples=examples(30), stateful_step_count=40)
TestExclusiveSubscription.settings = TestFailoverSubscription.settings = _settings
TestSharedSubscription.settings = TestKeySharedSubscription.settings = _settings
