"""Makers of consumers: from settings to a connected consumer, of one topic or of many.

This module finds out whether a topic is partitioned, splits the receiver queue over topics, and adds the retry topic
that a consumer with retries also reads.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, TypeVar

from replicator.client.argument_checks import check_enum, check_instance, check_schema, full_topic_name
from replicator.client.consuming.consumer import Consumer
from replicator.client.consuming.dead_letter import full_policy
from replicator.client.consuming.letters import OpenLetterProducer
from replicator.client.consuming.listening import MessageListener
from replicator.client.consuming.multi_topics_consumer import MultiTopicsConsumer
from replicator.client.consuming.pattern_consumer import PatternConsumer, PatternPorts
from replicator.client.consuming.reader import Reader
from replicator.client.consuming.receiving import ConsumerEventListener, Receiver
from replicator.client.errors import InvalidConfiguration, OperationNotSupported, PulsarException
from replicator.client.message import MessageId, Opening, Unpack
from replicator.client.producing.encryption import ConsumerCryptoFailureAction, CryptoKeyReader, EntryDecryptor
from replicator.client.schema import Schema
from replicator.client.settings import ConsumerDeadLetterPolicy, ConsumerSettings
from replicator.client.wire.channel import Connector, ConsumerChannel, TopicWatchChannel
from replicator.client.wire.reopening import open_first
from replicator.engine.topic_name import parse_topic
from replicator.engine.types import InitialPosition as EngineInitialPosition

T = TypeVar("T")

TOPICS_MAX: Final = 10_000
"""Limit of topics and partitions of one consumer; each has a connection of its own."""


@dataclass(frozen=True, slots=True)
class Listeners:
    """Functions of an application that its consumer calls."""

    message: MessageListener | None = None
    event: ConsumerEventListener | None = None


@dataclass(frozen=True, slots=True)
class ConsumerExtras:
    """Arguments of a consumer's making that are not in its settings."""

    opening: Opening = field(default_factory=Opening)
    listeners: Listeners = field(default_factory=Listeners)
    receiver_queue_size_total: int = 50_000
    stats_interval_seconds: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerMaker:
    """Maker of all consumers of one client, with their common arguments."""

    connector: Connector
    reconnect: bool
    operation_timeout_seconds: float
    open_letter_producer: OpenLetterProducer
    unpack: Unpack | None = None
    """Function that decompresses entries elsewhere. None: entries are decompressed when they are opened."""

    async def make(
        self,
        topics: Sequence[str],
        settings: ConsumerSettings,
        extras: ConsumerExtras,
        on_close: Callable[[Receiver], None],
    ) -> Consumer | MultiTopicsConsumer:
        """Return a connected consumer of these topics. ``settings.topic`` is ignored.

        Raises :class:`ConnectError`, :class:`ConsumerBusy` and errors of the cluster; then nothing is subscribed.
        """
        if settings.receiver_queue_size == 0 and (len(topics) > 1 or settings.retry_enabled):
            raise _without_queue()
        policies: dict[str, ConsumerDeadLetterPolicy | None] = {}
        for topic in dict.fromkeys(topics):
            policy: ConsumerDeadLetterPolicy | None = None
            if settings.retry_enabled or settings.dead_letter_policy is not None:
                policy = full_policy(settings.dead_letter_policy, topic, settings.subscription)
            partitions = await self._partitions(topic)
            for name in [f"{topic}-partition-{index}" for index in range(partitions)] or [topic]:
                policies[name] = policy
            if settings.retry_enabled and policy is not None and policy.retry_letter_topic is not None:
                policies[full_topic_name(policy.retry_letter_topic)] = policy
        if len(policies) > TOPICS_MAX:
            raise InvalidConfiguration(
                f"{len(policies)} topics and partitions are more than {TOPICS_MAX}, the limit of one consumer: make "
                "several consumers"
            )
        if len(policies) == 1 and list(policies) == list(topics):
            return await self._connected(
                replace(settings, topic=topics[0]),
                policies[topics[0]],
                extras,
                extras.listeners.message,
                None,
                on_close,
            )
        return await self._many(topics, policies, settings, extras, on_close)

    async def make_for_pattern(
        self,
        pattern: str,
        settings: ConsumerSettings,
        extras: ConsumerExtras,
        period_seconds: float,
        on_close: Callable[[Receiver], None],
    ) -> PatternConsumer:
        """Return a connected consumer of the topics of a pattern. Raises the errors of :meth:`make`."""
        if settings.receiver_queue_size == 0:
            raise _without_queue()
        if settings.retry_enabled:
            raise OperationNotSupported(
                "enable_retry does not go with a pattern of topics: subscribe to the topics by their names, or leave "
                "enable_retry out"
            )

        async def open_watch(known_hash: str) -> TopicWatchChannel:
            return await self._with_retries(lambda: self.connector.open_topic_watch(pattern, known_hash), pattern)

        async def partitions(topic: str) -> int:
            return await self._partitions(topic, create=False)

        async def open_part(topic: str, from_start: bool, queue_size: int, face: PatternConsumer) -> Consumer:
            own = replace(
                settings,
                topic=topic,
                create_topic=False,
                receiver_queue_size=queue_size,
                initial_position=EngineInitialPosition.EARLIEST if from_start else settings.initial_position,
            )
            policy = settings.dead_letter_policy
            if policy is not None:
                whole = topic if parse_topic(topic).partition < 0 else topic.rpartition("-partition-")[0]
                policy = full_policy(policy, whole, settings.subscription)
            return await self._connected(own, policy, extras, None, face, lambda _: None, face.part_failed)

        consumer = PatternConsumer(
            pattern,
            settings,
            PatternPorts(open_watch, partitions, open_part, _dead_letter_test(settings), TOPICS_MAX, self.reconnect),
            queue_size_total=extras.receiver_queue_size_total,
            period_seconds=period_seconds,
            on_close=on_close,
            message_listener=extras.listeners.message,
        )
        await consumer.connect()
        return consumer

    async def make_reader(
        self,
        settings: ConsumerSettings,
        start_message_id: MessageId,
        opening: Opening,
        listener: MessageListener | None,
        on_close: Callable[[Reader], None],
    ) -> Reader:
        """Return a connected reader of a topic. Raises :class:`OperationNotSupported` if it is partitioned."""
        if await self._partitions(settings.topic):
            raise OperationNotSupported(
                f"{settings.topic} is partitioned, and a reader reads one topic; make a reader for each of its "
                "partitions"
            )
        reader = Reader(
            settings,
            start_message_id,
            self.connector.open_consumer,
            reconnect=self.reconnect,
            operation_timeout_seconds=self.operation_timeout_seconds,
            on_close=on_close,
            opening=replace(opening, unpack=self.unpack),
            reader_listener=listener,
        )
        await reader.connect()
        return reader

    async def _many(
        self,
        topics: Sequence[str],
        policies: dict[str, ConsumerDeadLetterPolicy | None],
        settings: ConsumerSettings,
        extras: ConsumerExtras,
        on_close: Callable[[Receiver], None],
    ) -> MultiTopicsConsumer:
        if settings.receiver_queue_size == 0:
            raise _without_queue()
        share = max(1, extras.receiver_queue_size_total // len(policies))
        size = min(settings.receiver_queue_size, share)

        async def open_consumer(own: ConsumerSettings, face: MultiTopicsConsumer) -> Consumer:
            return await self._connected(own, policies[own.topic], extras, None, face, lambda _: None)

        consumer = MultiTopicsConsumer(
            ",".join(topics),
            [replace(settings, topic=name, receiver_queue_size=size) for name in policies],
            open_consumer,
            on_close=on_close,
            message_listener=extras.listeners.message,
        )
        await consumer.connect()
        return consumer

    async def _connected(
        self,
        settings: ConsumerSettings,
        policy: ConsumerDeadLetterPolicy | None,
        extras: ConsumerExtras,
        message_listener: MessageListener | None,
        face: MultiTopicsConsumer | None,
        on_close: Callable[[Receiver], None],
        on_over: Callable[[Consumer, PulsarException], None] | None = None,
    ) -> Consumer:
        channels = 0

        async def open_channel() -> ConsumerChannel:
            nonlocal channels
            own = settings
            if channels and not own.create_topic:
                # The topic was subscribed to before. If there is no subscription now, the topic was made anew, and all
                # of it is new.
                own = replace(own, initial_position=EngineInitialPosition.EARLIEST)
            channel = await self.connector.open_consumer(own)
            channels += 1
            return channel

        consumer = Consumer(
            settings,
            open_channel,
            reconnect=self.reconnect,
            operation_timeout_seconds=self.operation_timeout_seconds,
            on_close=on_close,
            opening=replace(extras.opening, unpack=self.unpack),
            open_letter_producer=self.open_letter_producer,
            letter_policy=policy,
            message_listener=message_listener,
            event_listener=extras.listeners.event,
            seen_as=face,
            arrivals=None if face is None else face.arrivals,
            stats_interval_seconds=extras.stats_interval_seconds,
            on_over=on_over,
        )
        await consumer.connect()
        return consumer

    async def _partitions(self, topic: str, *, create: bool = True) -> int:
        if parse_topic(topic).partition >= 0:
            return 0
        return await self._with_retries(lambda: self.connector.partitions(topic, create=create), topic)

    async def _with_retries(self, ask: Callable[[], Awaitable[T]], topic: str) -> T:
        """Call ``ask``, and if the client reconnects, repeat it after errors that time can heal."""
        what = f"consumer of {topic}"
        return await open_first(ask, self.operation_timeout_seconds, reconnect=self.reconnect, what=what)


def _dead_letter_test(settings: ConsumerSettings) -> Callable[[str], bool]:
    """Return a test of whether this consumer sends its dead letters to a topic. It must not consume such a topic: it
    would give up the same letters without end."""
    policy = settings.dead_letter_policy
    if policy is None:
        return lambda topic: False
    if policy.dead_letter_topic is not None:
        dead_letters = full_topic_name(policy.dead_letter_topic)
        return lambda topic: topic == dead_letters
    return lambda topic: topic.endswith(f"-{settings.subscription}-DLQ")


def _without_queue() -> InvalidConfiguration:
    return InvalidConfiguration("receiver_queue_size=0 is for a consumer of one topic, without partitions and retries")


def opening_of(
    schema: Schema | None,
    crypto_key_reader: CryptoKeyReader | None,
    crypto_failure_action: ConsumerCryptoFailureAction,
) -> Opening:
    """Return the settings with which a consumer opens entries, from its user's arguments."""
    check_schema(schema)
    check_instance("crypto_key_reader", crypto_key_reader, CryptoKeyReader)
    check_enum("crypto_failure_action", crypto_failure_action, ConsumerCryptoFailureAction)
    decryptor = None if crypto_key_reader is None else EntryDecryptor(crypto_key_reader)
    return Opening(schema, decryptor, crypto_failure_action)


async def partitions_of(connector: Connector, topic: str) -> list[str]:
    """Return the names of a topic's partitions, or the topic alone if it is not partitioned or does not exist."""
    partitions = 0 if parse_topic(topic).partition >= 0 else await connector.partitions(topic)
    return [f"{topic}-partition-{index}" for index in range(partitions)] or [topic]
