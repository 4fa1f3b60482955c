"""The drill's producers and consumers as Confluent's client for Kafka has them.

A subscription is a consumer group. It has one offset a partition, which :mod:`replicator.drills.traffic.done_offsets`
works out. A message counts as acknowledged when the broker has confirmed a commit that covers it. The library blocks
and has threads of its own. It calls back in the thread that polls; that comes through the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import count
from typing import Any, Final

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_fixed

from replicator.drills.subscriptions import TestedSubscription
from replicator.drills.traffic.active import ActiveCluster
from replicator.drills.traffic.clients import (
    MAX_PENDING_MESSAGES,
    PUBLISH_DELAY_MILLIS,
    RECEIVE_MESSAGES_MAX,
    RECEIVE_MILLIS,
    ClientLost,
    Confirmed,
    DrillMessage,
    Received,
)
from replicator.drills.traffic.done_offsets import DoneOffsets
from replicator.drills.traffic.library import RETRY_SECONDS, Run, Sends, origin_properties, receipt_of
from replicator.running.extras import require_extra
from snapshots.position import Position

EXTRA: Final = "kafka"
THREADS: Final = 3
"""Threads of each client: one each to poll, to commit, and to close."""
TICK_SECONDS: Final = 0.05
CLOSE_SECONDS_MAX: Final = 3.0
COMMIT_TRIES: Final = 20
PRODUCER: Final[Mapping[str, Any]] = {
    "acks": "all",
    "enable.idempotence": True,
    "linger.ms": PUBLISH_DELAY_MILLIS,
    "queue.buffering.max.messages": 4 * MAX_PENDING_MESSAGES,
}
CONSUMER: Final[Mapping[str, Any]] = {
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
    # A member that joins takes no partition from another one that keeps its own.
    "partition.assignment.strategy": "cooperative-sticky",
    # A topic that comes into being while the consumer is there is noticed within a second.
    "topic.metadata.refresh.interval.ms": 1000,
    "allow.auto.create.topics": False,
    # A member that died is noticed after 6 s, and not after 45, as it comes.
    "session.timeout.ms": 6000,
    "heartbeat.interval.ms": 500,
}


class CommitRefused(ClientLost):
    """The broker refused a commit now, for example while members of the group come and go."""


def load(wanted: str) -> Any:
    """Return the client's package; raise :class:`ExtraMissing`."""
    require_extra(EXTRA, wanted)
    import confluent_kafka

    return confluent_kafka


def quiet() -> dict[str, Any]:
    """Return settings that keep the library from writing to standard error that a killed broker does not answer."""
    logger = logging.getLogger(f"{__name__}.library")
    logger.propagate = False
    logger.addHandler(logging.NullHandler())
    return {"logger": logger}


class KafkaClients:
    """Clients for clusters at ``addresses``. ``mirrored`` gives the names under which the copies of a topic stand in
    each.
    """

    def __init__(
        self, addresses: Mapping[str, str], mirrored: Mapping[str, Sequence[str]], active: ActiveCluster
    ) -> None:
        self._kafka = load("a Kafka client")
        self._addresses = addresses
        self._mirrored = mirrored
        self._active = active
        self._order = count()

    @asynccontextmanager
    async def producer(self, cluster: str, topic: str) -> AsyncIterator[KafkaProducer]:
        settings = {"bootstrap.servers": self._addresses[cluster], **PRODUCER, **quiet()}
        producer = KafkaProducer(self._kafka.Producer(settings), topic, cluster, self._order, self._active)
        try:
            yield producer
        finally:
            await producer.close()

    @asynccontextmanager
    async def consumer(
        self, cluster: str, topic: str, tested: TestedSubscription, name: str
    ) -> AsyncIterator[KafkaConsumer]:
        settings = {
            "bootstrap.servers": self._addresses[cluster],
            "group.id": tested.name,
            "client.id": name,
            **CONSUMER,
            **quiet(),
        }
        consumer = KafkaConsumer(
            self._kafka, settings, [topic, *self._mirrored[cluster]], lambda: self._active.name == cluster
        )
        try:
            yield consumer
        finally:
            await consumer.close()


class KafkaProducer:
    """See :class:`~replicator.drills.traffic.clients.DrillProducer`."""

    def __init__(self, producer: Any, topic: str, cluster: str, order: count[int], active: ActiveCluster) -> None:
        self._producer = producer
        self._topic = topic
        self._cluster = cluster
        self._order = order
        self._sends = Sends(cluster, active)
        self.room = self._sends.room
        self.flush = self._sends.flush
        self._threads = ThreadPoolExecutor(1, thread_name_prefix=f"kafka producer at {cluster}")
        self._closed = threading.Event()
        self._polling = Run(self._threads)(self._poll)

    def send(self, message: DrillMessage, confirmed: Confirmed) -> None:
        properties = origin_properties(message, self._cluster, self._order)
        self._sends.begin()

        def answered(error: Any, place: Any) -> None:
            """Take the broker's answer, in the thread that polls."""
            position = None if error is not None else Position(0, place.offset())
            self._sends.answered(message.message_id, position, -1, confirmed)

        headers = {name: value.encode() for name, value in properties.items()}
        self._producer.produce(
            self._topic, message.payload, message.key.encode(), partition=0, on_delivery=answered, headers=headers
        )

    async def close(self) -> None:
        self._sends.close()
        self._closed.set()
        await self._polling
        self._threads.shutdown(wait=False)

    def _poll(self) -> None:
        while not self._closed.is_set():
            self._producer.poll(TICK_SECONDS)
        self._producer.purge()  # else it waits for a cluster that died until it is forgotten


