"""Reader: it reads a topic from any place, and leaves no trace in it.

It is a consumer of a subscription that is not durable, with two differences. It acknowledges everything up to each
message that it hands out, so that the cluster can forget it. After a loss of the connection it chooses itself where to
continue, because its subscription went with the connection.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Final, Self

from replicator.client.closing import ClosedAtExit
from replicator.client.consuming.consumer import Consumer
from replicator.client.consuming.listening import MessageListener
from replicator.client.consuming.seeking import SkippedPart, following, seek_target, start_position
from replicator.client.errors import AlreadyClosed, Timeout
from replicator.client.message import Message, MessageId, Opening
from replicator.client.settings import ConsumerSettings
from replicator.client.wire.channel import ConsumerChannel
from replicator.engine.log.delivered import LastMessage
from replicator.engine.types import InitialPosition
from snapshots.position import BEFORE_ALL, Position

ARRIVAL_MS_MAX: Final = 1_000
"""Longest wait of :meth:`Reader.has_message_available` for the first message after a seek by time.

It must wait for a message if the brokers do not report mark-delete positions.
"""


class Reader(ClosedAtExit):
    """Reader of one topic. :meth:`Client.create_reader` makes it."""

    def __init__(
        self,
        settings: ConsumerSettings,
        start_message_id: MessageId,
        open_channel: Callable[[ConsumerSettings], Awaitable[ConsumerChannel]],
        *,
        reconnect: bool,
        operation_timeout_seconds: float,
        on_close: Callable[[Reader], None],
        opening: Opening,
        reader_listener: MessageListener | None = None,
    ) -> None:
        self._settings = settings
        self._open_channel = open_channel
        self._next: Position
        self._skipped: SkippedPart | None
        self._next, self._skipped = seek_target(start_message_id, inclusive=settings.start_message_id_inclusive)
        """Next entry to read, and the part of it that was read already."""
        self._at_latest = start_message_id == MessageId.latest
        """Whether the reader starts at the end of the topic, and has not connected yet."""
        self._sought_ms: int | None = None
        """Nothing was read since a seek to this publish time."""
        self._consumer = Consumer(
            settings,
            self._open,
            reconnect=reconnect,
            operation_timeout_seconds=operation_timeout_seconds,
            on_close=lambda _: on_close(self),
            opening=opening,
            message_listener=None if reader_listener is None else self._listener(reader_listener),
        )

    async def connect(self) -> None:
        """Begin to read. The client calls this once."""
        await self._consumer.connect()
        if self._at_latest:
            try:
                await self._settle_at_end()
            except BaseException:
                await self._consumer.close()
                raise

    async def read_next(self, timeout_millis: int | None = None) -> Message:
        """Return the next message; wait for it at most ``timeout_millis``. Raises the errors of
        :meth:`Consumer.receive`."""
        while True:
            message = await self._consumer.receive(timeout_millis)
            unwanted = self._sought_ms is not None and message.publish_timestamp() < self._sought_ms
            await self._read(message)
            if not unwanted:  # a connection that was lost after a seek by time begins before it
                self._sought_ms = None
                return message

    async def has_message_available(self) -> bool:
        """Return whether :meth:`read_next` would return a message at once, without waiting for a publish.

        Raises :class:`ConnectError` if the cluster cannot be asked.
        """
        while True:
            last = await self._consumer.last_message()
            if last.position == BEFORE_ALL or not self._has_unread(last):
                return False
            if self._sought_ms is None:
                return True
            # After a seek by time only the cluster knows the reader's position.
            if last.mark_delete is not None and last.mark_delete >= last.position:
                return False
            try:
                message = await self._consumer.receive(ARRIVAL_MS_MAX)
            except Timeout:
                return False
            if message.publish_timestamp() >= self._sought_ms:
                self._consumer.put_back((message,))
                return True
            await self._read(message)  # read_next would skip the message, too

    def _has_unread(self, last: LastMessage) -> bool:
        """Return whether ``last`` is a message that this reader has not read yet."""
        if last.position != self._next:
            return last.position > self._next
        return self._skipped is None or last.batch_index > self._skipped.last_index

    async def seek(self, messageid: MessageId | int) -> None:
        """Continue after ``messageid``, or with it if the reader was made with ``start_message_id_inclusive``.

        A number is a publish time in milliseconds since the epoch to continue from. Raises :class:`InvalidSeek`,
        :class:`ConnectError`."""
        await self._consumer.seek(messageid)
        if isinstance(messageid, MessageId):
            self._sought_ms = None
            self._next, self._skipped = seek_target(messageid, inclusive=self._settings.start_message_id_inclusive)
            if messageid == MessageId.latest:
                await self._settle_at_end()
        else:
            self._sought_ms = messageid
            self._next, self._skipped = Position(0, 0), None

    async def get_last_message_id(self) -> MessageId:
        """Return the id of the last message that this reader can receive; :attr:`MessageId.earliest` if there is none.

        Raises the same errors as :meth:`Consumer.get_last_message_id`.
        """
        return await self._consumer.get_last_message_id()

    async def close(self) -> None:
        """Stop reading. Idempotent."""
        await self._consumer.close()

    def topic(self) -> str:
        return self._settings.topic

    def has_reached_end_of_topic(self) -> bool:
        """Return whether no message can come any more: the topic is terminated, and the reader has read all of it."""
        return self._consumer.has_reached_end_of_topic()

    def is_connected(self) -> bool:
        return self._consumer.is_connected()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Message:
        try:
            return await self.read_next()
        except AlreadyClosed:
            raise StopAsyncIteration from None

    async def _open(self) -> ConsumerChannel:
        """Connect at the position that the application has reached."""
        settings = replace(self._settings, start=start_position(self._next))
        if self._at_latest:
            settings = replace(self._settings, start=None, initial_position=InitialPosition.LATEST)
        channel = await self._open_channel(settings)
        self._consumer.begin_with(self._skipped)
        return channel

    async def _read(self, message: Message) -> None:
        message_id = message.message_id()
        self._next, self._skipped = following(message_id)
        await self._consumer.acknowledge_cumulative(message_id)

    async def _settle_at_end(self) -> None:
        """Replace "latest" by the topic's end as a position, so that a later connection continues from there."""
        last = await self._consumer.last_message()
        # The reader must read what was published since it connected. So it begins where the topic ended then.
        end = last.position if last.mark_delete is None else last.mark_delete
        self._at_latest = False
        self._next = Position(end.ledger, end.entry + 1)

    def _listener(self, reader_listener: MessageListener) -> MessageListener:
        async def listen(_: object, message: Message) -> None:
            await self._read(message)
            result = reader_listener(self, message)
            if inspect.isawaitable(result):
                await result

        return listen
