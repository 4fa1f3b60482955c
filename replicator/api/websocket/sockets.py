"""The addresses of the WebSocket API, and how a socket is opened and ends.

``/ws/v2/producer/persistent/TENANT/NAMESPACE/TOPIC``, ``…/reader/…`` and ``…/consumer/…/SUBSCRIPTION``. The producer,
consumer or reader is made before the upgrade is answered, so that what is refused is an HTTP status, as upstream. It is
one of our own client, in this process and without a wire between; a socket ends with it, so that its client comes back
by itself, to where the cluster serves then.

Invariant 11: :data:`SOCKETS_MAX` sockets a worker; frames of :func:`frame_bytes_max`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any, Final

import structlog
from aiohttp import WSCloseCode, web

from replicator.api.errors import error_response
from replicator.api.guarding import ending_at_expiry
from replicator.api.websocket.consuming import ConsumerSource, ReaderSource, Session, Source, Window
from replicator.api.websocket.fields import BadField
from replicator.api.websocket.parameters import (
    consumer_arguments,
    is_pull_mode,
    producer_arguments,
    queue_size,
    reader_arguments,
)
from replicator.api.websocket.producing import ProducerSession
from replicator.api.websocket.unpacking import SocketUnpacking
from replicator.client import (
    AlreadyClosed,
    Client,
    ClusterFenced,
    ConsumerBusy,
    InvalidConfiguration,
    InvalidTopicName,
    NotAllowedError,
    ProducerBlockedQuotaExceededError,
    ProducerBlockedQuotaExceededException,
    ProducerBusy,
    ProducerFenced,
    PulsarException,
    ServiceUnitNotReady,
    SubscriptionNotFound,
    Timeout,
    TopicNotFound,
    TopicTerminated,
)
from replicator.client.client import in_process_client
from replicator.engine.engine import Engine
from replicator.running.limited_log import LIMITED
from replicator.running.timeouts import timeout

SOCKETS_MAX: Final = 2_000
"""A browser tab has a few. What their queues hold is still compressed: see
:mod:`replicator.api.websocket.unpacking`."""
FRAME_ROOM_BYTES: Final = 1024 * 1024
"""Room for the other fields beside a message in its frame."""
HEARTBEAT_SECONDS: Final = 30.0
CLOSE_SECONDS_MAX: Final = 2.0

STATUSES: Final[tuple[tuple[tuple[type[PulsarException], ...], int], ...]] = (
    ((InvalidConfiguration, InvalidTopicName), 400),
    ((TopicNotFound, SubscriptionNotFound), 404),
    ((ProducerBusy, ConsumerBusy, ProducerFenced, NotAllowedError), 409),
    (
        (
            ClusterFenced,
            ServiceUnitNotReady,
            ProducerBlockedQuotaExceededError,
            ProducerBlockedQuotaExceededException,
            AlreadyClosed,
            TopicTerminated,
        ),
        503,
    ),
    ((Timeout,), 504),
)
"""HTTP status of a refused upgrade, by exception; any other exception is 500."""

log = structlog.get_logger(__name__)


class WebSockets:
    """The sockets of one worker, and the client that they share."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._client: Client | None = None
        self._open: set[web.WebSocketResponse] = set()
        self._serving = 0

    async def produce(self, request: web.Request) -> web.StreamResponse:
        async def opened() -> tuple[_Run, _Close]:
            arguments = producer_arguments(request.query)
            producer = await self._own_client().create_producer(_topic(request), **arguments)

            async def run(socket: web.WebSocketResponse) -> None:
                await ProducerSession(socket, producer, arguments["max_pending_messages"], self._engine.turns).run()

            return run, producer.close

        return await self._serve(request, opened)

    async def consume(self, request: web.Request) -> web.StreamResponse:
        async def opened() -> tuple[_Run, _Close]:
            topic = _topic(request)
            arguments = consumer_arguments(request.query)
            pull = is_pull_mode(request.query)
            window = Window(None if pull else max(1, queue_size(request.query)))
            client = self._reading_client(request)
            try:
                consumer = await client.subscribe(topic, request.match_info["subscription"], **arguments)
            except BaseException:
                await client.close()
                raise

            async def run(socket: web.WebSocketResponse) -> None:
                await self._session(request, socket, ConsumerSource(consumer), window).run()

            return run, client.close

        return await self._serve(request, opened)

    async def read(self, request: web.Request) -> web.StreamResponse:
        async def opened() -> tuple[_Run, _Close]:
            arguments = reader_arguments(request.query)
            client = self._reading_client(request)
            readers: list[Any] = []
            try:
                for topic in await client.get_topic_partitions(_topic(request)):
                    readers.append(await client.create_reader(topic, **arguments))
            except BaseException:
                await client.close()
                raise
            window = Window(max(1, queue_size(request.query)))

            async def run(socket: web.WebSocketResponse) -> None:
                await self._session(request, socket, ReaderSource(readers), window).run()

            return run, client.close

        return await self._serve(request, opened)

    async def close_sockets(self, _: web.Application) -> None:
        """Close all sockets: otherwise the server waits for the clients to leave."""
        sockets = list(self._open)
        await asyncio.gather(
            *(socket.close(code=WSCloseCode.GOING_AWAY, message=b"the worker is stopping") for socket in sockets)
        )

    async def close_client(self, _: web.Application) -> None:
        if self._client is not None:
            await self._client.close()

    def _reading_client(self, request: web.Request) -> Client:
        """Return a client for one socket, which counts what it decompresses."""

        def cut() -> None:
            if request.transport is not None:
                event, peer = "websocket cut off", request.remote or ""
                reason = "it kept a decompressed message for too long while others waited"
                LIMITED.say(log.info, event, peer, peer=peer, path=request.path, reason=reason)
                request.transport.abort()

        return in_process_client(self._engine, SocketUnpacking(self._engine.unpacking, cut).unpack)

    def _session(self, request: web.Request, socket: web.WebSocketResponse, source: Source, window: Window) -> Session:
        return Session(socket, source, window, self._engine.unpacking, self._engine.turns, request.remote or "")

    def _own_client(self) -> Client:
        if self._client is None:
            self._client = Client(engine=self._engine, reconnect=False)
        return self._client

    async def _serve(
        self, request: web.Request, open_session: Callable[[], Awaitable[tuple[_Run, _Close]]]
    ) -> web.StreamResponse:
        socket = web.WebSocketResponse(
            max_msg_size=frame_bytes_max(self._engine),
            heartbeat=HEARTBEAT_SECONDS,
            timeout=CLOSE_SECONDS_MAX,
            compress=False,
            autoclose=False,
        )
        if not socket.can_prepare(request):
            raise web.HTTPUpgradeRequired(reason="Upgrade Required: this is a WebSocket")
        if self._serving >= SOCKETS_MAX:
            return error_response("TooManySockets", f"{SOCKETS_MAX} WebSockets are open, the limit of a worker", 503)
        self._serving += 1
        try:
            try:
                run, close = await open_session()
            except PulsarException as error:
                return _refusal(error)
            ending = WSCloseCode.GOING_AWAY, ""
            try:
                await socket.prepare(request)
                self._open.add(socket)
                with ending_at_expiry(request):
                    ending = await self._run(request, socket, run)
            finally:
                self._open.discard(socket)
                with suppress(PulsarException, TimeoutError):
                    async with timeout(CLOSE_SECONDS_MAX):  # a backlog over its quota may hold publishes for hours
                        await close()
                # After that: who hears that a socket is closed can subscribe again at once.
                if socket.prepared:
                    await socket.close(code=ending[0], message=ending[1].encode()[:120])
        finally:
            self._serving -= 1
        return socket

    async def _run(self, request: web.Request, socket: web.WebSocketResponse, run: _Run) -> tuple[WSCloseCode, str]:
        """Serve the socket to its end. Return the code and reason to close it with."""
        try:
            await run(socket)
        except (ConnectionError, TimeoutError):
            return WSCloseCode.OK, ""  # the client has gone; there is nobody to tell
        except BadField as error:
            code, reason = WSCloseCode.INTERNAL_ERROR, str(error)
        except PulsarException as error:
            code, reason = WSCloseCode.TRY_AGAIN_LATER, f"{type(error).__name__}: {error}"
        else:
            return WSCloseCode.OK, ""
        peer = request.remote or ""
        LIMITED.say(log.info, "websocket closed", peer, path=request.path, peer=peer, reason=reason)
        return code, reason


