"""Client of a Kafka broker for group ``peers``: Confluent's, with its default batches. All calls block."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing, contextmanager
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
from replicator.drills.peers.jvm import PeerFailed

ANSWER_SECONDS_MAX: Final = 60.0
TRANSACTION_MS_MAX: Final = 600_000
LOOK_UP_SECONDS: Final = 0.5
"""Interval at which a waiting call looks whether the client was closed meanwhile."""
POLL_EVERY_MESSAGES: Final = 1_000
RECEIVED_AT_ONCE: Final = 1_000
FLUSH_MESSAGES: Final = "flush.messages"
LOG_LEVEL: Final = 3
"""Level at which the client logs: errors only. It warns of a coordinator that still starts, and tries again itself."""
_NUMBER_BYTES: Final = 8


class KafkaClient:
    """Client of one broker, as a context manager. With ``synced`` its topics sync each batch before they confirm it."""

    def __init__(self, address: str, *, synced: bool) -> None:
        self._address = address
        self._config = {FLUSH_MESSAGES: "1"} if synced else {}
        self._admin = AdminClient({"bootstrap.servers": address})
        self._watcher = self._consumer("watcher")
        self._closed = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the client. A call of another thread that still runs ends with :class:`PeerFailed` soon."""
        self._closed.set()
        self._watcher.close()
        self._admin.__exit__(kind, error, trace)

    def make_topic(self, topic: str) -> None:
        """Make a topic of one partition."""
        made = self._admin.create_topics([NewTopic(topic, 1, 1, config=self._config)])
        made[topic].result(ANSWER_SECONDS_MAX)

    def delete_topic(self, topic: str) -> None:
        self._admin.delete_topics([topic])[topic].result(ANSWER_SECONDS_MAX)

    def has_topic(self, topic: str) -> bool:
        # This lists all topics: asking for one by its name may make it.
        return topic in self._admin.list_topics(timeout=ANSWER_SECONDS_MAX).topics

    def flush_messages(self, topic: str) -> str:
        """Return the number of messages after which a topic syncs."""
        resource = ConfigResource(ResourceType.TOPIC, topic)
        described = self._admin.describe_configs([resource])[resource].result(ANSWER_SECONDS_MAX)
        return str(described[FLUSH_MESSAGES].value)

    def messages(self, topic: str) -> int:
        """Return the number of messages that the broker has confirmed in a topic."""
        low, high = self._watcher.get_watermark_offsets(TopicPartition(topic, 0), timeout=ANSWER_SECONDS_MAX)
        return int(high - low)

    def publish_uncommitted(self, topic: str, size_bytes: int, count: int) -> Producer:
        """Publish messages within a transaction, all confirmed, and return its producer. The caller commits, which
        makes them visible at once, and closes the producer."""
        producer = Producer(
            {
                "bootstrap.servers": self._address,
                "transactional.id": topic,
                "transaction.timeout.ms": TRANSACTION_MS_MAX,
                "log_level": LOG_LEVEL,
            }
        )
        producer.init_transactions(ANSWER_SECONDS_MAX)
        producer.begin_transaction()
        payload = bytes(size_bytes)
        for number in range(count):
            _produce(producer, topic, payload, None, self._closed)
            if number % POLL_EVERY_MESSAGES == 0:
                producer.poll(0)
        _flush(producer, self._closed)
        return producer

    def lag(self, topic: str, destination: KafkaClient, copied: str) -> Lag:
        """Measure lag as :func:`bench.lag.lag_between` does: producer here, consumer of ``copied`` there, one clock."""
        settings = {
            "bootstrap.servers": self._address,
            "linger.ms": BATCH_DELAY_MS,
            "queue.buffering.max.messages": QUEUE_MESSAGES,
        }
        with closing(Producer(settings)) as producer, closing(destination._consumer("lag")) as consumer:
            consumer.assign([TopicPartition(copied, 0, OFFSET_BEGINNING)])
            path = _Path(producer, consumer, topic, self._closed)
            rate = path.sustained_rate()
            return Lag(rate, tuple([tuple(path.lags_ms(rate / 2)) for _ in range(RUNS)]))

    def _consumer(self, group: str) -> Consumer:
        return Consumer({"bootstrap.servers": self._address, "group.id": group, "enable.auto.commit": False})


