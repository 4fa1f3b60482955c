"""Synchronous facade of the client, for code without an event loop.

It owns a thread with an event loop in which everything runs; each call waits for its result. Errors and results are
those of the asyncio API. Calls may come from several threads. A listener is called in a thread of a pool, with the
synchronous consumer, one message after the other; closing does not wait for a listener that does not return.

A producer does not batch unless ``batching_enabled=True``, like the official synchronous client and unlike the asyncio
one: a caller that waits for each message would only wait for its batch to be sent.
"""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from replicator.client.client import Client
from replicator.client.consuming.consumer import Consumer
from replicator.client.consuming.consumer_stats import ConsumerStats
from replicator.client.consuming.listening import MessageListener
from replicator.client.consuming.multi_topics_consumer import MultiTopicsConsumer
from replicator.client.consuming.reader import Reader
from replicator.client.errors import AlreadyClosed
from replicator.client.message import Message, MessageId
from replicator.client.producing.partitioned_producer import PartitionedProducer
from replicator.client.producing.producer import Producer
from replicator.client.producing.producer_stats import ProducerStats

T = TypeVar("T")

LISTENER_THREADS_MAX: Final = 64
"""Limit of listeners that run at once; further ones take turns."""
_BATCHING_ENABLED_ARGUMENT: Final = 8
"""Index of ``batching_enabled`` among the arguments of ``create_producer`` after the topic."""


class _Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="replicator-client", daemon=True)
        self._lock = threading.Lock()
        self._stopped = False
        self._listeners = ThreadPoolExecutor(LISTENER_THREADS_MAX, thread_name_prefix="replicator-listener")
        self._thread.start()

    def _run(self) -> None:
        """Run the loop in its thread until it is stopped, and then close it.

        The closing is done here because the thread that stops it may have a running loop, like a notebook's."""
        self._loop.run_forever()
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine in the loop and wait for its result. An interrupt cancels it."""
        with self._lock:
            if self._stopped:
                call.close()
                raise AlreadyClosed("the client is closed: make a new one")
            future = asyncio.run_coroutine_threadsafe(call, self._loop)
        try:
            return future.result()
        except KeyboardInterrupt:
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the loop and wait for its result."""

        async def called() -> T:
            return function()

        return self.run(called())

    async def call_listener(self, listener: Callable[[Any, Message], object], facade: object, message: Message) -> None:
        """Run a listener in a thread of the pool and wait for it."""
        await self._loop.run_in_executor(self._listeners, listener, facade, message)

    def stop(self) -> None:
        """Stop the loop and end its thread. Idempotent."""
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        self._listeners.shutdown(wait=False, cancel_futures=True)  # it may be a listener that closes, or none returns
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


