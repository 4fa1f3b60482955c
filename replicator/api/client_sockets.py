"""Produce and consume over WebSockets: ``/client/v1/producer`` and ``/client/v1/consumer``.

The frames are described in :mod:`replicator.client.wire.frames`. A connection is one producer or one consumer of one
topic, named by its first frame. A malformed frame costs the connection that sent it: one error frame with a null
id, then the close. A request that the engine refuses costs nothing but that request. A producer that the engine lets
go of hears the answers to what it sent before, then an error frame with a null id.

Invariant 11 on this path:

- reading stops while :data:`REQUESTS_IN_FLIGHT_MAX` requests or :data:`REQUEST_BYTES_IN_FLIGHT_MAX` wait for the
  store, so a sender that is too fast is slowed by TCP;
- :mod:`replicator.api.outgoing` withholds permits from the engine while entries wait for a slow reader, and bounds
  what else waits for it;
- a frame over the limit closes its connection with the WebSocket's own code 1009.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final

import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from replicator.api.errors import BadRequest
from replicator.api.outgoing import OUTGOING_CONTROLS_MAX, OutgoingQueue
from replicator.client.wire.channel import ProducerReady
from replicator.client.wire.frame_codec import decode_request, encode_reply
from replicator.client.wire.frames import (
    FRAME_BYTES_MAX,
    Acknowledge,
    AcknowledgeCumulative,
    AskLastPosition,
    Closed,
    Done,
    Flow,
    InvalidFrame,
    LastPosition,
    Produce,
    Publish,
    Ready,
    Receipt,
    Redeliver,
    Refusal,
    Reply,
    Request,
    RestartSeen,
    Seek,
    Subscribe,
    Unsubscribe,
)
from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.engine.producing.producers import EngineProducer
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.topic_name import parse_topic
from replicator.engine.types import AccessMode, Delivery
from replicator.running.short_tasks import awaited
from replicator.running.timeouts import timeout

ENGINE: Final = web.AppKey("client_sockets_engine", Engine)
SOCKETS: Final = web.AppKey("client_sockets", set[web.WebSocketResponse])
"""The open sockets, for :func:`close_sockets`; kept only where the application sets it."""

FIRST_FRAME_SECONDS_MAX: Final = 10.0
HEARTBEAT_SECONDS: Final = 30.0
CLOSE_SECONDS_MAX: Final = 2.0
REQUESTS_IN_FLIGHT_MAX: Final = 64
REQUEST_BYTES_IN_FLIGHT_MAX: Final = 32 * 1024 * 1024
"""Of one connection; a group commit of the store takes as much."""

log = structlog.get_logger(__name__)


def routes() -> list[web.RouteDef]:
    """The routes; the application sets :data:`ENGINE`, and calls :func:`close_sockets` on shutdown."""
    return [
        web.get("/client/v1/producer", producer_socket),
        web.get("/client/v1/consumer", consumer_socket),
        web.get("/client/v1/partitions", partitions),
    ]


async def close_sockets(app: web.Application) -> None:
    """Say goodbye to every client, for ``app.on_shutdown``: else the server waits for them to leave."""
    sockets = list(app.get(SOCKETS, ()))
    if sockets:
        await asyncio.gather(
            *(socket.close(code=WSCloseCode.GOING_AWAY, message=b"the worker is stopping") for socket in sockets)
        )


async def producer_socket(request: web.Request) -> web.StreamResponse:
    """One producer: a ``produce`` frame, then ``publish`` frames, answered in order."""
    return await _serve(request, _serve_producer)


async def consumer_socket(request: web.Request) -> web.StreamResponse:
    """One consumer: a ``subscribe`` frame, then flow and acknowledgements; deliveries come back."""
    return await _serve(request, _serve_consumer)


async def partitions(request: web.Request) -> web.Response:
    """How many partitions a topic has that somebody is about to use: 0 if it is not partitioned or does not exist, nor
    is made with partitions by its namespace's policies. With ``create=false`` nothing is made."""
    name = request.query.get("topic")
    if not name:
        raise BadRequest("parameter topic is missing")
    engine = request.app[ENGINE]
    create = request.query.get("create") != "false"
    found = await engine.by_use.partitions(name) if create else engine.partitioned.count(name)
    return web.json_response({"topic": str(parse_topic(name)), "partitions": found})