class KafkaConsumer:
    """See :class:`~replicator.drills.traffic.clients.DrillConsumer`."""

    def __init__(
        self, kafka: Any, settings: Mapping[str, Any], topics: Sequence[str], stays: Callable[[], bool]
    ) -> None:
        """Make the consumer. ``stays`` tells whether clients are still to be there: a dead cluster confirms no
        commit.
        """
        self._kafka = kafka
        self._stays = stays
        self._loop = asyncio.get_running_loop()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="kafka consumer")
        self._run = Run(self._threads)
        self._one_at_a_time = threading.Lock()
        """Held during each call, because the library must not be closed meanwhile."""
        self._is_closed = False
        self._offsets = DoneOffsets()
        self._received: dict[tuple[str, int], Received] = {}
        self._in_order: list[tuple[str, int]] = []
        self._committing = asyncio.Lock()
        self._answer: asyncio.Future[Any] | None = None
        self._consumer = kafka.Consumer({**settings, "on_commit": self._committed})
        self._consumer.subscribe(list(topics), on_revoke=self._revoked)

    async def receive(self) -> list[Received]:
        received: list[Received] = []
        for message in await self._run(self._receive):
            handle = (message.topic(), message.offset())
            properties = {name: value.decode() for name, value in message.headers() or ()}
            one = Received(handle, Position(0, message.offset()), receipt_of(properties, 0))
            self._offsets.received(*handle)
            self._received[handle] = one
            self._in_order.append(handle)
            received.append(one)
        return received

    async def acknowledge(self, received: Sequence[Received]) -> Sequence[Received]:
        self._offsets.done(each.handle for each in received)
        return await self._commit()

    async def acknowledge_cumulative(self, last: Received) -> None:
        try:
            end = self._in_order.index(last.handle) + 1
        except ValueError:
            raise ClientLost(
                "the partition was given to another consumer, which gets its unacknowledged messages"
            ) from None
        self._offsets.done(self._in_order[:end])
        await self._commit()

    async def close(self) -> None:
        closing = self._run(self._close)
        self._threads.shutdown(wait=False)
        if self._stays():
            await asyncio.wait([closing], timeout=CLOSE_SECONDS_MAX)  # a cluster that died does not answer

    async def _commit(self) -> list[Received]:
        """Commit the offset of finished messages if it is new; return the messages that it acknowledges."""
        async with self._committing:
            offsets, covered = self._offsets.take()
            if not offsets:
                return []
            places = [self._kafka.TopicPartition(topic, 0, offset) for topic, offset in offsets.items()]
            retrying = AsyncRetrying(
                stop=stop_after_attempt(COMMIT_TRIES),
                wait=wait_fixed(RETRY_SECONDS),
                retry=retry_if_exception_type(CommitRefused),
                reraise=True,
            )
            await retrying(self._confirmed, places)
        self._in_order = [handle for handle in self._in_order if handle not in covered]
        return [self._received.pop(handle) for handle in covered if handle in self._received]

    async def _confirmed(self, places: list[Any]) -> None:
        """Commit, and wait for the broker's answer. Raise :class:`CommitRefused`."""
        answer = self._answer = self._loop.create_future()
        await self._run(self._begin_commit, places)
        while not answer.done():
            await asyncio.wait([answer], timeout=RETRY_SECONDS)
            if self._is_closed or not self._stays():
                raise ClientLost(
                    "the drill's client left the cluster before it confirmed a commit of offsets; its messages come "
                    "again"
                )
        if (error := answer.result()) is not None:
            raise CommitRefused(str(error))

    # In threads.

    def _receive(self) -> list[Any]:
        with self._one_at_a_time:
            if self._is_closed:
                return []
            first = self._consumer.poll(RECEIVE_MILLIS / 1000)
            if first is None:
                return []
            # What is here already, without waiting for more.
            messages = [first, *self._consumer.consume(RECEIVE_MESSAGES_MAX, 0)]
        return [message for message in messages if message.error() is None]  # it tries again by itself

    def _begin_commit(self, places: list[Any]) -> None:
        with self._one_at_a_time:
            if self._is_closed:
                return
            self._consumer.commit(offsets=places, asynchronous=True)

    def _close(self) -> None:
        with self._one_at_a_time:
            if not self._is_closed:
                self._is_closed = True
                self._consumer.close()

    def _committed(self, error: Any, _places: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._take_answer, error)

    def _take_answer(self, error: Any) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(error)

    def _revoked(self, _consumer: Any, places: Sequence[Any]) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._forget, {place.topic for place in places})

    def _forget(self, topics: set[str]) -> None:
        self._offsets.forget(topics)
        self._received = {handle: one for handle, one in self._received.items() if handle[0] not in topics}
        self._in_order = [handle for handle in self._in_order if handle[0] not in topics]
