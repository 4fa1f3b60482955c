"""Watching patterns of topics: over one WebSocket for all watchers of a client, and on an engine in this process.

Over the network the socket is opened with the first watcher and closed with the last one. What a watcher is told before
it is started waits for that.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import aiohttp

from replicator.client.errors import AlreadyClosed, ConnectError, PulsarException, Timeout, from_code, from_engine
from replicator.client.wire.channel import TopicWatchEvents
from replicator.client.wire.frames import Refusal
from replicator.client.wire.topic_frames import (
    ListTopics,
    TopicReply,
    TopicRequest,
    Topics,
    TopicsChanged,
    Unwatch,
    Watch,
    decode_topic_reply,
    encode_topic_request,
)
from replicator.engine.errors import EngineError
from replicator.engine.topics.topic_watch import TopicListing, TopicWatch
from replicator.engine.topics.topic_watchers import TopicWatchers
from replicator.running.short_tasks import awaited, in_background
from replicator.running.supervisor import TELL_SECONDS
from replicator.running.timeouts import timeout

TOPICS_PATH: Final = "/client/v1/topics"

_Event = Callable[[TopicWatchEvents], None]


_log = logging.getLogger(__name__)


class _Events:
    """What a channel reports: kept until somebody listens, and nothing after the loss."""

    def __init__(self) -> None:
        self._events: TopicWatchEvents | None = None
        self._early: deque[_Event] = deque()
        self._over = False

    def start(self, events: TopicWatchEvents) -> None:
        self._events = events
        while self._early:
            self._early.popleft()(events)

    def report(self, event: _Event) -> None:
        if self._over:
            return
        if self._events is None:
            self._early.append(event)
        else:
            event(self._events)

    def lost(self, error: PulsarException) -> None:
        self.report(lambda events: events.on_lost(error))
        self._over = True

    def stop(self) -> None:
        self._over = True
        self._early.clear()


class SocketTopicWatches:
    """The watchers of one client, over one socket, which ``connect`` opens."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[aiohttp.ClientWebSocketResponse]],
        address: str,
        operation_timeout_seconds: float,
    ) -> None:
        self._connect = connect
        self._address = address
        self._operation_timeout_seconds = operation_timeout_seconds
        self._opening = asyncio.Lock()
        self._connection: _Connection | None = None
        self._next_id = 0

    async def open(self, pattern: str, known_hash: str) -> SocketTopicWatchChannel:
        """Watch, and wait for the first answer; see :meth:`Connector.open_topic_watch`."""
        async with self._opening:
            if self._connection is None or self._connection.over:
                self._connection = _Connection(await self._connect(), self._address)
            connection = self._connection
            self._next_id += 1
            channel = SocketTopicWatchChannel(connection, self._next_id)
            connection.add(channel)
        try:
            async with timeout(self._operation_timeout_seconds):
                connection.send(Watch(channel.watch_id, pattern, known_hash))
                await asyncio.shield(channel.answered)
        except TimeoutError:
            await channel.close()
            raise Timeout(f"watch: no answer within {self._operation_timeout_seconds:g} s") from None
        except BaseException:
            await channel.close()
            raise
        return channel

    async def lose(self, error: PulsarException) -> None:
        """The watchers hear ``error`` as the loss of their channel."""
        if self._connection is not None:
            await self._connection.end(error)

    async def close(self) -> None:
        """Close the socket."""
        if self._connection is not None:
            await self._connection.close()


