"""The producer: the asyncio shell around the batch container.

Owns the order of what is sent, and every message until it is confirmed. After a loss of the connection the
unconfirmed entries are sent again, in order, before anything newer (at least once; an entry whose receipt was lost
is then stored twice). With ``reconnect=False`` the loss surfaces at once instead, and :meth:`Producer.pending` has
what the caller may send elsewhere.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from types import TracebackType
from typing import Final, Self

from replicator.client.batching import BatchContainer, SealedEntry, message_bytes, single_entry
from replicator.client.channel import ProducerChannel
from replicator.client.errors import (
    AlreadyClosed,
    InvalidMessage,
    MessageTooBig,
    OperationNotSupported,
    ProducerQueueIsFull,
    PulsarException,
    Timeout,
)
from replicator.client.message import NO_BATCH, MessageId, OutgoingMessage
from replicator.client.reopening import open_with_retries
from replicator.client.settings import ProducerSettings, check_properties
from replicator.engine.topic_name import parse_topic
from snapshots.position import Position

MESSAGE_BYTES_MAX: Final = 5 * 1024 * 1024
"""As upstream's default; for the content, and for key and properties together."""

Confirmation = asyncio.Future[MessageId]


class _PendingEntry:
    """A sealed entry on its way, and the futures of its messages."""

    __slots__ = ("confirmations", "deadline", "sealed")

    def __init__(self, sealed: SealedEntry, confirmations: list[Confirmation], deadline: float) -> None:
        self.sealed = sealed
        self.confirmations = confirmations
        self.deadline = deadline


