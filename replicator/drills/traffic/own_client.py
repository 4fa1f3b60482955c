"""The drill's producers and consumers as this project's own client has them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from replicator.client import BatchingType, Client, ConsumerType, InitialPosition
from replicator.client.consuming.consumer import Consumer
from replicator.client.consuming.multi_topics_consumer import MultiTopicsConsumer
from replicator.client.message import MessageId, OutgoingMessage
from replicator.client.producing.partitioned_producer import PartitionedProducer
from replicator.client.producing.producer import Producer
from replicator.drills.observations import Receipt, drill_id_of, drill_id_property
from replicator.drills.subscriptions import TestedSubscription
from replicator.drills.traffic.active import LOST
from replicator.drills.traffic.clients import (
    MAX_PENDING_MESSAGES,
    PUBLISH_DELAY_MILLIS,
    RECEIVE_MESSAGES_MAX,
    RECEIVE_MILLIS,
    RECEIVER_QUEUE_MESSAGES,
    ClientLost,
    Confirmed,
    DrillMessage,
    Received,
)
from replicator.drills.traffic.showing import NOTHING, ClientAccess
from snapshots.position import Position

ACK_GROUP_MILLIS: Final = 20
"""Time after which acknowledgements are sent. It is short, so that drills measure the sync and not the grouping."""
SHARED_CLIENTS_MAX: Final = 16
"""Connections to each cluster if a drill has several topics. Thousands would only test how they are accepted."""
RECEIVE_MILLIS_MAX: Final = 250
"""Longest wait for messages. A consumer notices only then that its clients are to move with nothing broken."""
PENDING_MESSAGES_MIN: Final = 1_000
"""Messages that each producer may have on their way, with any number of topics."""
RECEIVER_QUEUE_MIN: Final = 100
"""Messages that each consumer may hold, with any number of topics."""


@contextmanager
def _lost() -> Iterator[None]:
    try:
        yield
    except LOST as error:
        raise ClientLost(str(error)) from error


@dataclass(slots=True)
class _Shared:
    """A client that several producers and consumers use."""

    client: Client
    users: int = 0


class OwnClients:
    """``urls`` says where the client finds each cluster.

    With one topic each producer and consumer has a connection of its own. With more they share some connections, and
    wait longer for messages that do not come, so that many topics cost few wakes.
    """

    def __init__(self, urls: Mapping[str, str], access: ClientAccess = NOTHING, *, topics: int = 1) -> None:
        self._urls = urls
        self._options = access.own_options()
        self._topics = topics
        self._receive_millis = min(max(RECEIVE_MILLIS, topics), RECEIVE_MILLIS_MAX)
        self._shared: dict[str, list[_Shared]] = {name: [] for name in urls}

    @asynccontextmanager
    async def _client(self, cluster: str) -> AsyncIterator[Client]:
        """Yield a client of ``cluster``. A shared client is closed when its last user leaves."""
        if self._topics == 1:
            async with Client(self._urls[cluster], reconnect=False, **self._options) as client:
                yield client
            return
        shared = self._shared[cluster]
        if len(shared) < SHARED_CLIENTS_MAX:
            shared.append(_Shared(Client(self._urls[cluster], reconnect=False, **self._options)))
        mine = min(shared, key=lambda each: each.users)
        mine.users += 1
        try:
            yield mine.client
        except BaseException:
            if mine in shared:
                shared.remove(mine)  # whoever comes next gets a new connection
            raise
        finally:
            mine.users -= 1
            if not mine.users:
                if mine in shared:
                    shared.remove(mine)
                with suppress(*LOST):
                    await mine.client.close()

    @asynccontextmanager
    async def producer(self, cluster: str, topic: str) -> AsyncIterator[OwnProducer]:
        with _lost():
            async with self._client(cluster) as client:
                producer = await client.create_producer(
                    topic,
                    max_pending_messages=max(MAX_PENDING_MESSAGES // self._topics, PENDING_MESSAGES_MIN),
                    batching_max_publish_delay_ms=PUBLISH_DELAY_MILLIS,
                    batching_type=BatchingType.KeyBased,
                )
                async with self._closed(producer):
                    yield OwnProducer(producer)

    @asynccontextmanager
    async def consumer(
        self, cluster: str, topic: str, tested: TestedSubscription, name: str
    ) -> AsyncIterator[OwnConsumer]:
        with _lost():
            async with self._client(cluster) as client:
                consumer = await client.subscribe(
                    topic,
                    tested.name,
                    ConsumerType(tested.observed.type.value),
                    receiver_queue_size=max(RECEIVER_QUEUE_MESSAGES // self._topics, RECEIVER_QUEUE_MIN),
                    consumer_name=name,
                    initial_position=InitialPosition.Earliest,
                    replicate_subscription_state_enabled=tested.replicated,
                    batch_index_ack_enabled=tested.batch_index_acks,
                    acknowledgement_group_time_ms=ACK_GROUP_MILLIS,
                    ack_receipt_enabled=True,
                )
                async with self._closed(consumer):
                    yield OwnConsumer(consumer, self._receive_millis)

    @asynccontextmanager
    async def _closed(
        self, opened: Producer | PartitionedProducer | Consumer | MultiTopicsConsumer
    ) -> AsyncIterator[None]:
        """Close ``opened`` on exit if its connection may be shared. Ignore a lost connection."""
        try:
            yield
        finally:
            if self._topics > 1:
                with suppress(*LOST):
                    await opened.close()


class OwnProducer:
    """See :class:`~replicator.drills.traffic.clients.DrillProducer`."""

    def __init__(self, producer: Producer | PartitionedProducer) -> None:
        self._producer = producer
        self.room = producer.wait_for_room
        self.flush = producer.flush

    def send(self, message: DrillMessage, confirmed: Confirmed) -> None:
        outgoing = OutgoingMessage(
            message.payload, drill_id_property(message.message_id), message.key, message.key_group
        )

        def settle(done: asyncio.Future[MessageId]) -> None:
            if not done.cancelled() and done.exception() is None:
                place = done.result()
                position = Position(place.ledger_id(), place.entry_id())
                confirmed(message.message_id, position, place.batch_index())

        self._producer.enqueue_message(outgoing).add_done_callback(settle)


class OwnConsumer:
    """See :class:`~replicator.drills.traffic.clients.DrillConsumer`."""

    def __init__(self, consumer: Consumer | MultiTopicsConsumer, receive_millis: int = RECEIVE_MILLIS) -> None:
        self._consumer = consumer
        self._receive_millis = receive_millis

    async def receive(self) -> list[Received]:
        received: list[Received] = []
        for message in await self._consumer.receive_many(RECEIVE_MESSAGES_MAX, self._receive_millis):
            place = message.message_id()
            receipt = Receipt(
                drill_id_of(message.properties()),
                message.origin(),
                message.origin_message_id().position(),
                place.batch_index(),
                message.redelivery_count(),
            )
            received.append(Received(place, place.position(), receipt))
        return received

    async def acknowledge(self, received: Sequence[Received]) -> Sequence[Received]:
        with _lost():
            self._consumer.acknowledge_many([each.handle for each in received])
            await self._consumer.flush_acknowledgements()
        return received

    async def acknowledge_cumulative(self, last: Received) -> None:
        with _lost():
            await self._consumer.acknowledge_cumulative(last.handle)
