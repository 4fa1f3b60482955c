"""The drill's producers, consumers and watchers: official-style clients that record what they see.

All of them follow the :class:`ActiveCluster`: when their connection breaks they wait until the operator (the
scenario) has moved the clients, and carry on there. Nothing here knows what the scenario does next.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from replicator.client import Client, ConsumerType, InitialPosition
from replicator.client.consuming.consumer import Consumer
from replicator.client.consuming.multi_topics_consumer import MultiTopicsConsumer
from replicator.client.errors import AlreadyClosed, ConnectError, Timeout
from replicator.client.message import Message, MessageId, OutgoingMessage
from replicator.drills.input import InputMessage
from replicator.drills.observations import DrillSubscription, Observations, drill_id_of, drill_id_property
from replicator.engine.types import SubscriptionType
from snapshots.position import Position

EXCLUSIVE: Final = DrillSubscription("drill-exclusive", SubscriptionType.EXCLUSIVE, cumulative=True)
SHARED: Final = DrillSubscription("drill-shared", SubscriptionType.SHARED, cumulative=False)
TAIL_SUBSCRIPTION: Final = "drill-tail"
SHARED_CONSUMERS: Final = 2
LEFT_FOR_LATER: Final = 0.05
LATER_SECONDS: Final = 2.0
RECEIVE_MESSAGES_MAX: Final = 1000
RECEIVE_MILLIS: Final = 50
ACK_GROUP_MILLIS: Final = 20
"""Acknowledgements leave after this time, so that what is measured is the sync and not the grouping."""
MAX_PENDING_MESSAGES: Final = 20_000
PACE_SECONDS: Final = 0.01
POLL_SECONDS: Final = 0.05

_LOST = (ConnectError, AlreadyClosed, Timeout)


class ActiveCluster:
    """Where clients are to be. The scenario moves it."""

    def __init__(self, name: str, urls: Mapping[str, str]) -> None:
        self.name = name
        self._urls = urls
        self._moved = asyncio.Condition()

    @property
    def url(self) -> str:
        return self._urls[self.name]

    async def move(self, name: str) -> None:
        self.name = name
        async with self._moved:
            self._moved.notify_all()

    async def moved_from(self, name: str) -> None:
        """Wait until clients are to be elsewhere than at ``name``."""
        async with self._moved:
            await self._moved.wait_for(lambda: self.name != name)


@dataclass(slots=True)
class Drill:
    """What all parts of one drill share."""

    topic: str
    observations: Observations
    active: ActiveCluster
    random: random.Random
    finished: asyncio.Event
    """Set when consumers may stop."""


class Publisher:
    """Publishes the input at ``rate`` messages a second, in producer batches, in order, each confirmed once."""

    def __init__(self, drill: Drill, messages: Iterable[InputMessage], rate: int) -> None:
        self._drill = drill
        self._messages = iter(messages)
        self._rate = rate
        self._unconfirmed: dict[int, OutgoingMessage] = {}
        self._progressed = asyncio.Event()
        self.published = 0
        self.confirmed = 0

    async def wait_until_confirmed(self, count: int) -> None:
        while self.confirmed < count:
            self._progressed.clear()
            await self._progressed.wait()

    async def run(self) -> None:
        """Returns when all of the input is confirmed."""
        more = True
        while more or self._unconfirmed:
            cluster = self._drill.active.name
            try:
                async with Client(self._drill.active.url, reconnect=False) as client:
                    producer = await client.create_producer(
                        self._drill.topic, max_pending_messages=MAX_PENDING_MESSAGES
                    )
                    send = _Sender(self, producer.enqueue_message, cluster)
                    for message_id, message in list(self._unconfirmed.items()):
                        send(message_id, message)
                    more = await self._publish(send, producer.wait_for_room)
                    await producer.flush()
            except _LOST:
                await self._drill.active.moved_from(cluster)

    async def _publish(self, send: _Sender, wait_for_room: Callable[[], Awaitable[None]]) -> bool:
        """Send what is new, at the set rate. Returns False when the input has ended."""
        started, taken = time.monotonic(), 0
        while True:
            due = int((time.monotonic() - started) * self._rate) - taken
            for _ in range(due):
                message = next(self._messages, None)
                if message is None:
                    return False
                taken += 1
                self.published += 1
                message_id = self._drill.observations.add_message(message.key)
                outgoing = OutgoingMessage(message.payload, drill_id_property(message_id), message.key)
                self._unconfirmed[message_id] = outgoing
                await wait_for_room()
                send(message_id, outgoing)
            await asyncio.sleep(PACE_SECONDS)

    def on_confirmed(self, message_id: int, cluster: str, place: MessageId) -> None:
        del self._unconfirmed[message_id]
        self.confirmed += 1
        self._progressed.set()
        position = Position(place.ledger_id(), place.entry_id())
        self._drill.observations.confirmed(message_id, cluster, position, place.batch_index(), time.monotonic())

    def on_sent(self, message_id: int) -> None:
        self._drill.observations.sent(message_id, time.monotonic())


class _Sender:
    """Sends over one producer and records its confirmations; what fails stays unconfirmed."""

    def __init__(
        self, publisher: Publisher, enqueue: Callable[[OutgoingMessage], asyncio.Future[MessageId]], cluster: str
    ) -> None:
        self._publisher = publisher
        self._enqueue = enqueue
        self._cluster = cluster

    def __call__(self, message_id: int, message: OutgoingMessage) -> None:
        confirmation = self._enqueue(message)
        self._publisher.on_sent(message_id)
        confirmation.add_done_callback(lambda done: self._settle(message_id, done))

    def _settle(self, message_id: int, done: asyncio.Future[MessageId]) -> None:
        if not done.cancelled() and done.exception() is None:
            self._publisher.on_confirmed(message_id, self._cluster, done.result())


class Subscriber:
    """One consumer of a subscription under test, at the active cluster, until the drill is finished."""

    def __init__(self, drill: Drill, subscription: DrillSubscription, name: str, seen: set[int]) -> None:
        """``seen`` collects the ids of the messages that arrive, for all consumers of the subscription."""
        self._drill = drill
        self._subscription = subscription
        self._name = name
        self._random = random.Random(drill.random.random())
        self._acking: set[asyncio.Task[None]] = set()
        self._seen = seen

    async def run(self) -> None:
        while not self._drill.finished.is_set():
            cluster = self._drill.active.name
            try:
                async with Client(self._drill.active.url, reconnect=False) as client:
                    consumer = await client.subscribe(
                        self._drill.topic,
                        self._subscription.name,
                        ConsumerType(self._subscription.type.value),
                        receiver_queue_size=5000,
                        consumer_name=self._name,
                        initial_position=InitialPosition.Earliest,
                        replicate_subscription_state_enabled=True,
                        acknowledgement_group_time_ms=ACK_GROUP_MILLIS,
                        ack_receipt_enabled=True,
                    )
                    await self._consume(consumer, cluster)
            except _LOST:
                if not self._drill.finished.is_set():
                    await self._drill.active.moved_from(cluster)
            finally:
                await asyncio.gather(*self._acking, return_exceptions=True)

    async def _consume(self, consumer: Consumer | MultiTopicsConsumer, cluster: str) -> None:
        later: list[tuple[float, Message]] = []
        while not self._drill.finished.is_set() or later:
            messages = await consumer.receive_many(RECEIVE_MESSAGES_MAX, RECEIVE_MILLIS)
            now = time.monotonic()
            for message in messages:
                self._record(message, cluster, now)
            if self._subscription.cumulative:
                if messages:
                    self._start(self._acknowledge_cumulative(consumer, cluster, messages))
                continue
            at_once: list[Message] = []
            for message in messages:
                if self._random.random() < LEFT_FOR_LATER:
                    later.append((now + LATER_SECONDS, message))
                else:
                    at_once.append(message)
            due = [message for at, message in later if at <= now]
            later = [(at, message) for at, message in later if at > now]
            at_once += due
            if at_once:
                self._random.shuffle(at_once)
                self._start(self._acknowledge_each(consumer, cluster, at_once))
            await asyncio.sleep(0)

    def _record(self, message: Message, cluster: str, now: float) -> None:
        message_id = drill_id_of(message.properties())
        self._seen.add(message_id)
        place, origin = message.message_id(), message.origin_message_id()
        self._drill.observations.received(
            self._subscription.name,
            self._name,
            cluster,
            message_id,
            message.origin(),
            Position(origin.ledger_id(), origin.entry_id()),
            place.batch_index(),
            message.redelivery_count(),
            now,
        )

    def _start(self, acknowledging: Any) -> None:
        task = asyncio.ensure_future(acknowledging)
        self._acking.add(task)
        task.add_done_callback(self._acking.discard)

    async def _acknowledge_cumulative(
        self, consumer: Consumer | MultiTopicsConsumer, cluster: str, messages: list[Message]
    ) -> None:
        try:
            await consumer.acknowledge_cumulative(messages[-1])
        except _LOST:
            return
        self._record_acks(cluster, messages)

    async def _acknowledge_each(
        self, consumer: Consumer | MultiTopicsConsumer, cluster: str, messages: list[Message]
    ) -> None:
        try:
            consumer.acknowledge_many(messages)
            await consumer.flush_acknowledgements()
        except _LOST:
            return
        self._record_acks(cluster, messages)

    def _record_acks(self, cluster: str, messages: list[Message]) -> None:
        now = time.monotonic()
        for message in messages:
            self._drill.observations.acked(self._subscription.name, cluster, drill_id_of(message.properties()), now)


class TailReader:
    """Reads one cluster's topic as it grows, and records when copied messages arrive there."""

    def __init__(self, drill: Drill, cluster: str, url: str, running: asyncio.Event) -> None:
        self._drill = drill
        self._cluster = cluster
        self._url = url
        self._running = running
        self.copied = 0

    async def run(self) -> None:
        while not self._drill.finished.is_set():
            await self._running.wait()
            try:
                async with Client(self._url, reconnect=False) as client:
                    consumer = await client.subscribe(
                        self._drill.topic,
                        TAIL_SUBSCRIPTION,
                        receiver_queue_size=5000,
                        initial_position=InitialPosition.Earliest,
                    )
                    await self._read(consumer)
            except _LOST:
                await asyncio.sleep(POLL_SECONDS)  # it may be that nobody has noticed the kill yet

    async def _read(self, consumer: Consumer | MultiTopicsConsumer) -> None:
        while not self._drill.finished.is_set():
            messages = await consumer.receive_many(RECEIVE_MESSAGES_MAX, RECEIVE_MILLIS)
            now = time.monotonic()
            for message in messages:
                if message.origin() != self._cluster:
                    place = message.message_id()
                    self.copied += 1
                    self._drill.observations.observed(
                        self._cluster,
                        drill_id_of(message.properties()),
                        Position(place.ledger_id(), place.entry_id()),
                        now,
                    )
            if messages:
                await consumer.acknowledge_cumulative(messages[-1])


class MarkDeletePoller:
    """Asks one cluster again and again how far the subscriptions under test are there."""

    def __init__(self, drill: Drill, cluster: str, url: str, running: asyncio.Event) -> None:
        self._drill = drill
        self._cluster = cluster
        self._url = url
        self._running = running

    async def run(self) -> None:
        names = {subscription.name for subscription in self._drill.observations.subscriptions}
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while not self._drill.finished.is_set():
                await self._running.wait()
                for subscription in await self._ask(session):
                    if subscription["name"] in names:
                        self._drill.observations.mark_delete(
                            subscription["name"],
                            self._cluster,
                            Position.parse(subscription["mark_delete"]),
                            time.monotonic(),
                        )
                await asyncio.sleep(POLL_SECONDS)

    async def _ask(self, session: aiohttp.ClientSession) -> list[dict[str, Any]]:
        url = f"{self._url}/replication/v1/subscriptions"
        try:
            async with session.get(url, params={"topic": self._drill.topic}) as response:
                answer = await response.json()
        except (aiohttp.ClientError, OSError, TimeoutError):
            return []
        found: list[dict[str, Any]] = answer.get("subscriptions", [])
        return found