def _produce(
    producer: Producer, topic: str, payload: bytes, confirmed: Callable[..., None] | None, closed: threading.Event
) -> None:
    """Produce a message; wait while the queue is full. Raise :class:`PeerFailed` if the client was ``closed``.

    ``confirmed`` is called with an error or None, and the message, when the broker has answered.
    """
    while True:
        try:
            producer.produce(topic, payload, partition=0, on_delivery=confirmed)
        except BufferError:
            if closed.is_set():
                raise PeerFailed("the client was closed") from None
            producer.poll(TICK_SECONDS)
        else:
            return


def _flush(producer: Producer, closed: threading.Event) -> None:
    """Wait until all messages are confirmed. Raise :class:`PeerFailed` if that is too late, or at ``closed``."""
    deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
    while left := producer.flush(LOOK_UP_SECONDS):
        if closed.is_set() or time.monotonic() > deadline:
            raise PeerFailed(f"{left} messages are not confirmed")


class _Path:
    """Path from a producer at the source to a consumer of the copy."""

    def __init__(self, producer: Producer, consumer: Consumer, topic: str, closed: threading.Event) -> None:
        self._producer = producer
        self._consumer = consumer
        self._topic = topic
        self._closed = closed

    def sustained_rate(self) -> float:
        """Publish and consume at the same time, as fast as possible; return the messages a second."""
        began = time.monotonic()
        with self._consuming(PROBE_MESSAGES, lambda message: None):
            payload = bytes(MESSAGE_BYTES)
            for number in range(PROBE_MESSAGES):
                _produce(self._producer, self._topic, payload, None, self._closed)
                if number % POLL_EVERY_MESSAGES == 0:
                    self._producer.poll(0)
            _flush(self._producer, self._closed)
        return PROBE_MESSAGES / (time.monotonic() - began)

    def lags_ms(self, rate: float) -> list[float]:
        """Publish ``rate`` messages a second; return each message's ms from its confirmation to its arrival."""
        count = int(rate * HALF_LOAD_SECONDS)
        confirmed, arrived = [0.0] * count, [0.0] * count

        def on_confirmed(number: int, error: KafkaError | None, _: Any) -> None:
            if error is not None:
                raise KafkaException(error)
            confirmed[number] = time.monotonic()

        def on_arrived(message: Message) -> None:
            arrived[int.from_bytes(message.value()[:_NUMBER_BYTES], "big")] = time.monotonic()

        filling = bytes(MESSAGE_BYTES - _NUMBER_BYTES)
        with self._consuming(count, on_arrived):
            began = time.monotonic()
            number = 0
            while number < count:
                due = min(count, int((time.monotonic() - began) * rate))
                for each in range(number, due):
                    payload = each.to_bytes(_NUMBER_BYTES, "big") + filling
                    _produce(self._producer, self._topic, payload, partial(on_confirmed, each), self._closed)
                number = due
                self._producer.poll(TICK_SECONDS)  # confirmations are noticed here
            _flush(self._producer, self._closed)
        return [(there - here) * 1000 for here, there in zip(confirmed, arrived, strict=True)]

    @contextmanager
    def _consuming(self, count: int, on_message: Callable[[Message], None]) -> Iterator[None]:
        """Consume ``count`` messages in a thread, and pass each to ``on_message``.

        On leaving the context, all have come, or :class:`PeerFailed` is raised. An error of a message raises
        KafkaException.
        """
        ended = threading.Event()
        with ThreadPoolExecutor(1, "consuming") as threads:
            coming = threads.submit(self._consume, count, on_message, ended)
            try:
                yield
                deadline = time.monotonic() + ARRIVAL_SECONDS_MAX
                while not wait([coming], LOOK_UP_SECONDS).done:
                    if self._closed.is_set() or time.monotonic() > deadline:
                        raise PeerFailed(f"not all of {count} messages came within {ARRIVAL_SECONDS_MAX:.0f} s")
                coming.result()
            finally:
                ended.set()

    def _consume(self, count: int, on_message: Callable[[Message], None], ended: threading.Event) -> None:
        came = 0
        while came < count and not ended.is_set():
            first = self._consumer.poll(0.1)
            if first is None:
                continue
            # What is here already, without waiting for more.
            for message in (first, *self._consumer.consume(RECEIVED_AT_ONCE, 0)):
                if (failed := message.error()) is not None:
                    raise KafkaException(failed)
                on_message(message)
                came += 1