class Producer:
    """Publishes to one topic. Made by :meth:`Client.create_producer`."""

    def __init__(
        self,
        settings: ProducerSettings,
        open_channel: Callable[[], Awaitable[ProducerChannel]],
        *,
        reconnect: bool,
        operation_timeout_seconds: float,
        on_close: Callable[[Producer], None],
    ) -> None:
        self._settings = settings
        self._open_channel = open_channel
        self._reconnect = reconnect
        self._operation_timeout_seconds = operation_timeout_seconds
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._partition = parse_topic(settings.topic).partition
        self._batch = (
            BatchContainer(settings.batching, settings.producer_name) if settings.batching is not None else None
        )
        self._batch_confirmations: list[Confirmation] = []
        self._batch_timer: asyncio.TimerHandle | None = None
        self._pending: dict[int, _PendingEntry] = {}
        self._pending_messages = 0
        self._next_entry_id = 1
        self._next_sequence_id = settings.initial_sequence_id + 1
        self._last_sequence_id = settings.initial_sequence_id
        self._timeout_timer: asyncio.TimerHandle | None = None
        self._room_waiters: deque[asyncio.Future[None]] = deque()
        self._flush_waiters: list[tuple[int, asyncio.Future[PulsarException | None]]] = []
        self._channel: ProducerChannel | None = None
        self._reopening: asyncio.Task[None] | None = None
        self._error: PulsarException | None = None
        """Why nothing more can be sent; None while open."""

    async def connect(self) -> None:
        """Open the channel; called once by the client."""
        if self._reconnect:
            self._channel = await open_with_retries(self._open_channel, self._operation_timeout_seconds)
        else:
            self._channel = await self._open_channel()
        self._channel.start(self)

    async def send(
        self,
        content: bytes,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        replication_clusters: list[str] | None = None,
        disable_replication: bool | None = None,
        event_timestamp: int | None = None,
        deliver_at: int | None = None,
        deliver_after: object | None = None,
    ) -> MessageId:
        """Send one message and wait until it is durable.

        Raises :class:`ProducerQueueIsFull`, :class:`MessageTooBig`, :class:`Timeout`, :class:`ConnectError`,
        :class:`AlreadyClosed` and what the cluster answers.
        """
        for name, value in (
            ("replication_clusters", replication_clusters),
            ("disable_replication", disable_replication),
            ("deliver_at", deliver_at),
            ("deliver_after", deliver_after),
        ):
            if value:
                raise OperationNotSupported(f"send: {name} is not supported yet")
        message = OutgoingMessage(content, properties, partition_key, ordering_key, sequence_id, event_timestamp)
        if self._settings.block_if_queue_full:
            await self.wait_for_room()
        return await self.enqueue_message(message)

    def enqueue(
        self,
        content: bytes,
        properties: Mapping[str, str] | None = None,
        partition_key: str | None = None,
        ordering_key: str | None = None,
        sequence_id: int | None = None,
        event_timestamp: int | None = None,
    ) -> Confirmation:
        """Take one message without waiting; the future has its id once it is durable.

        Raises what :meth:`send` raises before it waits. :meth:`wait_for_room` gives back-pressure.
        """
        return self.enqueue_message(
            OutgoingMessage(content, properties, partition_key, ordering_key, sequence_id, event_timestamp)
        )

    def enqueue_message(self, message: OutgoingMessage) -> Confirmation:
        """:meth:`enqueue` for a message that exists, such as one of another producer's :meth:`pending`."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        if self._pending_messages >= self._settings.max_pending_messages:
            raise ProducerQueueIsFull(
                f"{self._settings.topic}: {self._pending_messages} messages wait for confirmation"
            )
        _check_message(message)
        sequence_id = message.sequence_id
        if sequence_id is None:
            sequence_id = self._next_sequence_id
            self._next_sequence_id += 1
        confirmation: Confirmation = self._loop.create_future()
        self._pending_messages += 1
        self._batch_confirmations.append(confirmation)
        if self._batch is None:
            self._send_sealed(single_entry(message, sequence_id, self._settings.producer_name, _wall_time_ms()))
            return confirmation
        for sealed in self._batch.add(message, sequence_id, self._loop.time(), _wall_time_ms()):
            self._send_sealed(sealed)
        if self._batch_timer is None and self._batch.deadline is not None:
            self._batch_timer = self._loop.call_at(self._batch.deadline, self._batch_is_due)
        return confirmation

    async def send_many(self, messages: Iterable[OutgoingMessage | bytes]) -> list[MessageId]:
        """Send messages one behind the other without waiting for each, and wait until all are durable.

        Holds back when ``max_pending_messages`` is reached. Raises the first error; others may have been stored.
        """
        confirmations: list[Confirmation] = []
        for message in messages:
            if self._pending_messages >= self._settings.max_pending_messages:
                await self.wait_for_room()
            outgoing = message if isinstance(message, OutgoingMessage) else OutgoingMessage(message)
            confirmations.append(self.enqueue_message(outgoing))
        self._seal_batch()
        return await asyncio.gather(*confirmations)

    async def wait_for_room(self) -> None:
        """Wait until one more message can be taken; raises the error of a producer that is closed or lost."""
        while self._error is None and self._pending_messages >= self._settings.max_pending_messages:
            self._seal_batch()
            waiter: asyncio.Future[None] = self._loop.create_future()
            self._room_waiters.append(waiter)
            await waiter
        if self._error is not None:
            raise self._error.with_traceback(None)

    def pending(self) -> list[OutgoingMessage]:
        """The messages that are not confirmed, in order; also after a loss with ``reconnect=False``."""
        return [message for entry in self._pending.values() for message in entry.sealed.messages] + (
            self._batch.open_messages() if self._batch is not None else []
        )

    async def flush(self) -> None:
        """Send the open batch and wait until all that was sent is durable; raises the first error of any of it."""
        if self._error is not None:
            raise self._error.with_traceback(None)
        self._seal_batch()
        if not self._pending:
            return
        waiter: asyncio.Future[PulsarException | None] = self._loop.create_future()
        self._flush_waiters.append((self._next_entry_id - 1, waiter))
        error = await waiter
        if error is not None:
            raise error

    async def close(self) -> None:
        """Wait until what was sent is confirmed or has failed, then let go of the topic. Idempotent."""
        if isinstance(self._error, AlreadyClosed):
            return
        try:
            if self._channel is not None:
                await self.flush()
        except PulsarException:
            pass  # it is in the futures of the messages that failed
        finally:
            self._stop(AlreadyClosed(f"producer of {self._settings.topic} is closed"))
            self._forget_pending()
            channel, self._channel = self._channel, None
            self._on_close(self)
            if channel is not None:
                await channel.close()

    def topic(self) -> str:
        return self._settings.topic

    def producer_name(self) -> str:
        return self._settings.producer_name

    def last_sequence_id(self) -> int:
        """The highest sequence id that is confirmed, or ``initial_sequence_id``, or -1."""
        return self._last_sequence_id

    def is_connected(self) -> bool:
        return self._channel is not None and self._error is None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # What the channel reports.

    def on_receipt(self, entry_id: int, position: Position) -> None:
        """An entry is durable."""
        entry = self._take_pending(entry_id)
        if entry is None:
            return  # it timed out before
        sealed = entry.sealed
        self._last_sequence_id = max(self._last_sequence_id, sealed.highest_sequence_id)
        size = len(sealed.messages)
        for index, confirmation in enumerate(entry.confirmations):
            if not confirmation.done():
                confirmation.set_result(
                    MessageId.at(position, self._partition, index if sealed.batched else NO_BATCH, size)
                )
        self._settle_waiters()

    def on_refused(self, entry_id: int, error: PulsarException) -> None:
        """An entry was refused."""
        self._fail_entry(entry_id, error)

    def on_lost(self, error: PulsarException) -> None:
        """The connection is gone."""
        self._channel = None
        if self._error is not None:
            return
        if self._reconnect:
            self._reopening = asyncio.create_task(self._reopen())
        else:
            self._stop(error)

    # Inside.

    def _batch_is_due(self) -> None:
        self._batch_timer = None
        assert self._batch is not None
        deadline = self._batch.deadline
        if deadline is None:
            return
        if deadline > self._loop.time():
            # The batch that the timer was for is gone; this is a younger one.
            self._batch_timer = self._loop.call_at(deadline, self._batch_is_due)
            return
        self._seal_batch()

    def _seal_batch(self) -> None:
        if self._batch is not None:
            for sealed in self._batch.seal():
                self._send_sealed(sealed)

    def _send_sealed(self, sealed: SealedEntry) -> None:
        count = len(sealed.messages)
        confirmations = self._batch_confirmations[:count]
        del self._batch_confirmations[:count]
        entry_id = self._next_entry_id
        self._next_entry_id += 1
        deadline = self._loop.time() + self._settings.send_timeout_ms / 1000
        self._pending[entry_id] = _PendingEntry(sealed, confirmations, deadline)
        if isinstance(sealed.entry, PulsarException):
            self._fail_entry(entry_id, sealed.entry)
            return
        if self._settings.send_timeout_ms and self._timeout_timer is None:
            self._timeout_timer = self._loop.call_at(deadline, self._time_out)
        if self._channel is not None:
            self._channel.publish(entry_id, sealed.entry)

    def _time_out(self) -> None:
        self._timeout_timer = None
        while self._pending:
            entry_id, oldest = next(iter(self._pending.items()))
            if oldest.deadline > self._loop.time():
                self._timeout_timer = self._loop.call_at(oldest.deadline, self._time_out)
                return
            self._fail_entry(
                entry_id,
                Timeout(f"{self._settings.topic}: not confirmed within {self._settings.send_timeout_ms} ms"),
            )

    async def _reopen(self) -> None:
        try:
            channel = await open_with_retries(self._open_channel, self._operation_timeout_seconds, again=True)
        except PulsarException as error:
            self._stop(error)
            return
        finally:
            self._reopening = None
        self._channel = channel
        channel.start(self)
        for entry_id, entry in self._pending.items():
            assert isinstance(entry.sealed.entry, bytes)
            channel.publish(entry_id, entry.sealed.entry)

    def _take_pending(self, entry_id: int) -> _PendingEntry | None:
        entry = self._pending.pop(entry_id, None)
        if entry is not None:
            self._pending_messages -= len(entry.sealed.messages)
        return entry

    def _fail_entry(self, entry_id: int, error: PulsarException) -> None:
        entry = self._take_pending(entry_id)
        if entry is None:
            return
        _fail(entry.confirmations, error)
        for last_entry_id, waiter in self._flush_waiters:
            if entry_id <= last_entry_id and not waiter.done():
                waiter.set_result(error)
        self._settle_waiters()

    def _settle_waiters(self) -> None:
        """Wake those whose condition came true: a flush without older entries, as many senders as there is room."""
        if self._flush_waiters:
            oldest = next(iter(self._pending), self._next_entry_id)
            for last_entry_id, waiter in self._flush_waiters:
                if last_entry_id < oldest and not waiter.done():
                    waiter.set_result(None)
            self._flush_waiters = [pair for pair in self._flush_waiters if not pair[1].done()]
        room = self._settings.max_pending_messages - self._pending_messages
        while self._room_waiters and room > 0:
            waiter_for_room = self._room_waiters.popleft()
            if not waiter_for_room.done():
                waiter_for_room.set_result(None)
                room -= 1

    def _stop(self, error: PulsarException) -> None:
        """Take nothing more, and fail what waits. Unconfirmed messages stay listed in :meth:`pending`."""
        self._seal_open_batch_unsent()
        self._error = error
        for timer in (self._batch_timer, self._timeout_timer):
            if timer is not None:
                timer.cancel()
        if self._reopening is not None and self._reopening is not asyncio.current_task():
            self._reopening.cancel()
        for entry in self._pending.values():
            _fail(entry.confirmations, error)
        for _, flush_waiter in self._flush_waiters:
            if not flush_waiter.done():
                flush_waiter.set_result(error)
        self._flush_waiters.clear()
        for waiter in self._room_waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._room_waiters.clear()

    def _seal_open_batch_unsent(self) -> None:
        channel, self._channel = self._channel, None
        self._seal_batch()
        self._channel = channel

    def _forget_pending(self) -> None:
        self._pending.clear()
        self._pending_messages = 0


def _fail(confirmations: list[Confirmation], error: PulsarException) -> None:
    for confirmation in confirmations:
        if not confirmation.done():
            confirmation.set_exception(error)
            # Whoever sends without looking at each future learns of it from flush() or pending(); a log line for each
            # of thousands of futures would only bury that.
            confirmation.exception()


def _check_message(message: OutgoingMessage) -> None:
    if not isinstance(message.content, bytes):
        raise InvalidMessage(f"content is {type(message.content).__name__}; it must be bytes")
    if message.properties:
        check_properties(message.properties)
    try:
        rest = message_bytes(message) - len(message.content)
        for text in (message.partition_key, *(message.properties or {}), *(message.properties or {}).values()):
            if text is not None:
                text.encode()
    except (UnicodeEncodeError, TypeError, AttributeError):
        raise InvalidMessage("keys and properties must be text that UTF-8 can hold") from None
    if len(message.content) > MESSAGE_BYTES_MAX or rest > MESSAGE_BYTES_MAX:
        raise MessageTooBig(
            f"message of {len(message.content)} bytes, and about {rest} of keys and properties, "
            f"is over the limit of {MESSAGE_BYTES_MAX}"
        )
    for name, number in (("sequence_id", message.sequence_id), ("event_timestamp", message.event_timestamp)):
        if number is not None and not (isinstance(number, int) and 0 <= number < 2**63):
            raise InvalidMessage(f"{name} is {number!r}; it must be a whole number from 0 to 2**63-1")


def _wall_time_ms() -> int:
    return time.time_ns() // 1_000_000
