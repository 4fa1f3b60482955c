"""Producer of a partitioned topic: one :class:`Producer` for each partition behind one API.

It chooses the partition, once for each message. All partitions' producers have one name. With
``lazy_start_partitioned_producers`` only the partition where messages without a key begin is connected at once. Any
other is connected with its first message, and messages wait for it here, in order, within the same bound (invariant
11).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

from replicator.client.errors import AlreadyClosed, ProducerQueueIsFull, PulsarException
from replicator.client.message import MessageId, OutgoingMessage
from replicator.client.producing.pending import Confirmation, fail_all
from replicator.client.producing.producer import Producer
from replicator.client.producing.producer_stats import ProducerStats, ProducerStatsRecorder
from replicator.client.producing.routing import Router
from replicator.client.producing.sending import AddContext, MessageSender
from replicator.client.schema import Schema
from replicator.client.settings import ProducerSettings
from replicator.running.short_tasks import awaited

StartPartition = Callable[[int, str | None], Awaitable[Producer]]
"""Function that connects the producer of one partition under a name, or None for a name that the cluster chooses."""


class _Starting:
    """Partition whose producer is being connected, and the messages that wait for it."""

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.waiting: list[tuple[OutgoingMessage, Confirmation]] = []


class PartitionedProducer(MessageSender):
    """Producer for all partitions of one topic, used like a :class:`Producer`. :meth:`Client.create_producer` makes it.

    Limits such as ``max_pending_messages`` count for each partition.
    """

    def __init__(
        self,
        settings: ProducerSettings,
        partitions: int,
        router: Router,
        start_partition: StartPartition,
        *,
        on_close: Callable[[PartitionedProducer], None],
        schema: Schema | None = None,
        add_context: AddContext | None = None,
    ) -> None:
        super().__init__(
            settings.topic, schema, block_if_queue_full=settings.block_if_queue_full, add_context=add_context
        )
        assert partitions > 0
        self._settings = settings
        self._partitions = partitions
        self._router = router
        self._start_partition = start_partition
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._producers: dict[int, Producer] = {}
        self._starting: dict[int, _Starting] = {}
        self._closing: AlreadyClosed | None = None

    async def connect(self, first: int, *, lazy: bool) -> None:
        """Connect all partitions, or with ``lazy`` only ``first``. The client calls this once.

        If one cannot be connected, those that are connected are closed again.
        """
        name = self._settings.producer_name
        try:
            # If the cluster chooses the first one's name, all get that name.
            self._producers[first] = await self._start_partition(first, name)
            if not lazy:
                others = [partition for partition in range(self._partitions) if partition != first]
                await _gathered(self._connect(partition) for partition in others)
        except BaseException:
            self._closing = AlreadyClosed(f"producer of {self._topic} was not made")
            await asyncio.gather(*(producer.close() for producer in self._producers.values()))
            raise

    def enqueue_message(self, message: OutgoingMessage) -> Confirmation:
        if self._closing is not None:
            raise self._closing.with_traceback(None)
        partition = self._router.partition_of(message, self._partitions, self._loop.time())
        producer = self._producers.get(partition)
        if producer is not None:
            return producer.enqueue_message(message)
        starting = self._starting.get(partition)
        if starting is None:
            starting = self._starting[partition] = _Starting()
            starting.task = awaited(self._start(partition, starting))
        if len(starting.waiting) >= self._settings.max_pending_messages:
            raise ProducerQueueIsFull(
                f"{self._topic}: {len(starting.waiting)} messages wait for partition {partition}: send more slowly, "
                "or raise max_pending_messages"
            )
        confirmation: Confirmation = self._loop.create_future()
        starting.waiting.append((message, confirmation))
        return confirmation

    async def wait_for_room(self) -> None:
        """Wait until no partition is full, because the partition of the next message is not known yet."""
        if self._closing is not None:
            raise self._closing.with_traceback(None)
        for producer in list(self._producers.values()):
            await producer.wait_for_room()
        for starting in list(self._starting.values()):
            if len(starting.waiting) >= self._settings.max_pending_messages and starting.task is not None:
                await asyncio.wait([starting.task])

    def is_full(self) -> bool:
        most = self._settings.max_pending_messages
        return any(producer.is_full() for producer in self._producers.values()) or any(
            len(starting.waiting) >= most for starting in self._starting.values()
        )

    def seal_batches(self) -> None:
        for producer in self._producers.values():
            producer.seal_batches()

    def pending(self) -> list[OutgoingMessage]:
        """Return the unconfirmed messages; those of one partition are in order."""
        messages = [message for producer in self._producers.values() for message in producer.pending()]
        return messages + [message for starting in self._starting.values() for message, _ in starting.waiting]

    async def flush(self) -> None:
        """Flush every partition (:meth:`Producer.flush`). Raises the first error when all are done."""
        if self._closing is not None:
            raise self._closing.with_traceback(None)
        await self._wait_for_starting()
        await _gathered(producer.flush() for producer in self._producers.values())

    async def close(self) -> None:
        """Close the producers of all partitions. Idempotent."""
        if self._closing is not None:
            return
        self._closing = AlreadyClosed(f"producer of {self._topic} is closed")
        try:
            await self._wait_for_starting()
            await _gathered(producer.close() for producer in self._producers.values())
        finally:
            self._on_close(self)

    def topic(self) -> str:
        return self._topic

    def producer_name(self) -> str:
        return next(iter(self._producers.values())).producer_name()

    def last_sequence_id(self) -> int:
        """Return the highest sequence id that is confirmed in any partition. Each numbers its own messages."""
        return max(producer.last_sequence_id() for producer in self._producers.values())

    def is_connected(self) -> bool:
        """Return whether every partition that was started is connected."""
        return self._closing is None and all(producer.is_connected() for producer in self._producers.values())

    def stats(self) -> ProducerStats:
        """Return the statistics of all partitions together."""
        together = ProducerStatsRecorder()
        for producer in self._producers.values():
            together.merge(producer.stats_recorder())
        return together.stats(len(self.pending()))

    # Inside.

    async def _connect(self, partition: int) -> None:
        self._producers[partition] = await self._start_partition(partition, self.producer_name())

    async def _start(self, partition: int, starting: _Starting) -> None:
        """Connect a partition, and send its waiting messages. If it fails, they fail, and a later message starts it
        again."""
        try:
            await self._connect(partition)
        except PulsarException as error:
            fail_all([confirmation for _, confirmation in starting.waiting], error)
        else:
            producer = self._producers[partition]
            for message, confirmation in starting.waiting:
                _send_queued(producer, message, confirmation)
        finally:
            del self._starting[partition]

    async def _wait_for_starting(self) -> None:
        tasks = [starting.task for starting in self._starting.values() if starting.task is not None]
        if tasks:
            await asyncio.wait(tasks)


async def _gathered(calls: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run all calls to their ends, then raise the first error."""
    for result in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


def _send_queued(producer: Producer, message: OutgoingMessage, confirmation: Confirmation) -> None:
    """Send a message that waited; its future gets the result of the partition's own future."""
    try:
        sent = producer.enqueue_message(message)
    except PulsarException as error:
        fail_all([confirmation], error)
        return

    def settle(sent: Confirmation) -> None:
        if confirmation.done():
            return
        if sent.cancelled():
            confirmation.cancel()
        elif (error := sent.exception()) is not None:
            fail_all([confirmation], error if isinstance(error, PulsarException) else PulsarException(str(error)))
        else:
            result: MessageId = sent.result()
            confirmation.set_result(result)

    sent.add_done_callback(settle)
