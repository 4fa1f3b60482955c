"""The drill's producers and consumers as Pulsar's official Python client has them.

The library blocks and has threads of its own. So each client of a drill has a thread that receives and one that does
the rest, and what the library calls back comes through the event loop. The library comes back to a cluster that it lost
by itself, for as long as the operator leaves it there; when the clients are to go elsewhere, a new client is made.

Official clients are told neither the origin of a message nor its place there: the drill sends both along
(:mod:`replicator.drills.traffic.library`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any, Final, TypeVar

from replicator.client.authentication import NOTHING, ConnectionSecurity
from replicator.drills.errors import ClientMissing
from replicator.drills.subscriptions import TestedSubscription
from replicator.drills.traffic.active import ActiveCluster
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
from replicator.drills.traffic.library import RETRY_SECONDS, Run, Sends, origin_properties, receipt_of
from replicator.drills.traffic.showing import official_options
from replicator.engine.types import SubscriptionType
from replicator.running.timeouts import timeout
from snapshots.position import Position

PACKAGE: Final = "pulsar-client"
BATCH_MESSAGES_MAX: Final = 1000
THREADS: Final = 3
"""Threads of each client: one each to receive, to acknowledge, and to close."""
CONNECT_MILLIS_MAX: Final = 3_000
OPERATION_SECONDS_MAX: Final = 10
CLOSE_SECONDS_MAX: Final = 3.0
"""Longest time for closing a client. A dead cluster does not answer; then the client is torn down."""

T = TypeVar("T")


def load(wanted: str = "--client pulsar") -> Any:
    """Return the client's package; raise :class:`ClientMissing`, which names ``wanted`` as the purpose."""
    try:
        return import_module("pulsar")
    except ImportError:
        raise ClientMissing(f"{wanted}: the package {PACKAGE} is not installed: pip install {PACKAGE}") from None


class PulsarClients:
    """Official clients: ``urls`` has the address of each cluster, and ``showing`` the credentials for it. The library
    logs to the file ``log``.
    """

    def __init__(
        self,
        urls: Mapping[str, str],
        active: ActiveCluster,
        log: Path,
        showing: Mapping[str, ConnectionSecurity] | None = None,
    ) -> None:
        self._pulsar = load()
        self._urls = urls
        self._showing = showing or {}
        self._active = active
        self._log = log
        self._order = count()

    @asynccontextmanager
    async def producer(self, cluster: str, topic: str) -> AsyncIterator[PulsarProducer]:
        def make(client: Any) -> Any:
            return client.create_producer(
                topic,
                send_timeout_millis=0,
                max_pending_messages=2 * MAX_PENDING_MESSAGES,
                max_pending_messages_across_partitions=2 * MAX_PENDING_MESSAGES,
                batching_enabled=True,
                batching_max_messages=BATCH_MESSAGES_MAX,
                batching_max_publish_delay_ms=PUBLISH_DELAY_MILLIS,
                batching_type=self._pulsar.BatchingType.KeyBased,
            )

        async with self._opened(cluster, make) as (made, _run):
            producer = PulsarProducer(made, cluster, self._order, self._active, self._pulsar.Result.Ok)
            try:
                yield producer
            finally:
                producer.close()

    @asynccontextmanager
    async def consumer(
        self, cluster: str, topic: str, tested: TestedSubscription, name: str
    ) -> AsyncIterator[PulsarConsumer]:
        pulsar = self._pulsar
        types = {
            SubscriptionType.EXCLUSIVE: pulsar.ConsumerType.Exclusive,
            SubscriptionType.SHARED: pulsar.ConsumerType.Shared,
            SubscriptionType.FAILOVER: pulsar.ConsumerType.Failover,
            SubscriptionType.KEY_SHARED: pulsar.ConsumerType.KeyShared,
        }

        def make(client: Any) -> Any:
            return client.subscribe(
                topic,
                tested.name,
                types[tested.observed.type],
                receiver_queue_size=RECEIVER_QUEUE_MESSAGES,
                consumer_name=name,
                initial_position=pulsar.InitialPosition.Earliest,
                replicate_subscription_state_enabled=tested.replicated,
                batch_index_ack_enabled=tested.batch_index_acks,
                batch_receive_policy=pulsar.ConsumerBatchReceivePolicy(RECEIVE_MESSAGES_MAX, -1, RECEIVE_MILLIS),
            )

        async with self._opened(cluster, make) as (made, run):
            yield PulsarConsumer(made, run, pulsar.PulsarException)

    @asynccontextmanager
    async def _opened(self, cluster: str, make: Callable[[Any], T]) -> AsyncIterator[tuple[T, Run]]:
        """Yield what ``make`` returns for a client. Repeat it while clients are to be at that cluster."""
        threads = ThreadPoolExecutor(THREADS, thread_name_prefix=f"pulsar client at {cluster}")
        run = Run(threads)
        logger = self._pulsar.FileLogger(self._pulsar.LoggerLevel.Warn, str(self._log))
        client = self._pulsar.Client(
            self._urls[cluster],
            operation_timeout_seconds=OPERATION_SECONDS_MAX,
            connection_timeout_ms=CONNECT_MILLIS_MAX,
            logger=logger,
            **official_options(self._showing.get(cluster, NOTHING), self._pulsar),
        )
        try:
            while True:
                try:
                    made = await run(make, client)
                    break
                except self._pulsar.PulsarException as error:
                    if self._active.name != cluster:
                        raise ClientLost(str(error)) from error
                await asyncio.sleep(RETRY_SECONDS)
            yield made, run
        finally:
            await self._close(client, run)
            threads.shutdown(wait=False)

    async def _close(self, client: Any, run: Run) -> None:
        try:
            async with timeout(CLOSE_SECONDS_MAX):
                await run(client.close)
        except (TimeoutError, self._pulsar.PulsarException):
            client.shutdown()