class _LetGo(Exception):
    """The engine let go of a producer, with this code."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class _Answers:
    """Requests that the engine works on, answered in the order in which they came."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._in_flight: deque[tuple[int, asyncio.Task[Reply], int]] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()

    async def submit(self, request_id: int, call: Coroutine[Any, Any, Reply], request_bytes: int) -> None:
        """Start ``call``, and wait until there is room for the next."""
        self._in_flight.append((request_id, awaited(call), request_bytes))
        self._bytes += request_bytes
        self._changed.set()
        while len(self._in_flight) >= REQUESTS_IN_FLIGHT_MAX or self._bytes >= REQUEST_BYTES_IN_FLIGHT_MAX:
            self._changed.clear()
            await self._changed.wait()

    async def run(self) -> None:
        """Send the answers, until cancelled."""
        while True:
            while not self._in_flight:
                self._changed.clear()
                await self._changed.wait()
            await self._answer_first()

    async def finish(self) -> None:
        """Send the answers to what was begun, instead of :meth:`run` and after it."""
        while self._in_flight:
            await self._answer_first()

    async def drain(self, seconds_max: float | None = None) -> None:
        """Let the engine finish what it has begun; what it has not begun after ``seconds_max`` is given up."""
        tasks = [task for _, task, _ in self._in_flight]
        if not tasks:
            return
        _, held = await asyncio.wait(tasks, timeout=seconds_max)
        for task in held:
            task.cancel()
        if held:
            await asyncio.wait(held)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # the client is gone: there is nobody to tell

    async def _answer_first(self) -> None:
        request_id, task, request_bytes = self._in_flight[0]
        await asyncio.wait([task])  # not the task itself: its end must not hang on this session's
        try:
            reply = task.result()
        except EngineError as error:
            reply = Refusal(request_id, error.code, str(error))
        self._in_flight.popleft()  # before it is sent: who is cancelled while the socket is full has sent it
        try:
            await _send(self._socket, reply)
        finally:
            self._bytes -= request_bytes
            self._changed.set()


