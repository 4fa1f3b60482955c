"""Watching patterns of topics over a WebSocket: ``/client/v1/topics``.

The frames are described in :mod:`replicator.client.wire.topic_frames`. One connection may watch many patterns, for all
pattern consumers of a client. A malformed frame costs the connection; a pattern that is refused costs nothing but
itself.

Invariant 11 on this path: a watcher has at most one poll on its way; what it is to be told is gathered by
:class:`~replicator.engine.topics.topic_watch.TopicWatch` until the socket takes it; reading stops while
:data:`REPLIES_WAITING_MAX` replies wait.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from replicator.api import client_sockets
from replicator.client.wire.frames import InvalidFrame, Refusal
from replicator.client.wire.topic_frames import (
    REQUEST_BYTES_MAX,
    ListTopics,
    TopicReply,
    TopicRequest,
    Topics,
    TopicsChanged,
    Unwatch,
    Watch,
    decode_topic_request,
    encode_topic_reply,
)
from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.engine.topics.topic_watch import TopicListing, TopicWatch
from replicator.engine.topics.topic_watchers import TopicWatchers

WATCHERS: Final = web.AppKey("topic_watchers", TopicWatchers)
PATH: Final = "/client/v1/topics"
REPLIES_WAITING_MAX: Final = 1_000

log = structlog.get_logger(__name__)


def add_topic_sockets(app: web.Application, engine: Engine) -> None:
    """Serve the watchers of an engine; the application has the sockets of :mod:`replicator.api.client_sockets` too."""
    watchers = app[WATCHERS] = TopicWatchers(engine.catalog, engine.supervisor)
    engine.add_listener(watchers)
    app.add_routes([web.get(PATH, topics_socket)])


async def topics_socket(request: web.Request) -> web.StreamResponse:
    """The watchers of one client."""
    socket = web.WebSocketResponse(
        max_msg_size=REQUEST_BYTES_MAX,
        heartbeat=client_sockets.HEARTBEAT_SECONDS,
        timeout=client_sockets.CLOSE_SECONDS_MAX,
        compress=False,
    )
    if not socket.can_prepare(request):
        raise web.HTTPUpgradeRequired(reason="Upgrade Required: this is a WebSocket")
    await socket.prepare(request)
    sockets = request.app.get(client_sockets.SOCKETS)
    if sockets is not None:
        sockets.add(socket)
    connection = _Connection(socket, request.app[WATCHERS])
    try:
        await connection.run()
    except InvalidFrame as error:
        log.info("client refused", path=request.path, peer=request.remote, error="InvalidFrame", reason=str(error))
        await _refuse(socket, Refusal(None, "InvalidFrame", str(error)), WSCloseCode.POLICY_VIOLATION)
    except (ConnectionError, TimeoutError):
        pass  # the client has gone; there is nobody to tell
    except Exception:
        log.exception("client session failed", path=request.path, peer=request.remote)
        refusal = Refusal(None, "InternalError", "the worker failed on this request; its log says why")
        await _refuse(socket, refusal, WSCloseCode.INTERNAL_ERROR)
    finally:
        connection.close()
        if sockets is not None:
            sockets.discard(socket)
        await socket.close()
    return socket


class _Connection:
    """The watchers of one socket."""

    def __init__(self, socket: web.WebSocketResponse, watchers: TopicWatchers) -> None:
        self._socket = socket
        self._watchers = watchers
        self._watches: dict[int, TopicWatch] = {}
        self._asked: set[int] = set()
        """Those whose poll is not answered yet."""
        self._replies: deque[TopicReply] = deque()
        """Answers, which go out before notifications: what is taken after an answer comes after it."""
        self._changed: dict[int, None] = {}
        """Those that have something to be told, in order."""
        self._wake = asyncio.Event()

    async def run(self) -> None:
        """Until the client leaves; raises :class:`InvalidFrame`."""
        await client_sockets.until_first_ends(self._read(), self._write())

    def close(self) -> None:
        """Nothing is watched any more."""
        for watch in self._watches.values():
            self._watchers.close(watch)
        self._watches.clear()

    async def _read(self) -> None:
        while True:
            message = await self._socket.receive()
            if message.type not in (WSMsgType.TEXT, WSMsgType.BINARY):
                return  # closed, by either side
            self._handle(decode_topic_request(message.data))
            while len(self._replies) >= REPLIES_WAITING_MAX:
                self._wake.clear()
                await self._wake.wait()

    async def _write(self) -> None:
        while True:
            reply = self._next_reply()
            if reply is None:
                self._wake.clear()
                await self._wake.wait()
                continue
            await self._socket.send_str(encode_topic_reply(reply))
            self._wake.set()

    def _handle(self, request: TopicRequest) -> None:
        match request:
            case Watch(watch_id, pattern, known_hash):
                if watch_id in self._watches:
                    raise InvalidFrame(f"watch {watch_id}: there is one of that id already")
                try:
                    watch = self._watchers.open(self, pattern, self._tell(watch_id))
                except EngineError as error:
                    self._reply(Refusal(watch_id, error.code, str(error)))
                    return
                self._watches[watch_id] = watch
                self._list(watch_id, known_hash)
            case ListTopics(watch_id, known_hash):
                if watch_id not in self._watches:
                    raise InvalidFrame(f"list {watch_id}: there is no watch of that id")
                self._list(watch_id, known_hash)
            case Unwatch(watch_id):
                watched = self._watches.pop(watch_id, None)
                self._asked.discard(watch_id)
                self._changed.pop(watch_id, None)
                if watched is not None:  # else it was refused
                    self._watchers.close(watched)

    def _list(self, watch_id: int, known_hash: str | None) -> None:
        if watch_id in self._asked:
            return
        self._asked.add(watch_id)

        def answer(listing: TopicListing | EngineError) -> None:
            self._asked.discard(watch_id)
            if isinstance(listing, EngineError):
                self._reply(Refusal(watch_id, listing.code, str(listing)))
            else:
                self._reply(Topics(watch_id, listing.hash, listing.names))

        self._watchers.list(self._watches[watch_id], known_hash, answer)

    def _tell(self, watch_id: int) -> Callable[[], None]:
        def tell() -> None:
            self._changed[watch_id] = None
            self._wake.set()

        return tell

    def _reply(self, reply: TopicReply) -> None:
        self._replies.append(reply)
        self._wake.set()

    def _next_reply(self) -> TopicReply | None:
        if self._replies:
            return self._replies.popleft()
        while self._changed:
            watch_id = next(iter(self._changed))
            del self._changed[watch_id]
            changed = self._watches[watch_id].take()
            if changed is not None:
                return TopicsChanged(watch_id, changed.change, changed.hash)
        return None


async def _refuse(socket: web.WebSocketResponse, refusal: Refusal, code: WSCloseCode) -> None:
    if socket.closed:
        return
    try:
        await socket.send_str(encode_topic_reply(refusal))
        await socket.close(code=code, message=refusal.code.encode()[:100])
    except ConnectionError:
        pass  # the client has gone; there is nobody to tell
