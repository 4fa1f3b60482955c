"""Asyncio shell around dead letters and retries of one consumer.

:class:`DeadLetters` owns the messages that are being given up. :class:`LetterSender` owns the producers of the dead
letter and the retry topic, which are made with their first message.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Final

from replicator.client.argument_checks import check_properties, check_range
from replicator.client.consuming.consumer_stats import ConsumerStatsRecorder
from replicator.client.consuming.dead_letter import DeadLetterTracker, letter_properties, retry_properties
from replicator.client.errors import AlreadyClosed, ConnectError, InvalidMessage, ProducerFenced, PulsarException
from replicator.client.message import Message
from replicator.client.producing.partitioned_producer import PartitionedProducer
from replicator.client.producing.producer import Producer
from replicator.client.settings import ConsumerDeadLetterPolicy
from replicator.client.tasks import client_supervisor
from replicator.running.supervisor import SupervisedTask
from snapshots.position import Position

_log = logging.getLogger(__name__)

BURIED_AT_ONCE_MAX: Final = 100
"""Limit of simultaneous sends to the dead letter topic: enough that they share syncs of its store."""


OpenLetterProducer = Callable[[str, str | None], Awaitable[Producer | PartitionedProducer]]
"""Connect a producer of a topic, and create the subscription of that name at the topic's first message, unless it
exists or None is given."""


class LetterSender:
    """Sender of copies of messages to the topics of a policy, whose topics are all set."""

    def __init__(self, policy: ConsumerDeadLetterPolicy, subscription: str, open_producer: OpenLetterProducer) -> None:
        self._policy = policy
        self._subscription = subscription
        self._open_producer = open_producer
        self._producers: dict[str, Producer | PartitionedProducer] = {}
        self._opening = asyncio.Lock()

    async def bury(self, message: Message) -> None:
        """Send the message to the dead letter topic, and return when it is durable there. Raises the errors of a
        send."""
        await self._send_dead_letter(message, letter_properties(message, self._subscription))

    async def send_for_later(self, message: Message, delay_ms: int, properties: Mapping[str, str] | None) -> bool:
        """Send the message to the retry topic, or after its last retry to the dead letter topic.

        Return when it is durable: True if it went to the dead letter topic."""
        copied, retries = retry_properties(message, self._subscription, delay_ms, properties)
        if retries > self._policy.max_redeliver_count:
            await self._send_dead_letter(message, copied)
            return True
        assert self._policy.retry_letter_topic is not None
        await self._send(self._policy.retry_letter_topic, None, message, copied, delay_ms)
        return False

    async def close(self) -> None:
        """Close the producers."""
        producers, self._producers = self._producers, {}
        for producer in producers.values():
            await producer.close()

    async def _send_dead_letter(self, message: Message, properties: dict[str, str]) -> None:
        assert self._policy.dead_letter_topic is not None
        topic, subscription = self._policy.dead_letter_topic, self._policy.initial_subscription_name
        await self._send(topic, subscription, message, properties, 0)

    async def _send(
        self,
        topic: str,
        initial_subscription: str | None,
        message: Message,
        properties: dict[str, str],
        delay_ms: int,
    ) -> None:
        producer = await self._producer(topic, initial_subscription)
        try:
            await _send(producer, message, properties, delay_ms)
        except (ProducerFenced, ConnectError, AlreadyClosed):
            if self._producers.get(topic) is producer:  # it can send nothing more: the next letter makes another
                del self._producers[topic]
                await producer.close()
            raise

    async def _producer(self, topic: str, initial_subscription: str | None) -> Producer | PartitionedProducer:
        async with self._opening:
            producer = self._producers.get(topic)
            if producer is None:
                producer = self._producers[topic] = await self._open_producer(topic, initial_subscription)
            return producer


def check_letter(message: Message, delay_ms: int, properties: Mapping[str, str] | None) -> None:
    """Raise :class:`InvalidMessage` unless ``message`` is one, and :class:`InvalidConfiguration` unless the other
    arguments of ``reconsume_later`` are valid."""
    if not isinstance(message, Message):
        raise InvalidMessage(
            f"reconsume_later got {message!r:.80}, which is not a Message; give the message that was received, "
            "because an id alone cannot be sent again"
        )
    check_range("delay_ms", delay_ms, 0, 2**31)
    check_properties(properties or {})


async def _send(
    producer: Producer | PartitionedProducer, message: Message, properties: dict[str, str], delay_ms: int
) -> None:
    await producer.send(
        None if message.has_null_value() else message.data(),
        properties,
        partition_key=message.partition_key() or None,
        ordering_key=message.ordering_key() or None,
        event_timestamp=message.event_timestamp() or None,
        deliver_after=timedelta(milliseconds=delay_ms) if delay_ms > 0 else None,
    )


class DeadLetters:
    """Messages that one consumer gives up."""

    def __init__(
        self,
        policy: ConsumerDeadLetterPolicy,
        sender: LetterSender,
        stats: ConsumerStatsRecorder,
        *,
        acknowledge: Callable[[Message], None],
        retry: Callable[[Sequence[Position]], None],
    ) -> None:
        self._tracker: DeadLetterTracker[Message] = DeadLetterTracker(policy.max_redeliver_count)
        self._sender = sender
        self._stats = stats
        self._acknowledge = acknowledge
        self._retry = retry
        self._given_up: deque[Message] = deque()
        self._burying: SupervisedTask | None = None
        self._places = 0
        """Count of seeks and resets of the subscription. Messages given up before one are not acknowledged after it."""

    def is_over(self, redelivery_count: int) -> bool:
        """Return whether an entry with this count is to be given up without being shown."""
        return self._tracker.is_over(redelivery_count)

    def show(self, messages: Iterable[Message]) -> None:
        """Track messages that the application gets."""
        for message in messages:
            message_id = message.message_id()
            self._tracker.show(message_id.position(), message_id.batch_index(), message.redelivery_count(), message)

    def answered(self, position: Position, batch_index: int) -> None:
        """Forget a message that the application acknowledged."""
        self._tracker.remove(position, batch_index)

    def reject(self, position: Position, batch_index: int) -> None:
        """Mark a message that the application rejected, or did not answer in time."""
        self._tracker.reject(position, batch_index)

    def give_up(self, positions: Iterable[Position]) -> list[Position]:
        """Give up the rejected messages of these entries that are on their last chance; return the entries to
        redeliver."""
        others: list[Position] = []
        for position in positions:
            messages = self._tracker.take_rejected(position)
            if messages is None:
                others.append(position)
            else:
                self.bury(messages)
        return others

    def bury(self, messages: Iterable[Message]) -> None:
        """Send messages to the dead letter topic, and acknowledge each when it is durable there."""
        self._given_up.extend(messages)
        if self._given_up:
            if self._burying is None:
                self._burying = client_supervisor().task("burying", "burying", self._send_dead_letters, until_done=True)
            self._burying.start()

    def clear(self) -> None:
        """Forget the tracked messages, because all unacknowledged ones come again."""
        self._tracker.clear()

    def restarted(self) -> None:
        """Drop all messages delivered before a seek or reset, without giving them up."""
        self._places += 1
        self._tracker.clear()
        self._given_up.clear()

    async def finish(self) -> None:
        """Wait until every given-up message is sent and acknowledged, or asked for again."""
        if self._burying is not None:
            await self._burying.done()

    async def close(self) -> None:
        """Stop. Messages that are not acknowledged yet go to this subscription's next consumer."""
        self._given_up.clear()
        if self._burying is not None:
            await self._burying.stop()

    async def _send_dead_letters(self) -> None:
        while self._given_up:
            places = self._places
            group = [self._given_up.popleft() for _ in range(min(BURIED_AT_ONCE_MAX, len(self._given_up)))]
            try:
                results = await asyncio.gather(*map(self._sender.bury, group), return_exceptions=True)
            except BaseException:  # ended from outside: what was under way may be buried twice, but is not lost
                if places == self._places:
                    self._given_up.extendleft(reversed(group))
                raise
            if places == self._places:
                self._buried(group, results)

    def _buried(self, group: Sequence[Message], results: Sequence[BaseException | None]) -> None:
        failed: dict[Position, None] = {}
        for message, error in zip(group, results, strict=True):
            if error is None:
                self._stats.dead_letters += 1
                self._acknowledge(message)
            elif isinstance(error, PulsarException):
                _log.warning(
                    "%r could not be sent to the dead letter topic, and is asked for again: %s", message, error
                )
                failed[message.message_id().position()] = None
            else:
                raise error
        if failed:
            self._retry(list(failed))
