"""What group ``peers`` does with a Kafka broker, by Confluent's client, with its default batches. All of it blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, NewTopic, ResourceType

from bench.lag import (
    ARRIVAL_SECONDS_MAX,
    BATCH_DELAY_MS,
    HALF_LOAD_SECONDS,
    MESSAGE_BYTES,
    PROBE_MESSAGES,
    QUEUE_MESSAGES,
    RUNS,
    TICK_SECONDS,
    Lag,
)
from tests.peers.jvm import PeerFailed

ANSWER_SECONDS_MAX: Final = 60.0
TRANSACTION_MS_MAX: Final = 600_000
POLL_EVERY_MESSAGES: Final = 1_000
RECEIVED_AT_ONCE: Final = 1_000
FLUSH_MESSAGES: Final = "flush.messages"
_NUMBER_BYTES: Final = 8


class KafkaClient:
    """Of one broker, as a context manager. ``synced``: its topics sync each batch before they confirm it."""

    def __init__(self, address: str, *, synced: bool) -> None:
        self._address = address
        self._config = {FLUSH_MESSAGES: "1"} if synced else {}
        self._admin = AdminClient({"bootstrap.servers": address})
        self._watcher = self._consumer("watcher")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watcher.close()

    def make_topic(self, topic: str) -> None:
        """Of one partition."""
        made = self._admin.create_topics([NewTopic(topic, 1, 1, config=self._config)])
        made[topic].result(ANSWER_SECONDS_MAX)

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(ANSWER_SECONDS_MAX)

    def has_topic(self, topic: str) -> bool:
        # Of all topics: to ask for one by its name may make it.
        return topic in self._admin.list_topics(timeout=ANSWER_SECONDS_MAX).topics

    def flush_messages(self, topic: str) -> str:
        """After how many messages it syncs."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        described = self._admin.describe_configs([resource])[resource].result(ANSWER_SECONDS_MAX)
        return str(described[FLUSH_MESSAGES].value)

    def messages(self, topic: str) -> int:
        """That are confirmed."""
        low, high = self._watcher.get_watermark_offsets(TopicPartition(topic, 0), timeout=ANSWER_SECONDS_MAX)
        return int(high - low)

    def publish_uncommitted(self, topic: str, size_bytes: int, count: int) -> Producer:
        """Messages within a transaction, all of them confirmed; whoever commits it makes them visible at once."""
        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "transactional.id": topic,
                "transaction.timeout.ms": TRANSACTION_MS_MAX,
            }
        )
        producer.init_transactions(ANSWER_SECONDS_MAX)
        producer.begin_transaction()
        payload = bytes(size_bytes)
        for number in range(count):
            _produce(producer, topic, payload, None)
            if number % POLL_EVERY_MESSAGES == 0:
                producer.poll(0)
        if left := producer.flush(ARRIVAL_SECONDS_MAX):
            raise PeerFailed(f"{left} of {count} messages were not confirmed within {ARRIVAL_SECONDS_MAX:.0f} s")
        return producer

    def lag(self, topic: str, destination: KafkaClient, copied: str) -> Lag:
        """As :func:`bench.lag.lag_between`: producer here, consumer of ``copied`` there, one clock."""
        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "linger.ms": BATCH_DELAY_MS,
                "queue.buffering.max.messages": QUEUE_MESSAGES,
            }
        )
        consumer = destination._consumer("lag")
        try:
            consumer.assign([TopicPartition(copied, 0, OFFSET_BEGINNING)])
            rate = _sustained_rate(producer, consumer, topic)
            return Lag(rate, tuple(tuple(_lags_ms(producer, consumer, topic, rate / 2)) for _ in range(RUNS)))
        finally:
            consumer.close()

    def _consumer(self, group: str) -> Consumer:
        return Consumer({"bootstrap.servers": self._address, "group.id": group, "enable.auto.commit": False})


def _produce(producer: Producer, topic: str, payload: bytes, confirmed: Callable[..., None] | None) -> None:
    """Waits while the queue is full."""
    while True:
        try:
            producer.produce(topic, payload, partition=0, on_delivery=confirmed)
        except BufferError:
            producer.poll(TICK_SECONDS)
        else:
            return


def _sustained_rate(producer: Producer, consumer: Consumer, topic: str) -> float:
    began = time.monotonic()
    with _Consuming(consumer, PROBE_MESSAGES, lambda message: None):
        payload = bytes(MESSAGE_BYTES)
        for number in range(PROBE_MESSAGES):
            _produce(producer, topic, payload, None)
            if number % POLL_EVERY_MESSAGES == 0:
                producer.poll(0)
        producer.flush(ARRIVAL_SECONDS_MAX)
    return PROBE_MESSAGES / (time.monotonic() - began)


def _lags_ms(producer: Producer, consumer: Consumer, topic: str, rate: float) -> list[float]:
    """Publish at ``rate``; the lag of every message."""
    count = int(rate * HALF_LOAD_SECONDS)
    confirmed, arrived = [0.0] * count, [0.0] * count

    def on_confirmed(number: int, error: KafkaError | None, _: Any) -> None:
        if error is not None:
            raise KafkaException(error)
        confirmed[number] = time.monotonic()

    def on_arrived(message: Message) -> None:
        arrived[int.from_bytes(message.value()[:_NUMBER_BYTES], "big")] = time.monotonic()

    filling = bytes(MESSAGE_BYTES - _NUMBER_BYTES)
    with _Consuming(consumer, count, on_arrived):
        began = time.monotonic()
        number = 0
        while number < count:
            due = min(count, int((time.monotonic() - began) * rate))
            for each in range(number, due):
                _produce(producer, topic, each.to_bytes(_NUMBER_BYTES, "big") + filling, partial(on_confirmed, each))
            number = due
            producer.poll(TICK_SECONDS)  # confirmations are noticed here
        producer.flush(ARRIVAL_SECONDS_MAX)
    return [(there - here) * 1000 for here, there in zip(confirmed, arrived, strict=True)]


class _Consuming:
    """Consume ``count`` messages in a thread; on leaving, all of them have come, or :class:`PeerFailed` is raised."""

    def __init__(self, consumer: Consumer, count: int, on_message: Callable[[Message], None]) -> None:
        self._consumer = consumer
        self._count = count
        self._on_message = on_message
        self._came = 0
        self._failed: KafkaError | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._consume, name="consuming", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self._thread.join(ARRIVAL_SECONDS_MAX)
        self._ended.set()
        self._thread.join()
        if kind is None and (self._failed is not None or self._came < self._count):
            raise PeerFailed(f"{self._came} of {self._count} messages came: {self._failed or 'then no more'}")

    def _consume(self) -> None:
        while self._came < self._count and not self._ended.is_set():
            first = self._consumer.poll(0.1)
            if first is None:
                continue
            # What is here already, without waiting for more.
            for message in (first, *self._consumer.consume(RECEIVED_AT_ONCE, 0)):
                if (failed := message.error()) is not None:
                    self._failed = failed
                    return
                self._on_message(message)
                self._came += 1