_Run = Callable[[web.WebSocketResponse], Awaitable[None]]
_Close = Callable[[], Awaitable[None]]


def add_websockets(app: web.Application, engine: Engine) -> None:
    """Add the routes, and close the sockets when the application ends."""
    sockets = WebSockets(engine)
    topic = "{domain}/{tenant}/{namespace}/{topic}"
    app.add_routes(
        [
            web.get(f"/ws/v2/producer/{topic}", sockets.produce),
            web.get(f"/ws/v2/consumer/{topic}/{{subscription}}", sockets.consume),
            web.get(f"/ws/v2/reader/{topic}", sockets.read),
        ]
    )
    app.on_shutdown.append(sockets.close_sockets)
    app.on_cleanup.append(sockets.close_client)


def frame_bytes_max(engine: Engine) -> int:
    """Return the largest size of a frame: the largest message in base64, and room for the rest."""
    return engine.admission.message_bytes_max * 4 // 3 + FRAME_ROOM_BYTES


def _topic(request: web.Request) -> str:
    parts = request.match_info
    return f"{parts['domain']}://{parts['tenant']}/{parts['namespace']}/{parts['topic']}"


def _refusal(error: PulsarException) -> web.Response:
    status = next((status for kinds, status in STATUSES if isinstance(error, kinds)), 500)
    what = "Invalid query params" if isinstance(error, InvalidConfiguration) else "Failed to create producer/consumer"
    return error_response(type(error).__name__, f"{what}: {error}", status)
