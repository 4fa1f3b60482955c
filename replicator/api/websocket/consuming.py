"""One consumer or reader over a WebSocket: messages out; acknowledgements and permits in.

Invariant 11: a consumer is sent no more messages than its receiver queue holds before it answers some of them
(:class:`Window`), or with ``pullMode`` no more than it asks for. And nothing is taken for it while its socket is full.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Final, Protocol

import structlog
from aiohttp import WSMsgType, web

from replicator.api.websocket.fields import BadField
from replicator.api.websocket.frames import (
    Command,
    delivered,
    end_of_topic,
    read_command,
    read_message_id,
    write_message_id,
)
from replicator.client import (
    AlreadyClosed,
    Consumer,
    InvalidMessage,
    Message,
    MessageId,
    MultiTopicsConsumer,
    Reader,
)
from replicator.engine.unpacking import ASIDE_BYTES_MIN, Unpacking
from replicator.running.limited_log import LIMITED
from replicator.running.pacing import Pace, metered
from replicator.running.together import until_first_ends
from replicator.running.turns import FairScheduler

PERMITS_MAX: Final = 1_000_000
"""Limit of unused permits of one client; more are cut."""
UNANSWERED_MAX: Final = 10_000
"""Ids that are remembered as they were sent; only ``pullMode`` has more. Those that are forgotten can be acknowledged,
but of a message in chunks only the first and the last."""

log = structlog.get_logger(__name__)


class Window:
    """Counts how many messages may be sent now."""

    def __init__(self, unanswered_max: int | None) -> None:
        """Make the window. If ``unanswered_max`` is None, only permits limit it."""
        self._unanswered_max = unanswered_max
        self._unanswered = 0
        self._permits = 0
        self._changed = asyncio.Event()

    def sent(self, *, again: bool = False) -> None:
        """Count a message as sent. With ``again``, it was sent before and not answered, and is counted only once."""
        self._unanswered += not again
        self._permits -= 1

    def answered(self) -> None:
        self._unanswered = max(0, self._unanswered - 1)
        self._changed.set()

    def permit(self, count: int) -> None:
        self._permits = max(0, min(self._permits + count, PERMITS_MAX))
        self._changed.set()

    async def room(self) -> None:
        """Wait until one more may be sent."""
        while self._permits <= 0 if self._unanswered_max is None else self._unanswered >= self._unanswered_max:
            self._changed.clear()
            await self._changed.wait()


class Source(Protocol):
    """The part of a consumer or a reader that a session uses."""

    async def receive(self) -> Message: ...

    async def answer(self, command: Command, window: Window) -> None:
        """Do what the client asks for a message. Raise :class:`BadField`."""

    async def unsubscribe(self) -> None: ...

    def reached_end(self) -> bool:
        """Return whether nothing more can come: the topic is terminated, and all of it was consumed."""

    def shown(self, message: Message, message_id: str) -> bool:
        """Note that the message goes to the client now, under that id. Return False if it went before and was not
        answered.
        """

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        """Return coroutines that must run beside the session."""


class Session:
    """Serves one socket until its client leaves, or until its consumer or reader is lost."""

    def __init__(
        self,
        socket: web.WebSocketResponse,
        source: Source,
        window: Window,
        unpacking: Unpacking,
        turns: FairScheduler,
        peer: str,
    ) -> None:
        self._socket = socket
        self._turns = turns
        self._source = source
        self._window = window
        self._unpacking = unpacking
        self._peer = peer

    async def run(self) -> None:
        """Run the session. Raise :class:`BadField`, and :class:`PulsarException` when the consumer or the reader is
        lost.
        """
        work = (self._read(), self._send(), *self._source.parts())
        await until_first_ends(*(metered(each, self._turns) for each in work), names="websocket consumer")

    async def _send(self) -> None:
        pace = Pace(self._turns)
        while True:
            await pace.step()
            await self._window.room()
            try:
                message = await self._source.receive()
            except InvalidMessage as error:  # it stays unacknowledged
                event = "a message cannot be read for a websocket"
                LIMITED.say(log.warning, event, self._peer, peer=self._peer, reason=str(error))
                continue
            message_id = write_message_id(message.message_id())
            self._window.sent(again=not self._source.shown(message, message_id))
            if len(message.data()) < ASIDE_BYTES_MIN:
                frame = delivered(message, message_id)
            else:
                frame = await self._unpacking.on_thread(delivered, message, message_id)
            await self._socket.send_frame(frame, WSMsgType.TEXT)
            del message, frame  # while the next one is waited for, nothing of this one is held

    async def _read(self) -> None:
        pace = Pace(self._turns)
        async for frame in self._socket:
            await pace.step()
            if frame.type is not WSMsgType.TEXT:
                continue
            command = read_command(frame.data)
            match command.type:
                case "permit":
                    if command.permits is None:
                        raise BadField("Missing required permitMessages field for 'permit' command")
                    self._window.permit(command.permits)
                case "unsubscribe":
                    await self._source.unsubscribe()
                case "isEndOfTopic":
                    await self._socket.send_str(end_of_topic(self._source.reached_end()))
                case _:
                    await self._source.answer(command, self._window)


class ConsumerSource:
    """A consumer; a message is answered when the client acknowledges or rejects it."""

    def __init__(self, consumer: Consumer | MultiTopicsConsumer) -> None:
        self._consumer = consumer
        self._unanswered: dict[str, MessageId] = {}
        """Message ids as the consumer gave them, by the ids sent to the client: the id of a message in chunks knows all
        its chunks.
        """
        self._unsubscribed = asyncio.Event()

    async def receive(self) -> Message:
        try:
            return await self._consumer.receive()
        except AlreadyClosed:
            if not self._unsubscribed.is_set():
                raise
        # The client asked for that, and may still want to hear something else.
        await asyncio.get_running_loop().create_future()
        raise AssertionError("nobody settles it")

    def shown(self, message: Message, message_id: str) -> bool:
        new = self._unanswered.pop(message_id, None) is None
        self._unanswered[message_id] = message.message_id()
        if len(self._unanswered) > UNANSWERED_MAX:
            del self._unanswered[next(iter(self._unanswered))]
        return new

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        return []

    async def answer(self, command: Command, window: Window) -> None:
        if command.message_id is None:
            raise BadField("messageId is missing")
        known = self._unanswered.pop(command.message_id, None)
        message_id = known or read_message_id(command.message_id)
        if self._unsubscribed.is_set():
            return
        if command.type == "negativeAcknowledge":
            await self._consumer.negative_acknowledge(message_id)
        else:
            await self._consumer.acknowledge(message_id)
        if known is not None:
            window.answered()

    async def unsubscribe(self) -> None:
        if not self._unsubscribed.is_set():
            self._unsubscribed.set()
            await self._consumer.unsubscribe()

    def reached_end(self) -> bool:
        return self._consumer.has_reached_end_of_topic()


class ReaderSource:
    """The readers of a topic or of its partitions. Any answer of the client counts as "one more message read"."""

    def __init__(self, readers: list[Reader]) -> None:
        self._readers = readers
        self._merged: asyncio.Queue[Message] = asyncio.Queue(1)

    async def receive(self) -> Message:
        if len(self._readers) == 1:
            return await self._readers[0].read_next()
        return await self._merged.get()

    def parts(self) -> list[Coroutine[Any, Any, None]]:
        return [self._read(reader) for reader in self._readers] if len(self._readers) > 1 else []

    async def _read(self, reader: Reader) -> None:
        while True:
            await self._merged.put(await reader.read_next())

    def shown(self, message: Message, message_id: str) -> bool:
        return True

    async def answer(self, command: Command, window: Window) -> None:
        window.answered()

    async def unsubscribe(self) -> None:
        pass

    def reached_end(self) -> bool:
        return all(reader.has_reached_end_of_topic() for reader in self._readers)
