"""Consumer of many topics: a list of them, or the partitions of one.

It owns a :class:`Consumer` for each topic, and takes their messages in turn, so that a busy topic does not delay a
quiet one. Each has a queue of its own, and they share the room of ``max_total_receiver_queue_size_across_partitions``.
An acknowledgement goes to the consumer of its message's topic. If one of the consumers fails for good, the next receive
raises its error: a subscription that quietly lacks a topic would look up to date.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from replicator.client.consuming.consumer import Consumer
from replicator.client.consuming.consumer_stats import ConsumerStats
from replicator.client.consuming.listening import Listening, MessageListener
from replicator.client.consuming.receiving import Arrivals, Receiver
from replicator.client.errors import (
    AlreadyClosed,
    InvalidAck,
    InvalidMessage,
    OperationNotSupported,
    PulsarException,
)
from replicator.client.message import Message, MessageId
from replicator.client.settings import ConsumerSettings
from replicator.running.short_tasks import awaited

OpenConsumer = Callable[[ConsumerSettings, "MultiTopicsConsumer"], Coroutine[Any, Any, Consumer]]
"""Function that makes the connected consumer of one topic. Its arrivals must be those of the consumer of many."""


class MultiTopicsConsumer(Receiver):
    """Consumer of one subscription name on several topics. :meth:`Client.subscribe` makes it."""

    def __init__(
        self,
        topic: str,
        settings: Sequence[ConsumerSettings],
        open_consumer: OpenConsumer,
        *,
        on_close: Callable[[MultiTopicsConsumer], None],
        message_listener: MessageListener | None = None,
    ) -> None:
        assert settings
        super().__init__(topic, settings[0].batch_receive_policy, Arrivals(), prefetches=True)
        self._settings = settings
        self._open_consumer = open_consumer
        self._on_close = on_close
        self._consumers: dict[str, Consumer] = {}
        self._turns: list[Consumer] = []
        self._next_turn = 0
        self._deferred: PulsarException | None = None
        self._error: AlreadyClosed | None = None
        self._closing: asyncio.Task[None] | None = None
        if message_listener is not None:
            self._listening = Listening(message_listener, self, self._receive, self.negative_acknowledge)

    @property
    def arrivals(self) -> Arrivals:
        """Line of waiting receivers, which the consumers of the topics wake."""
        return self._arrivals

    async def connect(self) -> None:
        """Subscribe to every topic, or to none. The client calls this once."""
        opening = [awaited(self._open_consumer(settings, self)) for settings in self._settings]
        try:
            consumers = await asyncio.gather(*opening)
        except BaseException:  # cancelled, too: none may stay connected
            for task in opening:
                task.cancel()
            results = await asyncio.gather(*opening, return_exceptions=True)
            await asyncio.gather(*(result.close() for result in results if isinstance(result, Consumer)))
            raise
        self._consumers = {consumer.topic(): consumer for consumer in consumers}
        self._turns = consumers
        if self._listening is not None:
            self._listening.resume()

    # Acknowledging: each call goes to the consumer of its topic. See :class:`Consumer` for what the calls do.

    async def acknowledge(self, message: Message | MessageId) -> None:
        """Acknowledge one message. An id without its message must name its topic by its partition."""
        await self._consumer_of(message).acknowledge(message)

    def acknowledge_many(self, messages: Iterable[Message | MessageId]) -> None:
        """Acknowledge several messages, without receipts; see :meth:`acknowledge`."""
        for message in messages:
            self._consumer_of(message).acknowledge_many((message,))

    async def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge everything through this message in its own topic."""
        await self._consumer_of(message).acknowledge_cumulative(message)

    async def flush_acknowledgements(self) -> None:
        """Wait until every acknowledgement so far is durable."""
        await self._on_all(lambda consumer: consumer.flush_acknowledgements())

    async def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Ask for the message again after its delay."""
        await self._consumer_of(message).negative_acknowledge(message)

    async def reconsume_later(
        self, message: Message, delay_ms: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Send the message to the retry topic; see :meth:`Consumer.reconsume_later`."""
        await self._consumer_of(message).reconsume_later(message, delay_ms, properties)

    def redeliver_unacknowledged_messages(self) -> None:
        """Ask for all unacknowledged messages again, in every topic."""
        self._check_open()
        for consumer in self._turns:
            consumer.redeliver_unacknowledged_messages()

    # The subscriptions.

    async def seek(self, messageid: MessageId | int) -> None:
        """Move the subscription in every topic: to the beginning, to the end, or to a publish time.

        Raises :class:`OperationNotSupported` for another message id, because it is of one topic only.
        """
        self._check_open()
        if isinstance(messageid, MessageId) and messageid not in (MessageId.earliest, MessageId.latest):
            raise OperationNotSupported(
                f"{self._name}: a consumer of several topics can seek to a time, to MessageId.earliest or to "
                "MessageId.latest, and not to a message of one topic"
            )
        await self._on_all(lambda consumer: consumer.seek(messageid))

    async def unsubscribe(self, force: bool = False) -> None:
        """Delete the subscription in every topic, and close. Raises the first error after trying all topics."""
        self._check_open()
        await self._on_all(lambda consumer: consumer.unsubscribe(force))
        await self.close()

    async def close(self) -> None:
        """Close the consumer of every topic. Idempotent."""
        if self._closing is None:
            self._error = AlreadyClosed(f"consumer of {self._name} is closed")
            if self._listening is not None:
                self._listening.stop()
            self._on_close(self)
            self._arrivals.wake_all()
            self._closing = awaited(self._shut())
        await asyncio.shield(self._closing)

    def topic(self) -> str:
        """Return the partitioned topic, or the names of the list with commas between them."""
        return self._name

    def topics(self) -> list[str]:
        """Return the topics and partitions that are consumed."""
        return list(self._consumers)

    def subscription_name(self) -> str:
        return self._settings[0].subscription

    def consumer_name(self) -> str:
        return self._settings[0].consumer_name

    def is_connected(self) -> bool:
        """Return whether the consumers of all topics are connected."""
        return bool(self._turns) and all(consumer.is_connected() for consumer in self._turns)

    def has_reached_end_of_topic(self) -> bool:
        """Return whether no message of any topic can come any more."""
        return bool(self._turns) and all(consumer.has_reached_end_of_topic() for consumer in self._turns)

    def stats(self) -> ConsumerStats:
        """Return the sums over all topics."""
        return sum((consumer.stats() for consumer in self._turns), ConsumerStats())

    # Methods for the receiver.

    def _pop(self) -> Message | None:
        self._check_open()
        if self._deferred is not None:
            error, self._deferred = self._deferred, None
            raise error
        for offset in range(len(self._turns)):
            turn = (self._next_turn + offset) % len(self._turns)
            message = self._turns[turn]._pop()
            if message is not None:
                self._next_turn = turn + 1
                return message
        return None

    def _pop_many(self, count_max: int) -> list[Message]:
        messages: list[Message] = []
        while len(messages) < count_max:
            try:
                message = self._pop()
            except PulsarException as error:
                if not messages:
                    raise
                self._deferred = error
                break
            if message is None:
                break
            messages.append(message)
        return messages

    def _put_back(self, messages: Sequence[Message]) -> None:
        for message in reversed(messages):
            if (consumer := self._consumers.get(message.topic_name())) is not None:
                consumer._put_back((message,))

    def _show(self, messages: Sequence[Message]) -> None:
        for message in messages:
            if (consumer := self._consumers.get(message.topic_name())) is not None:
                consumer._show((message,))

    def _round(self, topic: str) -> int:
        consumer = self._consumers.get(topic)
        return -1 if consumer is None else consumer._round(topic)  # of a topic that has left, everything is void

    def _grant(self) -> None:
        """Do nothing: each topic's consumer grants permits itself when a message is taken from it."""

    # Inside.

    async def _shut(self) -> None:
        """Release everything."""
        await self._on_all(lambda consumer: consumer.close())

    async def _on_all(self, call: Callable[[Consumer], Coroutine[Any, Any, None]]) -> None:
        """Run ``call`` for every topic, whatever happens to the others. Raises the first error."""
        results = await asyncio.gather(*(call(consumer) for consumer in self._turns), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _consumer_of(self, message: Message | MessageId) -> Consumer:
        self._check_open()
        if isinstance(message, Message):
            consumer = self._consumers.get(message.topic_name())
            if consumer is None:
                raise InvalidAck(
                    f"{message!r} is of no topic of this consumer ({self._name}); acknowledge it by the consumer "
                    "that received it"
                )
            return consumer
        if not isinstance(message, MessageId):
            raise InvalidMessage(
                f"{message!r:.80} is neither a Message nor a MessageId; give one that the consumer received"
            )
        partition = message.partition()
        fitting = [consumer for consumer in self._turns if consumer.partition() == partition]
        if len(fitting) != 1:
            raise InvalidAck(f"id {message} does not say of which topic of {self._name} it is; give the message itself")
        return fitting[0]

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)