class PulsarProducer:
    """See :class:`~replicator.drills.traffic.clients.DrillProducer`."""

    def __init__(self, producer: Any, cluster: str, order: count[int], active: ActiveCluster, ok: Any) -> None:
        self._producer = producer
        self._cluster = cluster
        self._order = order
        self._ok = ok
        self._sends = Sends(cluster, active)
        self.room = self._sends.room
        self.flush = self._sends.flush
        self.close = self._sends.close

    def send(self, message: DrillMessage, confirmed: Confirmed) -> None:
        properties = origin_properties(message, self._cluster, self._order)
        self._sends.begin()

        def answered(result: Any, place: Any) -> None:
            """Take the broker's answer, in a thread of the library. The process would end if this raised."""
            ok = result == self._ok
            position, index = (Position(place.ledger_id(), place.entry_id()), place.batch_index()) if ok else (None, -1)
            self._sends.answered(message.message_id, position, index, confirmed)

        self._producer.send_async(
            message.payload,
            answered,
            properties=properties,
            partition_key=message.key,
            ordering_key=message.key_group,
        )


class PulsarConsumer:
    """See :class:`~replicator.drills.traffic.clients.DrillConsumer`."""

    def __init__(self, consumer: Any, run: Run, error: type[Exception]) -> None:
        self._consumer = consumer
        self._run = run
        self._error = error

    async def receive(self) -> list[Received]:
        return await self._ask(self._receive)

    async def acknowledge(self, received: Sequence[Received]) -> Sequence[Received]:
        await self._ask(self._acknowledge, received)
        return received

    async def acknowledge_cumulative(self, last: Received) -> None:
        await self._ask(self._consumer.acknowledge_cumulative, last.handle)

    async def _ask(self, function: Callable[..., T], *arguments: Any) -> T:
        try:
            return await self._run(function, *arguments)
        except self._error as error:
            raise ClientLost(str(error)) from error

    # In a thread.

    def _receive(self) -> list[Received]:
        received: list[Received] = []
        for message in self._consumer.batch_receive():
            properties = message.properties()
            place = message.message_id()
            receipt = receipt_of(properties, message.redelivery_count())
            received.append(Received(place, Position(place.ledger_id(), place.entry_id()), receipt))
        return received

    def _acknowledge(self, received: Sequence[Received]) -> None:
        for each in received:
            self._consumer.acknowledge(each.handle)