class SocketTopicWatchChannel:
    """One watcher among those of a socket."""

    def __init__(self, connection: _Connection, watch_id: int) -> None:
        self._connection = connection
        self.watch_id = watch_id
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the watch was accepted, or failed with why it was not."""
        self._events = _Events()

    def start(self, events: TopicWatchEvents) -> None:
        self._events.start(events)

    def poll(self, known_hash: str) -> None:
        self._connection.send(ListTopics(self.watch_id, known_hash))

    async def close(self) -> None:
        self._events.stop()
        if not self.answered.done():
            self.answered.cancel()
        await self._connection.remove(self)

    def on_reply(self, reply: TopicReply) -> None:
        """A frame for this watcher came."""
        match reply:
            case Topics(_, names_hash, names):
                if not self.answered.done():
                    self.answered.set_result(None)
                self._events.report(lambda events: events.on_topics(names, names_hash))
            case TopicsChanged(_, change, names_hash):
                self._events.report(lambda events: events.on_topics_changed(change.added, change.deleted, names_hash))
            case Refusal(_, code, message):
                error = from_code(code, message)
                if not self.answered.done():
                    self.answered.set_exception(error)
                else:
                    self._events.report(lambda events: events.on_poll_refused(error))

    def on_lost(self, error: PulsarException) -> None:
        """The socket is gone."""
        if not self.answered.done():
            self.answered.set_exception(error)
        self._events.lost(error)


class _Connection:
    """A socket, its reader and its writer."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, address: str) -> None:
        self._socket = socket
        self._address = address
        self._channels: dict[int, SocketTopicWatchChannel] = {}
        self._waiting: deque[TopicRequest] = deque()
        self._wake = asyncio.Event()
        self.over = False
        self._tasks = [awaited(self._read()), awaited(self._write())]
        for task in self._tasks:
            task.add_done_callback(self._part_ended)

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        """Without its reader or its writer the socket is of no use: its watchers watch again."""
        if not self.over:
            why = "it was cancelled" if task.cancelled() else repr(task.exception())
            asyncio.get_running_loop().call_later(TELL_SECONDS, self._end_without, why)

    def _end_without(self, why: str) -> None:
        if not self.over:
            _log.error("%s: a task of the watchers' socket ended: %s", self._address, why)
            in_background(self.end(ConnectError(f"{self._address}: its task ended: {why}")), "losing of a socket")

    def add(self, channel: SocketTopicWatchChannel) -> None:
        self._channels[channel.watch_id] = channel

    async def remove(self, channel: SocketTopicWatchChannel) -> None:
        """Its watcher is no more; with the last one the socket is closed."""
        if self._channels.pop(channel.watch_id, None) is None or self.over:
            return
        if not self._channels:
            await self.close()
        else:
            self.send(Unwatch(channel.watch_id))  # also of one that was refused, or is not answered yet

    def send(self, request: TopicRequest) -> None:
        """In order; nothing once the connection is gone."""
        if not self.over:
            self._waiting.append(request)
            self._wake.set()

    async def close(self) -> None:
        """Close the socket; its watchers hear of it."""
        await self.end(AlreadyClosed(f"{self._address}: the channel is closed"))

    async def _read(self) -> None:
        try:
            while True:
                message = await self._socket.receive()
                if message.type not in (aiohttp.WSMsgType.TEXT, aiohttp.WSMsgType.BINARY):
                    why = message.data if message.type is aiohttp.WSMsgType.ERROR else "the connection was closed"
                    return await self.end(ConnectError(f"{self._address}: {why}"))
                self._handle(decode_topic_reply(message.data))
        except PulsarException as error:
            await self.end(ConnectError(f"{self._address}: {error.error()}: {error}"))

    async def _write(self) -> None:
        try:
            while True:
                if not self._waiting:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                await self._socket.send_str(encode_topic_request(self._waiting.popleft()))
        except (aiohttp.ClientError, OSError) as error:
            await self.end(ConnectError(f"{self._address}: {error or type(error).__name__}"))

    def _handle(self, reply: TopicReply) -> None:
        watch_id = reply.request_id if isinstance(reply, Refusal) else reply.watch_id
        if watch_id is None:
            assert isinstance(reply, Refusal)
            raise from_code(reply.code, reply.message)
        channel = self._channels.get(watch_id)
        if channel is not None:  # else it was closed while this was on its way
            channel.on_reply(reply)

    async def end(self, error: PulsarException) -> None:
        """Close the socket; the watchers lose their channels with ``error``."""
        if self.over:
            return
        self.over = True
        channels, self._channels = list(self._channels.values()), {}
        for channel in channels:
            channel.on_lost(error)
        current = asyncio.current_task()
        others = [task for task in self._tasks if task is not current]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)
        await self._socket.close()


class EmbeddedTopicWatchChannel:
    """A watcher on an engine in this process. Made by :func:`watch_embedded`."""

    def __init__(self, watchers: TopicWatchers, pattern: str) -> None:
        self._watchers = watchers
        self._events = _Events()
        self._watch: TopicWatch = watchers.open(self, pattern, self._changed)
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, events: TopicWatchEvents) -> None:
        self._events.start(events)

    def poll(self, known_hash: str) -> None:
        self._watchers.list(self._watch, known_hash, self._answer)

    async def close(self) -> None:
        self._events.stop()
        self._watchers.close(self._watch)

    def _answer(self, listing: TopicListing | EngineError) -> None:
        if isinstance(listing, EngineError):
            error = from_engine(listing)
            if not self.first.done():
                self.first.set_exception(error)
            else:
                self._events.report(lambda events: events.on_poll_refused(error))
            return
        if not self.first.done():
            self.first.set_result(None)
        self._events.report(lambda events: events.on_topics(listing.names, listing.hash))

    def _changed(self) -> None:
        changed = self._watch.take()
        if changed is not None:
            change = changed.change
            self._events.report(lambda events: events.on_topics_changed(change.added, change.deleted, changed.hash))


async def watch_embedded(watchers: TopicWatchers, pattern: str, known_hash: str) -> EmbeddedTopicWatchChannel:
    """Watch, and wait for the first answer; see :meth:`Connector.open_topic_watch`."""
    try:
        channel = EmbeddedTopicWatchChannel(watchers, pattern)
    except EngineError as error:
        raise from_engine(error) from None
    channel.poll(known_hash)
    try:
        await asyncio.shield(channel.first)
    except BaseException:
        await channel.close()
        raise
    return channel
