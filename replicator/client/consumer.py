"""The consumer: the asyncio shell around the receiver queue and the acknowledgement grouping tracker.

Owns what becomes of a delivered entry on this side: it waits in the queue, is opened into messages as the
application takes them, and its acknowledgements are kept until they are confirmed. After a loss of the connection
the consumer subscribes again, sends what is unconfirmed again, and drops what it had prefetched, because the
cluster delivers it anew. With ``reconnect=False`` the loss surfaces at once: :meth:`Consumer.receive` raises.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from types import TracebackType
from typing import Self

from pyroaring import BitMap

from replicator.client.ack_grouping import (
    AckGrouping,
    Action,
    Refused,
    SendAcks,
    SendCumulative,
    Settled,
    StartTimer,
)
from replicator.client.channel import ConsumerChannel
from replicator.client.errors import (
    AlreadyClosed,
    ConnectError,
    CumulativeAcknowledgementNotAllowedError,
    InvalidAck,
    InvalidMessage,
    PulsarException,
    Timeout,
)
from replicator.client.message import Message, MessageId, messages_of
from replicator.client.receiver_queue import ReceiverQueue
from replicator.client.reopening import open_with_retries
from replicator.client.settings import ConsumerSettings
from replicator.engine.topic_name import parse_topic
from replicator.engine.types import Delivery, SubscriptionType
from snapshots.position import Position

_log = logging.getLogger(__name__)


class Consumer:
    """Receives the messages of one subscription. Made by :meth:`Client.subscribe`."""

    def __init__(
        self,
        settings: ConsumerSettings,
        open_channel: Callable[[], Awaitable[ConsumerChannel]],
        *,
        reconnect: bool,
        operation_timeout_seconds: float,
        on_close: Callable[[Consumer], None],
    ) -> None:
        self._settings = settings
        self._open_channel = open_channel
        self._reconnect = reconnect
        self._operation_timeout_seconds = operation_timeout_seconds
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._partition = parse_topic(settings.topic).partition
        self._queue: ReceiverQueue[Message] = ReceiverQueue(settings.receiver_queue_size)
        self._receivers: deque[asyncio.Future[None]] = deque()
        self._acks = AckGrouping(settings.acknowledgement_group_time_ms, settings.acknowledgement_group_size_max)
        self._ack_timer: asyncio.TimerHandle | None = None
        self._ack_waiters: deque[tuple[int, Position | None, asyncio.Future[None]]] = deque()
        self._refused: dict[Position, PulsarException] = {}
        self._negative_acks: dict[Position, float] = {}
        self._negative_ack_timer: asyncio.TimerHandle | None = None
        self._redeliveries_awaited = 0
        self._channel: ConsumerChannel | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._error: PulsarException | None = None
        """Why nothing more can be received; None while open."""

    async def connect(self) -> None:
        """Subscribe; called once by the client."""
        if self._reconnect:
            channel = await open_with_retries(self._open_channel, self._operation_timeout_seconds)
        else:
            channel = await self._open_channel()
        self._start(channel)

    async def receive(self, timeout_millis: int | None = None) -> Message:
        """The next message; waits for it, at most ``timeout_millis``.

        Raises :class:`Timeout`, :class:`AlreadyClosed`, :class:`ConnectError`, and :class:`InvalidMessage` (once)
        for an entry that cannot be read, which stays unacknowledged.
        """
        message = self._take()
        if message is not None:
            return message
        if timeout_millis is None:
            return await self._wait_for_message()
        try:
            async with asyncio.timeout(timeout_millis / 1000):
                return await self._wait_for_message()
        except TimeoutError:
            raise Timeout(f"{self._settings.topic}: no message within {timeout_millis} ms") from None

    async def receive_many(self, max_messages: int = 1000, timeout_millis: int | None = None) -> list[Message]:
        """All messages that are here, up to ``max_messages``; waits for the first, at most ``timeout_millis``.

        Returns [] when the time is over. Raises as :meth:`receive` does.
        """
        self._check_open()
        messages = self._queue.pop_many(max_messages)
        if not messages:
            try:
                messages = [await self.receive(timeout_millis)]
            except Timeout:
                return []
            messages += self._queue.pop_many(max_messages - 1)
        self._grant()
        return messages

    async def acknowledge(self, message: Message | MessageId) -> None:
        """Acknowledge one message. The request goes out with others, see ``acknowledgement_group_time_ms``.

        Returns at once, or with ``ack_receipt_enabled`` when it is durable. Raises :class:`InvalidAck` (with receipts),
        :class:`AlreadyClosed`, :class:`ConnectError`.
        """
        self._check_open()
        message_id = self._own_id(message)
        actions = self._acks.acknowledge(message_id.position(), message_id.batch_index(), message_id.batch_size())
        await self._acknowledged(actions, message_id.position())

    def acknowledge_many(self, messages: Iterable[Message | MessageId]) -> None:
        """:meth:`acknowledge` for several messages, without receipts."""
        self._check_open()
        for message in messages:
            message_id = self._own_id(message)
            actions = self._acks.acknowledge(message_id.position(), message_id.batch_index(), message_id.batch_size())
            if actions:
                self._run(actions)

    async def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge everything up to and with this message; also raises
        :class:`CumulativeAcknowledgementNotAllowedError`."""
        self._check_open()
        if self._settings.consumer_type is not SubscriptionType.EXCLUSIVE:
            raise CumulativeAcknowledgementNotAllowedError(
                f"subscription {self._settings.subscription!r} is {self._settings.consumer_type.value}; "
                "acknowledge each message by itself"
            )
        message_id = self._own_id(message)
        actions = self._acks.acknowledge_cumulative(
            message_id.position(), message_id.batch_index(), message_id.batch_size()
        )
        await self._acknowledged(actions, message_id.position())

    async def flush_acknowledgements(self) -> None:
        """Send what is gathered and wait until every acknowledgement so far is durable.

        Raises the first error of any that the cluster refused since the last call.
        """
        self._check_open()
        self._run(self._acks.flush())
        if self._acks.settled < self._acks.ticket:
            await self._settled(None)
        if self._refused:
            error = next(iter(self._refused.values()))
            self._refused.clear()
            raise error

    async def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Ask for the message again after ``negative_ack_redelivery_delay_ms``; its whole batch comes with it.

        On an Exclusive subscription everything unacknowledged comes again: single messages cannot.
        """
        self._check_open()
        position = self._own_id(message).position()
        due = self._loop.time() + self._settings.negative_ack_redelivery_delay_ms / 1000
        self._negative_acks.setdefault(position, due)
        if self._negative_ack_timer is None:
            self._negative_ack_timer = self._loop.call_at(due, self._redeliver_due)

    def redeliver_unacknowledged_messages(self) -> None:
        """Ask for everything again that was delivered to this consumer and is not acknowledged."""
        self._check_open()
        self._negative_acks.clear()
        self._redeliver_all()

    async def unsubscribe(self) -> None:
        """Delete the subscription, and close."""
        self._check_open()
        if self._channel is None:
            raise ConnectError(f"{self._settings.topic}: not connected at the moment")
        self._run(self._acks.flush())
        await self._channel.unsubscribe()
        await self._shut(AlreadyClosed(f"subscription {self._settings.subscription!r} is deleted"))

    async def close(self) -> None:
        """Send the last acknowledgements, wait until they are durable, and let go of the subscription. Idempotent."""
        if isinstance(self._error, AlreadyClosed):
            return
        if self._error is None and self._channel is not None:
            try:
                async with asyncio.timeout(self._operation_timeout_seconds):
                    await self.flush_acknowledgements()
            except (PulsarException, TimeoutError) as error:
                _log.warning("%s: last acknowledgements were not confirmed: %s", self._settings.topic, error)
        await self._shut(AlreadyClosed(f"consumer of {self._settings.topic} is closed"))

    def topic(self) -> str:
        return self._settings.topic

    def subscription_name(self) -> str:
        return self._settings.subscription

    def consumer_name(self) -> str:
        return self._settings.consumer_name

    def is_connected(self) -> bool:
        return self._channel is not None and self._error is None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.receive()
        except AlreadyClosed:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What the channel reports.

    def on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Entries arrived."""
        for delivery in deliveries:
            permits = delivery.batch_size  # a batch costs all its messages, acknowledged or not
            acknowledged = self._acks.acknowledged(delivery.position)
            if acknowledged is True or self._redeliveries_awaited:
                # Acknowledged here while the cluster sent it again; or sent before it heard of the redelivery.
                self._queue.drop(permits)
                continue
            skip = acknowledged if isinstance(acknowledged, BitMap) else None
            self._queue.put(messages_of(delivery, self._settings.topic, self._partition, skip), permits)
        self._grant()
        self._wake(len(self._queue))

    def on_redelivery_started(self) -> None:
        """What comes from here on belongs to the redelivery."""
        assert self._redeliveries_awaited > 0
        self._redeliveries_awaited -= 1

    def on_ack_confirmed(self, request_id: int) -> None:
        """A request is durable."""
        self._run(self._acks.confirmed(request_id))

    def on_ack_refused(self, request_id: int, error: PulsarException) -> None:
        """A request was refused."""
        self._run(self._acks.refused(request_id, error, split=isinstance(error, InvalidAck)))

    def on_lost(self, error: PulsarException) -> None:
        """The connection is gone."""
        self._channel = None
        self._redeliveries_awaited = 0
        self._queue.restart()
        if self._error is not None:
            return
        if self._reconnect:
            self._reopening = asyncio.create_task(self._reopen())
        else:
            self._fail(error)

    # Inside.

    def _start(self, channel: ConsumerChannel) -> None:
        self._channel = channel
        channel.start(self)
        # Before the permits: so that the cluster knows of these acknowledgements when it chooses what to deliver.
        self._run(self._acks.unconfirmed())
        self._run(self._acks.flush())
        if self._channel is not None:
            self._channel.flow(self._queue.restart())

    async def _reopen(self) -> None:
        try:
            channel = await open_with_retries(self._open_channel, self._operation_timeout_seconds, again=True)
        except PulsarException as error:
            self._fail(error)
            return
        finally:
            self._reopening = None
        self._start(channel)

    def _take(self) -> Message | None:
        self._check_open()
        message = self._queue.pop()
        self._grant()
        return message

    def _grant(self) -> None:
        permits = self._queue.take_permits()
        if permits and self._channel is not None:
            self._channel.flow(permits)

    async def _wait_for_message(self) -> Message:
        while True:
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._receivers.append(waiter)
            try:
                await waiter
            except asyncio.CancelledError:
                if waiter.done() and not waiter.cancelled():
                    self._wake(1)  # hand the wake-up on: the message is still in the queue
                raise
            message = self._take()
            if message is not None:
                return message

    def _wake(self, count: int) -> None:
        while self._receivers and count > 0:
            waiter = self._receivers.popleft()
            if not waiter.done():
                waiter.set_result(None)
                count -= 1

    async def _acknowledged(self, actions: Sequence[Action], position: Position) -> None:
        if actions:
            self._run(actions)
        if self._settings.ack_receipt_enabled:
            await self._settled(position)

    async def _settled(self, position: Position | None) -> None:
        """Wait until every acknowledgement so far is answered; raises if the one of ``position`` was refused."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._ack_waiters.append((self._acks.ticket, position, waiter))
        await waiter

    def _run(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case SendAcks(request_id, acks):
                    if self._channel is not None:
                        self._channel.acknowledge(request_id, acks)
                case SendCumulative(request_id, position, batch_index):
                    if self._channel is not None:
                        self._channel.acknowledge_cumulative(request_id, position, batch_index)
                case StartTimer(delay_ms):
                    self._ack_timer = self._loop.call_later(delay_ms / 1000, self._ack_timer_fired)
                case Refused(position, error):
                    _log.warning("%s: acknowledgement of %s refused: %s", self._settings.topic, position, error)
                    self._refused[position] = error
                case Settled(through):
                    self._settle(through)

    def _ack_timer_fired(self) -> None:
        self._ack_timer = None
        self._run(self._acks.timer_fired())

    def _settle(self, through: int) -> None:
        while self._ack_waiters and self._ack_waiters[0][0] <= through:
            _, position, waiter = self._ack_waiters.popleft()
            error = self._refused.pop(position, None) if position is not None else None
            if waiter.done():
                continue
            if error is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(None)

    def _redeliver_due(self) -> None:
        self._negative_ack_timer = None
        now = self._loop.time()
        due = sorted(position for position, time in self._negative_acks.items() if time <= now)
        for position in due:
            del self._negative_acks[position]
        if self._negative_acks:
            self._negative_ack_timer = self._loop.call_at(min(self._negative_acks.values()), self._redeliver_due)
        if not due or self._channel is None:
            return  # without a connection there is nothing to ask for: the next one delivers it all
        if self._settings.consumer_type is SubscriptionType.EXCLUSIVE:
            self._redeliver_all()
            return
        self._run(self._acks.flush())
        self._redeliver(due)

    def _redeliver_all(self) -> None:
        self._run(self._acks.flush())
        self._queue.drop_all()
        self._redeliver(None)
        self._grant()

    def _redeliver(self, positions: Sequence[Position] | None) -> None:
        if self._channel is None:
            return
        if positions is None:
            self._redeliveries_awaited += 1
        self._channel.redeliver(positions)

    def _own_id(self, message: Message | MessageId) -> MessageId:
        if isinstance(message, MessageId):
            return message
        if not isinstance(message, Message):
            raise InvalidMessage(f"{message!r:.80} is neither a Message nor a MessageId")
        if message.topic_name() != self._settings.topic:
            raise InvalidAck(f"{message!r} is not of {self._settings.topic}")
        return message.message_id()

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error.with_traceback(None)

    def _fail(self, error: PulsarException) -> None:
        """Nothing more comes: everyone who waits gets the error."""
        self._error = error
        self._queue.restart()
        for timer in (self._ack_timer, self._negative_ack_timer):
            if timer is not None:
                timer.cancel()
        if self._reopening is not None and self._reopening is not asyncio.current_task():
            self._reopening.cancel()
        for _, _, ack_waiter in self._ack_waiters:
            if not ack_waiter.done():
                ack_waiter.set_exception(error)
        self._ack_waiters.clear()
        self._wake(len(self._receivers))

    async def _shut(self, error: AlreadyClosed) -> None:
        channel, self._channel = self._channel, None
        self._fail(error)
        self._on_close(self)
        if channel is not None:
            await channel.close()