class _Outgoing:
    """What the engine has for a consumer, in order, on its way to the socket."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._queue = OutgoingQueue()
        self._changed = asyncio.Event()
        self._abandoned = False
        self._consumer: EngineConsumer | None = None

    def connected(self, consumer: EngineConsumer) -> None:
        """The engine's side is there; before anything comes from it."""
        self._consumer = consumer
        consumer.on_closed = self._closed
        consumer.on_restarted = self._restarted
        consumer.on_active_change = self._active_change

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Called by the engine."""
        self._queue.delivered(deliveries)
        self._changed.set()

    def flow(self, permits: int) -> None:
        self._grant(self._queue.requested(permits))

    def restart_seen(self) -> None:
        self._queue.restart_seen()

    def place(self) -> int | None:
        """What a request that was just read is about; None for a place where the subscription is no longer."""
        return None if self._queue.restart_unseen else self._queue.restarts

    def is_at(self, place: int | None) -> bool:
        """Whether the subscription was not put elsewhere since."""
        return place == self._queue.restarts

    async def redeliver(self, redeliver: Redeliver) -> None:
        """Mark the place from which on deliveries belong to the redelivery, then ask for it."""
        while self._queue.redeliveries >= OUTGOING_CONTROLS_MAX:
            self._changed.clear()
            await self._changed.wait()
        if self._queue.restart_unseen:
            return
        if redeliver.positions is None:
            self._queue.redelivering()
            self._changed.set()
        if self._consumer is not None and not self._consumer.closed:
            self._consumer.redeliver(redeliver.positions)

    def abandon(self) -> None:
        """Nothing is sent any more: let go who waits for that."""
        self._abandoned = True
        self._changed.set()

    async def restart_told(self) -> None:
        """Wait until the client has been sent the news of every restart so far."""
        while self._queue.restart_untold and not self._abandoned:
            self._changed.clear()
            await self._changed.wait()

    async def run(self) -> None:
        """Send what comes, until cancelled or the engine closes the consumer."""
        while True:
            while (frame := self._queue.take()) is None:
                self._changed.clear()
                await self._changed.wait()
            await _send(self._socket, frame)
            self._grant(self._queue.sent(frame))
            self._changed.set()
            if isinstance(frame, Closed):
                await self._socket.close(message=frame.reason.encode()[:100])
                return

    def _closed(self, code: str, reason: str) -> None:
        self._queue.closed(code, reason)
        self._changed.set()

    def _restarted(self) -> None:
        self._grant(self._queue.restarted())
        self._changed.set()

    def _active_change(self, active: bool) -> None:
        self._queue.active(active)
        self._changed.set()

    def _grant(self, permits: int) -> None:
        if permits and self._consumer is not None and not self._consumer.closed:
            self._consumer.flow(permits)


_Session = Callable[[web.WebSocketResponse, Engine, Request], Awaitable[None]]


async def _serve(request: web.Request, session: _Session) -> web.StreamResponse:
    """Accept the socket, read its first frame, and run the session; reports what ends it."""
    socket = web.WebSocketResponse(
        max_msg_size=FRAME_BYTES_MAX, heartbeat=HEARTBEAT_SECONDS, timeout=CLOSE_SECONDS_MAX, compress=False
    )
    if not socket.can_prepare(request):
        raise web.HTTPUpgradeRequired(reason="Upgrade Required: this is a WebSocket")
    await socket.prepare(request)
    sockets = request.app.get(SOCKETS)
    if sockets is not None:
        sockets.add(socket)
    try:
        try:
            async with timeout(FIRST_FRAME_SECONDS_MAX):
                first = await _next_request(socket)
        except TimeoutError:
            raise InvalidFrame(f"no frame within {FIRST_FRAME_SECONDS_MAX:g} s") from None
        if first is not None:
            await session(socket, request.app[ENGINE], first)
    except (InvalidFrame, EngineError) as error:
        code = error.code if isinstance(error, EngineError) else "InvalidFrame"
        log.info("client refused", path=request.path, peer=request.remote, error=code, reason=str(error))
        await _refuse(socket, Refusal(None, code, str(error)), WSCloseCode.POLICY_VIOLATION)
    except _LetGo as gone:
        log.info("producer let go", path=request.path, peer=request.remote, error=gone.code, reason=str(gone))
        await _refuse(socket, Refusal(None, gone.code, str(gone)), WSCloseCode.POLICY_VIOLATION)
    except (ConnectionError, TimeoutError):
        pass  # the client has gone; there is nobody to tell
    except Exception:
        log.exception("client session failed", path=request.path, peer=request.remote)
        refusal = Refusal(None, "InternalError", "the worker failed on this request; its log says why")
        await _refuse(socket, refusal, WSCloseCode.INTERNAL_ERROR)
    finally:
        if sockets is not None:
            sockets.discard(socket)
        await socket.close()
    return socket


async def _serve_producer(socket: web.WebSocketResponse, engine: Engine, first: Request) -> None:
    if not isinstance(first, Produce):
        raise InvalidFrame(f"the first frame of a producer is produce, not {type(first).__name__}")
    topic = await engine.topic(first.topic)
    let_go: asyncio.Future[tuple[str, str]] = asyncio.get_running_loop().create_future()

    async def connect() -> EngineProducer:
        producer = await topic.producers.create(first.options)
        producer.on_closed = lambda code, reason: None if let_go.done() else let_go.set_result((code, reason))
        return producer

    if first.options.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE:
        waited_for = await _while_the_client_stays(socket, connect())
        if waited_for is None:
            return
        producer = waited_for
    else:
        producer = await connect()
    answers = _Answers(socket)

    async def read() -> None:
        while (request := await _next_request(socket)) is not None:
            if not isinstance(request, Publish):
                raise InvalidFrame(f"a producer sends publish frames, not {type(request).__name__}")
            request_bytes = sum(map(len, request.entries))
            await answers.submit(request.request_id, _publish(producer, request), request_bytes)

    async def until_let_go() -> None:
        raise _LetGo(*await let_go)

    try:
        ready = ProducerReady(producer.name, producer.last_sequence_id, producer.topic_epoch)
        await _send(socket, Ready(topic.name, engine.cluster, ready))
        await until_first_ends(read(), answers.run(), until_let_go())
    except _LetGo:
        with suppress(TimeoutError):
            async with timeout(CLOSE_SECONDS_MAX):
                await answers.finish()
        raise
    finally:
        producer.on_closed = None
        producer.close()  # before the rest: the client may be connecting again under this name
        await answers.drain(CLOSE_SECONDS_MAX)  # a backlog over its quota may hold publishes for hours


async def _while_the_client_stays(
    socket: web.WebSocketResponse, connecting: Coroutine[Any, Any, EngineProducer]
) -> EngineProducer | None:
    """Wait for the producer's turn, and for the client's leaving: then None, and its place in the queue is free."""
    turn = awaited(connecting)
    # Also what keeps the socket alive: its heartbeat is answered only while somebody reads from it.
    frame = awaited(_next_request(socket))
    its_turn = False
    try:
        await asyncio.wait([turn, frame], return_when=asyncio.FIRST_COMPLETED)
        if not frame.done():
            its_turn = True
            return turn.result()
        if (request := frame.result()) is not None:
            raise InvalidFrame(f"{type(request).__name__} from a producer that has not heard ready yet")
        return None
    finally:
        for task in (turn, frame):
            task.cancel()
        await asyncio.wait([turn, frame])
        if not its_turn and not turn.cancelled() and turn.exception() is None:
            turn.result().close()


async def _serve_consumer(socket: web.WebSocketResponse, engine: Engine, first: Request) -> None:
    if not isinstance(first, Subscribe):
        raise InvalidFrame(f"the first frame of a consumer is subscribe, not {type(first).__name__}")
    topic = await engine.topic(first.topic, create=first.create_topic)
    outgoing = _Outgoing(socket)
    consumer = await topic.subscribe(first.subscription, first.options, outgoing.deliver)
    outgoing.connected(consumer)
    answers = _Answers(socket)

    async def acknowledge(request: Acknowledge | AcknowledgeCumulative, place: int | None) -> Reply:
        if outgoing.is_at(place):
            if isinstance(request, Acknowledge):
                await consumer.acknowledge(request.acks)
            else:
                await consumer.acknowledge_cumulative(request.position, request.batch_index)
        return Done(request.request_id)

    async def read() -> None:
        while (request := await _next_request(socket)) is not None:
            match request:
                case Flow(permits):
                    outgoing.flow(permits)
                case Acknowledge(request_id, acks):
                    await answers.submit(request_id, acknowledge(request, outgoing.place()), 100 * len(acks))
                case AcknowledgeCumulative(request_id):
                    await answers.submit(request_id, acknowledge(request, outgoing.place()), 100)
                case Redeliver():
                    await outgoing.redeliver(request)
                case RestartSeen():
                    outgoing.restart_seen()
                case Seek(request_id):
                    await answers.submit(request_id, _seek(consumer, outgoing, request), 100)
                case AskLastPosition(request_id):
                    await answers.submit(request_id, _last_position(consumer, request), 100)
                case Unsubscribe(request_id):
                    await answers.submit(request_id, _unsubscribe(consumer, request), 100)
                case _:
                    raise InvalidFrame(f"unexpected {type(request).__name__} from a consumer")

    try:
        await _send(socket, Ready(topic.name, engine.cluster))
        await until_first_ends(read(), answers.run(), outgoing.run())
    finally:
        consumer.on_closed = consumer.on_restarted = consumer.on_active_change = None
        consumer.close()
        outgoing.abandon()
        await answers.drain()


async def _publish(producer: EngineProducer, request: Publish) -> Reply:
    return Receipt(request.request_id, tuple(await producer.publish(request.entries)))


async def _seek(consumer: EngineConsumer, outgoing: _Outgoing, request: Seek) -> Reply:
    await consumer.seek(request.target)
    # So that what the client gets after its seek is done comes from the new place.
    await outgoing.restart_told()
    return Done(request.request_id)


async def _last_position(consumer: EngineConsumer, request: AskLastPosition) -> Reply:
    return LastPosition(request.request_id, consumer.last_message())


async def _unsubscribe(consumer: EngineConsumer, request: Unsubscribe) -> Reply:
    await consumer.unsubscribe(force=request.force)
    return Done(request.request_id)


async def until_first_ends(*parts: Coroutine[Any, Any, None]) -> None:
    """Run the parts of a session until one of them ends; the others are cancelled, its error is raised."""
    tasks = [awaited(part) for part in parts]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    for task in done:
        task.result()


async def _next_request(socket: web.WebSocketResponse) -> Request | None:
    """The next frame; None when the client has gone. Raises :class:`InvalidFrame`."""
    message = await socket.receive()
    if message.type in (WSMsgType.TEXT, WSMsgType.BINARY):
        return decode_request(message.data)
    return None  # closed, by either side, also for a frame that breaks the WebSocket protocol or its size


async def _send(socket: web.WebSocketResponse, reply: Reply) -> None:
    frame = encode_reply(reply)
    if isinstance(frame, str):
        await socket.send_str(frame)
    else:
        await socket.send_bytes(frame)


async def _refuse(socket: web.WebSocketResponse, refusal: Refusal, code: WSCloseCode) -> None:
    if socket.closed:
        return
    try:
        await _send(socket, refusal)
        await socket.close(code=code, message=refusal.code.encode()[:100])
    except ConnectionError:
        pass  # the client has gone; there is nobody to tell
