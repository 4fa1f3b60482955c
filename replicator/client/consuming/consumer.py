"""Consumer of one subscription to one topic.

It owns the connection and the calls of the application. After a loss of the connection it subscribes again, sends
everything unconfirmed again, and drops prefetched messages, because the cluster delivers them anew. With
``reconnect=False`` the loss surfaces at once: :meth:`Consumer.receive` raises.

:class:`Receiver` has the calls that receive. The :class:`Inbox` holds delivered messages, and the :class:`Acknowledger`
acknowledgements on their way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from replicator.client.argument_checks import check_range
from replicator.client.consuming.acknowledger import Acknowledger, id_of
from replicator.client.consuming.consumer_stats import ConsumerStats, ConsumerStatsRecorder, stats_line
from replicator.client.consuming.inbox import Inbox
from replicator.client.consuming.letters import LetterSender, OpenLetterProducer, check_letter
from replicator.client.consuming.listening import Listening, MessageListener
from replicator.client.consuming.receiving import ActiveChanges, Arrivals, ConsumerEventListener, Receiver
from replicator.client.consuming.seeking import SkippedPart, seek_target
from replicator.client.errors import (
    AlreadyClosed,
    ConnectError,
    CumulativeAcknowledgementNotAllowedError,
    NotAllowedError,
    PulsarException,
)
from replicator.client.message import Message, MessageId, Opening
from replicator.client.settings import ConsumerDeadLetterPolicy, ConsumerSettings
from replicator.client.tasks import client_supervisor
from replicator.client.wire.channel import ConsumerChannel
from replicator.client.wire.reopening import open_first, open_with_retries
from replicator.engine.log.delivered import LastMessage
from replicator.engine.topic_name import parse_topic
from replicator.engine.types import Delivery
from replicator.running.short_tasks import awaited, in_background
from replicator.running.supervisor import SupervisedTask
from replicator.running.timeouts import timeout
from snapshots.position import Position

_log = logging.getLogger(__name__)


class Consumer(Receiver):
    """Consumer of one subscription to one topic. :meth:`Client.subscribe` makes it."""

    def __init__(
        self,
        settings: ConsumerSettings,
        open_channel: Callable[[], Awaitable[ConsumerChannel]],
        *,
        reconnect: bool,
        operation_timeout_seconds: float,
        on_close: Callable[[Consumer], None],
        opening: Opening | None = None,
        open_letter_producer: OpenLetterProducer | None = None,
        letter_policy: ConsumerDeadLetterPolicy | None = None,
        message_listener: MessageListener | None = None,
        event_listener: ConsumerEventListener | None = None,
        seen_as: Receiver | None = None,
        skipped: SkippedPart | None = None,
        arrivals: Arrivals | None = None,
        stats_interval_seconds: float = 0,
        on_over: Callable[[Consumer, PulsarException], None] | None = None,
    ) -> None:
        super().__init__(
            settings.topic,
            settings.batch_receive_policy,
            Arrivals() if arrivals is None else arrivals,
            prefetches=settings.receiver_queue_size > 0,
        )
        self._settings = settings
        self._open_channel = open_channel
        self._reconnect = reconnect
        self._operation_timeout_seconds = operation_timeout_seconds
        self._on_close = on_close
        self._on_over = on_over
        """Function called when the consumer can receive nothing more, although it was not closed."""
        self._loop = asyncio.get_running_loop()
        self._partition = parse_topic(settings.topic).partition
        self._active_changes: ActiveChanges | None = None
        if event_listener is not None:
            seen_as = self if seen_as is None else seen_as
            self._active_changes = ActiveChanges(event_listener, seen_as, settings.topic, self._partition)
        self._stats = ConsumerStatsRecorder(self._loop.time())
        self._acks = Acknowledger(settings, lambda: self._channel, self._stats)
        self._inbox = Inbox(
            settings,
            self._partition,
            acks=self._acks,
            arrivals=self._arrivals,
            channel=lambda: self._channel,
            fail=self._refuse,
            opening=Opening() if opening is None else opening,
            stats=self._stats,
        )
        self._inbox.skipped = skipped
        self._skipped_after_restart: SkippedPart | None = None
        self._letters: LetterSender | None = None
        if open_letter_producer is not None and letter_policy is not None:
            self._letters = LetterSender(letter_policy, settings.subscription, open_letter_producer)
            self._inbox.give_up_with(letter_policy, self._letters)
        self._places = 0
        """Count of seeks and resets of the subscription."""
        self._channel: ConsumerChannel | None = None
        self._cluster: str | None = None
        """The one that the last channel led to."""
        self._reopening: SupervisedTask | None = None
        self._letting_go: asyncio.Task[None] | None = None
        self._closing: asyncio.Task[None] | None = None
        self._reached_end = False
        self._error: PulsarException | None = None
        """Error that ended this consumer; None while it is open."""
        if message_listener is not None:
            self._listening = Listening(message_listener, self, self._receive, self.negative_acknowledge)
        self._stats_interval_seconds = stats_interval_seconds
        self._stats_timer: asyncio.TimerHandle | None = None

    async def connect(self) -> None:
        """Subscribe. The client calls this once."""
        channel = await open_first(
            self._open_channel,
            self._operation_timeout_seconds,
            reconnect=self._reconnect,
            what=f"consumer of {self._settings.topic}",
        )
        self._start(channel)
        if self._listening is not None:
            self._listening.resume()
        if self._stats_interval_seconds > 0:
            self._stats_timer = self._loop.call_later(self._stats_interval_seconds, self._log_stats)

    # Acknowledging.

    async def acknowledge(self, message: Message | MessageId) -> None:
        """Acknowledge one message. The request goes out with others, see ``acknowledgement_group_time_ms``.

        It returns at once, or with ``ack_receipt_enabled`` when the acknowledgement is durable. Raises
        :class:`InvalidAck` (with receipts), :class:`AlreadyClosed`, :class:`ConnectError`.
        """
        self._check_open()
        message_id = self._own_id(message)
        self._inbox.acknowledge(message_id)
        if self._settings.ack_receipt_enabled:
            await self._acks.receipt(message_id.position())

    def acknowledge_many(self, messages: Iterable[Message | MessageId]) -> None:
        """Acknowledge several messages, without receipts; see :meth:`acknowledge`."""
        self._check_open()
        for message in messages:
            self._inbox.acknowledge(self._own_id(message))

    async def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge everything through this message.

        Raises the errors of :meth:`acknowledge`, and :class:`CumulativeAcknowledgementNotAllowedError`."""
        self._check_open()
        if not self._settings.consumer_type.one_active:
            raise CumulativeAcknowledgementNotAllowedError(
                f"subscription {self._settings.subscription!r} is {self._settings.consumer_type.value}, a type "
                "without cumulative acknowledgement (of all messages up to one); acknowledge each message by itself"
            )
        message_id = self._own_id(message)
        self._inbox.acknowledge_cumulative(message_id)
        if self._settings.ack_receipt_enabled:
            await self._acks.receipt(message_id.position())

    async def flush_acknowledgements(self) -> None:
        """Send all gathered acknowledgements and wait until every one so far is durable.

        Raises the first error of those that the cluster refused since the last call.
        """
        self._check_open()
        await self._acks.confirm_all()

    async def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Ask for the message again after ``negative_ack_redelivery_delay_ms``, or after the back-off's delay.

        Its whole batch comes with it, without acknowledged messages. An Exclusive or Failover subscription delivers
        everything unacknowledged again, because it cannot redeliver single messages.
        """
        self._check_open()
        self._inbox.reject(self._own_id(message), message.redelivery_count() if isinstance(message, Message) else 0)

    async def reconsume_later(
        self, message: Message, delay_ms: int, properties: Mapping[str, str] | None = None
    ) -> None:
        """Send the message to the retry topic, which delivers it again after ``delay_ms``, with ``properties`` added.

        After its last retry it goes to the dead letter topic. It is acknowledged when its copy is durable. Raises
        :class:`NotAllowedError` without ``enable_retry``, and the errors of :meth:`Producer.send`: then the message
        stays unacknowledged, and is asked for again.
        """
        self._check_open()
        if self._letters is None or not self._settings.retry_enabled:
            raise NotAllowedError(
                f"{self._settings.topic}: this consumer has no retry topic; subscribe with enable_retry=True to "
                "consume messages later"
            )
        check_letter(message, delay_ms, properties)
        message_id = self._own_id(message)
        places = self._places
        try:
            dead = await self._letters.send_for_later(message, delay_ms, properties)
        except PulsarException:
            self._inbox.retry(message_id, message.redelivery_count())
            raise
        if dead:
            self._stats.dead_letters += 1
        else:
            self._stats.retry_letters += 1
        if places == self._places and self._error is None:
            self._inbox.acknowledge(message_id)

    def redeliver_unacknowledged_messages(self) -> None:
        """Ask again for all messages that were delivered to this consumer and are unacknowledged."""
        self._check_open()
        self._inbox.redeliver_all()

    # The subscription.

    async def seek(self, messageid: MessageId | int) -> None:
        """Move the subscription, for all its consumers: the next message is the first one after ``messageid``.

        With ``start_message_id_inclusive`` the message itself comes next. A number is a time in milliseconds since the
        epoch: then the first message published at or after it comes next. Unconfirmed acknowledgements become void.
        Raises :class:`InvalidSeek`, :class:`ConnectError`, :class:`Timeout`.
        """
        channel = self._connected()
        target: Position | int
        if isinstance(messageid, MessageId):
            target, skipped = seek_target(messageid, inclusive=self._settings.start_message_id_inclusive)
        else:
            check_range("a place to seek to (a MessageId, or else a time in milliseconds)", messageid, 0, 2**63 - 1)
            target, skipped = messageid, None
        self._skipped_after_restart = skipped
        try:
            await channel.seek(target)
        finally:
            self._skipped_after_restart = None

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the last message that this consumer can receive; :attr:`MessageId.earliest` if there is
        none.

        The ``batch_size`` of the id is a lower bound: one more than its ``batch_index``. Raises the same errors as
        :meth:`last_message`.
        """
        last = await self.last_message()
        return MessageId.at(last.position, self._partition, last.batch_index, max(last.batch_index + 1, 1))

    async def last_message(self) -> LastMessage:
        """Return the last message that this consumer can receive, and the subscription's mark-delete position.

        If the consumer reconnects meanwhile, as after a seek, the request is sent again. Raises :class:`ConnectError`
        if the connection fails, and :class:`Timeout` once the operation timeout has passed.
        """
        return await open_first(
            lambda: self._connected().last_message(),
            self._operation_timeout_seconds,
            reconnect=self._reconnect,
            what=f"{self._settings.topic}: the last message",
        )

    async def unsubscribe(self, force: bool = False) -> None:
        """Delete the subscription, and close the consumer.

        Raises :class:`NotAllowedError` while it has other consumers. With ``force`` those end with
        :class:`SubscriptionNotFound`, and do not make the subscription anew.
        """
        channel = self._connected()
        self._acks.flush()
        await channel.unsubscribe(force=force)
        await self._end(AlreadyClosed(f"subscription {self._settings.subscription!r} is deleted"))

    async def close(self) -> None:
        """Send the last acknowledgements, wait until they are durable, and release the subscription. Idempotent.

        A cancelled call does not wait for the acknowledgements, but still releases the subscription.
        """
        closed = AlreadyClosed(f"consumer of {self._settings.topic} is closed")
        if self._listening is not None:
            self._listening.stop()
        try:
            if self._error is None and self._channel is not None:
                async with timeout(self._operation_timeout_seconds):
                    await self._inbox.finish()
                    await self._acks.confirm_all()
        except (PulsarException, TimeoutError) as error:
            _log.warning("%s: last acknowledgements were not confirmed: %s", self._settings.topic, error)
        finally:
            ending = self._end(closed)
        await ending

    def topic(self) -> str:
        return self._settings.topic

    def partition(self) -> int:
        """Return the index of the partition that the topic is, or -1."""
        return self._partition

    def subscription_name(self) -> str:
        return self._settings.subscription

    def consumer_name(self) -> str:
        return self._settings.consumer_name

    def is_connected(self) -> bool:
        return self._channel is not None

    def has_reached_end_of_topic(self) -> bool:
        """Return whether no message can come any more: the topic is terminated, and the subscription consumed all of
        it."""
        return self._reached_end

    @property
    def over(self) -> PulsarException | None:
        """Error that ended this consumer; None while it can receive."""
        return self._error

    def stats(self) -> ConsumerStats:
        """Return this consumer's counts since it was made, its present state, and its rates."""
        return self._stats.stats(self._loop.time(), prefetched=len(self._inbox), unacked=self._inbox.unacked_messages)

    def begin_with(self, skipped: SkippedPart | None) -> None:
        """Set the messages to skip in the first entry of the next connection. The reader uses it to start inside a
        batch."""
        self._inbox.skipped = skipped

    def put_back(self, messages: Sequence[Message]) -> None:
        """Return messages to the front of the receiver queue. The cluster does not learn of it."""
        self._inbox.put_back(messages)

    # Events of the channel.

    def on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Handle the arrival of entries."""
        self._inbox.deliver(deliveries)

    def on_redelivery_started(self) -> None:
        """Handle the start of a redelivery: entries that arrive from here on belong to it."""
        self._inbox.redelivery_started()

    def on_restarted(self) -> None:
        """Handle a seek or reset of the subscription."""
        self._places += 1
        self._reached_end = False
        skipped, self._skipped_after_restart = self._skipped_after_restart, None
        self._acks.restarted()
        self._inbox.restarted(skipped)

    def on_active_change(self, active: bool) -> None:
        """Tell the listener whether this consumer of a Failover subscription is the active one."""
        if self._active_changes is not None:
            self._active_changes.tell(active)

    def on_reached_end(self) -> None:
        """Take note that the topic is terminated and fully consumed."""
        self._reached_end = True

    def on_ack_confirmed(self, request_id: int) -> None:
        """Take note that an acknowledgement request is durable."""
        self._acks.confirmed(request_id)

    def on_ack_refused(self, request_id: int, error: PulsarException) -> None:
        """Handle the refusal of an acknowledgement request."""
        self._acks.refused(request_id, error)

    def on_lost(self, error: PulsarException) -> None:
        """Handle the loss of the connection: reconnect, or fail."""
        self._channel = None
        self._reached_end = False  # the cluster says it again, if it is so where the subscription goes on
        self._inbox.lost()
        if self._error is not None:
            return
        if self._reconnect and isinstance(error, ConnectError):
            _log.info("%s: connection lost, subscribing again: %s", self._settings.topic, error)
            self._reopening = client_supervisor().task(
                "reopening", f"reopening of the consumer of {self._settings.topic}", self._reopen, until_done=True
            )
            self._reopening.start()
        else:
            self._fail(error)

    # Methods for the receiver.

    def _pop(self) -> Message | None:
        self._check_open()
        return self._inbox.pop()

    def _pop_many(self, count_max: int) -> list[Message]:
        self._check_open()
        return self._inbox.pop_many(count_max)

    def _put_back(self, messages: Sequence[Message]) -> None:
        self.put_back(messages)

    def _show(self, messages: Sequence[Message]) -> None:
        self._inbox.show(messages)

    def _round(self, topic: str) -> int:
        return self._inbox.rounds

    def _grant(self) -> None:
        self._inbox.grant()

    # Inside.

    def _start(self, channel: ConsumerChannel) -> None:
        if self._cluster is not None and channel.cluster != self._cluster:
            _log.info("%s: moved from %s to %s", self._settings.topic, self._cluster, channel.cluster)
            self._acks.moved()
        self._cluster = channel.cluster
        self._channel = channel
        channel.start(self)
        # Before the permits, so that the cluster knows these acknowledgements when it chooses messages to deliver.
        self._acks.reconnected()
        self._inbox.connected()

    async def _reopen(self) -> None:
        try:
            channel = await open_with_retries(
                self._open_channel,
                self._operation_timeout_seconds,
                again=True,
                what=f"consumer of {self._settings.topic}",
            )
        except PulsarException as error:
            self._reopening = None
            self._fail(error)
            return
        self._reopening = None
        self._stats.reconnects += 1
        self._start(channel)

    def _own_id(self, message: Message | MessageId) -> MessageId:
        return id_of(message, self._settings.topic)

    def _connected(self) -> ConsumerChannel:
        self._check_open()
        if self._channel is None:
            raise ConnectError(
                f"{self._settings.topic}: not connected at the moment; the client connects again by itself: try again"
            )
        return self._channel

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _log_stats(self) -> None:
        _log.info("%s, %s: %s", self._settings.topic, self._settings.subscription, stats_line(self.stats()))
        self._stats.next_interval(self._loop.time())
        self._stats_timer = self._loop.call_later(self._stats_interval_seconds, self._log_stats)

    def _fail(self, error: PulsarException) -> None:
        """Fail the consumer: no message comes any more, and every waiting caller gets the error."""
        self._error = error
        self._inbox.lost()
        self._acks.fail(error)
        if self._stats_timer is not None:
            self._stats_timer.cancel()
        if self._reopening is not None and not self._reopening.is_current:
            self._reopening.cancel()
        if self._on_over is not None and not isinstance(error, AlreadyClosed):
            self._on_over(self, error)
        self._arrivals.wake_all()

    def _refuse(self, error: PulsarException) -> None:
        """Fail, and release the subscription, because this consumer cannot take the delivered messages and others
        may."""
        self._fail(error)
        channel, self._channel = self._channel, None
        if channel is not None:
            self._letting_go = in_background(channel.close(), "closing of a channel")

    def _end(self, error: AlreadyClosed) -> asyncio.Future[None]:
        """Release everything, even if the caller gives up waiting: an open connection would keep messages from
        others."""
        if self._closing is None:
            self._closing = awaited(self._shut(error))
        return asyncio.shield(self._closing)

    async def _shut(self, error: AlreadyClosed) -> None:
        channel, self._channel = self._channel, None
        self._fail(error)
        self._on_close(self)
        if self._letting_go is not None:
            await self._letting_go
        await self._inbox.close()
        if self._letters is not None:
            await self._letters.close()
        if channel is not None:
            await channel.close()