class _Closing:
    """Base of all parts of the facade: a context manager that closes itself."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class SyncProducer(_Closing):
    """Synchronous :class:`Producer`; :meth:`SyncClient.create_producer` makes it."""

    def __init__(self, loop: _Loop, producer: Producer | PartitionedProducer) -> None:
        self._loop = loop
        self._producer = producer

    def send(
        self,
        content: Any,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: timedelta | None = None,
    ) -> MessageId:
        """Send a message and return its id when it is durable."""
        return self._loop.run(
            self._producer.send(
                content,
                properties,
                partition_key=partition_key,
                ordering_key=ordering_key,
                sequence_id=sequence_id,
                replication_clusters=replication_clusters,
                disable_replication=disable_replication,
                event_timestamp=event_timestamp,
                deliver_at=deliver_at,
                deliver_after=deliver_after,
            )
        )

    def flush(self) -> None:
        self._loop.run(self._producer.flush())

    def close(self) -> None:
        _close(self._loop, self._producer.close)

    def topic(self) -> str:
        return self._producer.topic()

    def producer_name(self) -> str:
        return self._producer.producer_name()

    def last_sequence_id(self) -> int:
        return self._producer.last_sequence_id()

    def is_connected(self) -> bool:
        return self._loop.call(self._producer.is_connected)

    def stats(self) -> ProducerStats:
        return self._loop.call(self._producer.stats)


class SyncConsumer(_Closing):
    """Synchronous :class:`Consumer`; :meth:`SyncClient.subscribe` makes it. Iteration ends when it is closed."""

    def __init__(self, loop: _Loop, consumer: Consumer | MultiTopicsConsumer) -> None:
        self._loop = loop
        self._consumer = consumer

    def receive(self, timeout_millis: int | None = None) -> Message:
        return self._loop.run(self._consumer.receive(timeout_millis))

    def batch_receive(self) -> list[Message]:
        return self._loop.run(self._consumer.batch_receive())

    def acknowledge(self, message: Message | MessageId) -> None:
        self._loop.run(self._consumer.acknowledge(message))

    def acknowledge_many(self, messages: Iterable[Message | MessageId]) -> None:
        self._loop.call(lambda: self._consumer.acknowledge_many(messages))

    def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        self._loop.run(self._consumer.acknowledge_cumulative(message))

    def flush_acknowledgements(self) -> None:
        self._loop.run(self._consumer.flush_acknowledgements())

    def negative_acknowledge(self, message: Message | MessageId) -> None:
        self._loop.run(self._consumer.negative_acknowledge(message))

    def reconsume_later(self, message: Message, delay_ms: int, properties: Mapping[str, str] | None = None) -> None:
        self._loop.run(self._consumer.reconsume_later(message, delay_ms, properties))

    def redeliver_unacknowledged_messages(self) -> None:
        self._loop.call(self._consumer.redeliver_unacknowledged_messages)

    def seek(self, messageid: MessageId | int) -> None:
        self._loop.run(self._consumer.seek(messageid))

    def pause_message_listener(self) -> None:
        self._loop.call(self._consumer.pause_message_listener)

    def resume_message_listener(self) -> None:
        self._loop.call(self._consumer.resume_message_listener)

    def unsubscribe(self, force: bool = False) -> None:
        self._loop.run(self._consumer.unsubscribe(force))

    def close(self) -> None:
        _close(self._loop, self._consumer.close)

    def stats(self) -> ConsumerStats:
        return self._loop.call(self._consumer.stats)

    def topic(self) -> str:
        return self._consumer.topic()

    def subscription_name(self) -> str:
        return self._consumer.subscription_name()

    def consumer_name(self) -> str:
        return self._consumer.consumer_name()

    def has_reached_end_of_topic(self) -> bool:
        return self._loop.call(self._consumer.has_reached_end_of_topic)

    def is_connected(self) -> bool:
        return self._loop.call(self._consumer.is_connected)

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                yield self.receive()
            except AlreadyClosed:
                return


class SyncReader(_Closing):
    """Synchronous :class:`Reader`; :meth:`SyncClient.create_reader` makes it."""

    def __init__(self, loop: _Loop, reader: Reader) -> None:
        self._loop = loop
        self._reader = reader

    def read_next(self, timeout_millis: int | None = None) -> Message:
        return self._loop.run(self._reader.read_next(timeout_millis))

    def has_message_available(self) -> bool:
        return self._loop.run(self._reader.has_message_available())

    def seek(self, messageid: MessageId | int) -> None:
        self._loop.run(self._reader.seek(messageid))

    def get_last_message_id(self) -> MessageId:
        return self._loop.run(self._reader.get_last_message_id())

    def close(self) -> None:
        _close(self._loop, self._reader.close)

    def topic(self) -> str:
        return self._reader.topic()

    def has_reached_end_of_topic(self) -> bool:
        return self._loop.call(self._reader.has_reached_end_of_topic)

    def is_connected(self) -> bool:
        return self._loop.call(self._reader.is_connected)

    def __iter__(self) -> Iterator[Message]:
        while True:
            try:
                yield self.read_next()
            except AlreadyClosed:
                return


class SyncClient(_Closing):
    """Synchronous :class:`Client`. See there for the arguments of every method."""

    def __init__(self, service_url: str | None = None, **options: Any) -> None:
        self._loop = _Loop()
        try:
            self._client = self._loop.call(lambda: Client(service_url, **options))
        except BaseException:
            self._loop.stop()
            raise

    def create_producer(self, topic: str, *args: Any, **options: Any) -> SyncProducer:
        """Create a producer, without batching unless ``batching_enabled=True``."""
        if len(args) <= _BATCHING_ENABLED_ARGUMENT:
            options.setdefault("batching_enabled", False)
        return SyncProducer(self._loop, self._loop.run(self._client.create_producer(topic, *args, **options)))

    def subscribe(
        self,
        topic: str | list[str] | re.Pattern[str],
        subscription_name: str,
        *args: Any,
        message_listener: Callable[[SyncConsumer, Message], object] | None = None,
        **options: Any,
    ) -> SyncConsumer:
        listener = None if message_listener is None else self._in_a_thread(message_listener, SyncConsumer)
        consumer = self._loop.run(
            self._client.subscribe(topic, subscription_name, *args, message_listener=listener, **options)
        )
        return SyncConsumer(self._loop, consumer)

    def create_reader(
        self,
        topic: str,
        start_message_id: MessageId,
        *,
        reader_listener: Callable[[SyncReader, Message], object] | None = None,
        **options: Any,
    ) -> SyncReader:
        listener = None if reader_listener is None else self._in_a_thread(reader_listener, SyncReader)
        reader = self._loop.run(
            self._client.create_reader(topic, start_message_id, reader_listener=listener, **options)
        )
        return SyncReader(self._loop, reader)

    def get_topic_partitions(self, topic: str) -> list[str]:
        return self._loop.run(self._client.get_topic_partitions(topic))

    def close(self) -> None:
        """Close every producer, consumer and reader, and end the thread. Idempotent."""
        try:
            _close(self._loop, self._client.close)
        finally:
            self._loop.stop()

    def _in_a_thread(self, listener: Callable[[Any, Message], object], facade: Callable[..., Any]) -> MessageListener:
        async def listen(consumer: object, message: Message) -> None:
            await self._loop.call_listener(listener, facade(self._loop, consumer), message)

        return listen


def _close(loop: _Loop, close: Callable[[], Awaitable[None]]) -> None:
    """Call ``close`` in the loop. Do nothing if the client is closed already: its parts are then closed too."""

    async def closed() -> None:
        await close()

    try:
        loop.run(closed())
    except AlreadyClosed:
        return
