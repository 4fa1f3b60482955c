"""Produce and consume over WebSockets: ``/client/v1/producer`` and ``/client/v1/consumer``.

The frames are described in :mod:`replicator.client.frames`. A connection is one producer or one consumer of one
topic, named by its first frame. A malformed frame costs the connection that sent it: one error frame with a null
id, then the close. A request that the engine refuses costs nothing but that request.

Invariant 11 on this path:

- reading stops while :data:`REQUESTS_IN_FLIGHT_MAX` requests or :data:`REQUEST_BYTES_IN_FLIGHT_MAX` wait for the
store, so a sender
  that is too fast is slowed by TCP;
- :class:`PermitGate` withholds permits from the engine while entries wait for a slow reader;
- a frame over the limit closes its connection with the WebSocket's own code 1009.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, Final

import structlog
from aiohttp import WSCloseCode, WSMsgType, web

from replicator.client.frame_codec import decode_request, encode_reply
from replicator.client.frames import (
    ENTRIES_PER_FRAME_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_TARGET,
    PERMITS_MAX,
    Acknowledge,
    AcknowledgeCumulative,
    Closed,
    Deliver,
    Done,
    Flow,
    InvalidFrame,
    Produce,
    Publish,
    Ready,
    Receipt,
    Redeliver,
    Redelivering,
    Refusal,
    Reply,
    Request,
    Subscribe,
    Unsubscribe,
)
from replicator.engine.engine import Engine
from replicator.engine.entry import ENTRY_BYTES_MAX
from replicator.engine.errors import EngineError
from replicator.engine.subscription import EngineConsumer
from replicator.engine.topic import Topic
from replicator.engine.types import Delivery

ENGINE: Final = web.AppKey("client_sockets_engine", Engine)
SOCKETS: Final = web.AppKey("client_sockets", set[web.WebSocketResponse])
"""The open sockets, for :func:`close_sockets`; kept only where the application sets it."""

FIRST_FRAME_SECONDS_MAX: Final = 10.0
HEARTBEAT_SECONDS: Final = 30.0
CLOSE_SECONDS_MAX: Final = 2.0
REQUESTS_IN_FLIGHT_MAX: Final = 64
REQUEST_BYTES_IN_FLIGHT_MAX: Final = 32 * 1024 * 1024
"""Of one connection; a group commit of the store takes as much."""
OUTGOING_BYTES_MAX: Final = 16 * 1024 * 1024
"""Entries that wait for one consumer's socket."""
OUTGOING_CONTROLS_MAX: Final = 100
GRANT_MESSAGES_MIN: Final = 16
GRANT_MESSAGES_MAX: Final = 1_000
"""With small messages a larger grant saves the engine work; with large ones it would only fill memory."""

log = structlog.get_logger(__name__)


def routes() -> list[web.RouteDef]:
    """The routes; the application sets :data:`ENGINE`, and calls :func:`close_sockets` on shutdown."""
    return [web.get("/client/v1/producer", producer_socket), web.get("/client/v1/consumer", consumer_socket)]


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


class PermitGate:
    """How many of a client's permits the engine may have. Pure.

    The engine sends what it has permits for, without asking how fast the socket is. So:

    1. it gets none while :data:`OUTGOING_BYTES_MAX` wait for the socket;
    2. it gets at most as many at once as fit in that, by the largest entry of late, within
       :data:`GRANT_MESSAGES_MIN` and :data:`GRANT_MESSAGES_MAX`; the memory of a large entry fades by half a delivery.
    """

    __slots__ = ("_entry_bytes", "_granted", "_queued_bytes", "_requested")

    def __init__(self) -> None:
        self._requested = 0
        self._granted = 0
        self._queued_bytes = 0
        self._entry_bytes = ENTRY_BYTES_MAX

    def requested(self, permits: int) -> int:
        """The client allows more; returns what to grant the engine now. Raises :class:`InvalidFrame`."""
        if self._requested + permits > PERMITS_MAX:
            raise InvalidFrame(f"flow: more than {PERMITS_MAX} permits without a delivery")
        self._requested += permits
        return self._grant()

    def delivered(self, deliveries: Sequence[Delivery]) -> None:
        """The engine used permits; what it has may go below zero, because it does not split batches."""
        sizes = [len(delivery.entry) for delivery in deliveries]
        self._granted -= sum(delivery.batch_size for delivery in deliveries)
        self._queued_bytes += sum(sizes)
        self._entry_bytes = max(self._entry_bytes // 2, *sizes, 1)

    def sent(self, entry_bytes: int) -> int:
        """Entries left; returns what to grant the engine now."""
        self._queued_bytes -= entry_bytes
        assert self._queued_bytes >= 0
        return self._grant()

    def _grant(self) -> int:
        if self._queued_bytes >= OUTGOING_BYTES_MAX:
            return 0
        fitting = OUTGOING_BYTES_MAX // self._entry_bytes
        fitting = min(max(fitting, GRANT_MESSAGES_MIN), GRANT_MESSAGES_MAX)
        permits = max(0, min(self._requested, fitting - self._granted))
        self._requested -= permits
        self._granted += permits
        return permits


class _Answers:
    """Requests that the engine works on, answered in the order in which they came."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._in_flight: deque[tuple[int, asyncio.Task[Reply], int]] = deque()
        self._bytes = 0
        self._changed = asyncio.Event()

    async def submit(self, request_id: int, call: Coroutine[Any, Any, Reply], request_bytes: int) -> None:
        """Start ``call``, and wait until there is room for the next."""
        self._in_flight.append((request_id, asyncio.create_task(call), request_bytes))
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
            request_id, task, request_bytes = self._in_flight[0]
            await asyncio.wait([task])  # not the task itself: its end must not hang on this session's
            try:
                reply = task.result()
            except EngineError as error:
                reply = Refusal(request_id, error.code, str(error))
            await _send(self._socket, reply)
            self._in_flight.popleft()
            self._bytes -= request_bytes
            self._changed.set()

    async def drain(self) -> None:
        """Let the engine finish what it has begun."""
        if self._in_flight:
            await asyncio.wait([task for _, task, _ in self._in_flight])
        for _, task, _ in self._in_flight:
            task.exception()  # the client is gone: there is nobody to tell


class _Outgoing:
    """What the engine has for a consumer, in order, on its way to the socket."""

    def __init__(self, socket: web.WebSocketResponse) -> None:
        self._socket = socket
        self._gate = PermitGate()
        self._waiting: deque[Delivery | Redelivering | Closed] = deque()
        self._controls = 0
        self._changed = asyncio.Event()
        self.consumer: EngineConsumer | None = None

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Called by the engine."""
        self._waiting.extend(deliveries)
        self._gate.delivered(deliveries)
        self._changed.set()

    def flow(self, permits: int) -> None:
        self._grant(self._gate.requested(permits))

    def closed(self, reason: str) -> None:
        """The engine let go of the consumer."""
        self._waiting.append(Closed(reason))
        self._changed.set()

    async def redeliver(self, redeliver: Redeliver) -> None:
        """Mark the place from which on deliveries belong to the redelivery, then ask for it."""
        while self._controls >= OUTGOING_CONTROLS_MAX:
            self._changed.clear()
            await self._changed.wait()
        if redeliver.positions is None:
            self._waiting.append(Redelivering())
            self._controls += 1
            self._changed.set()
        if self.consumer is not None and not self.consumer.closed:
            self.consumer.redeliver(redeliver.positions)

    async def run(self) -> None:
        """Send what comes, until cancelled or the engine closes the consumer."""
        while True:
            while not self._waiting:
                self._changed.clear()
                await self._changed.wait()
            first = self._waiting.popleft()
            if not isinstance(first, Delivery):
                await _send(self._socket, first)
                if isinstance(first, Closed):
                    await self._socket.close(message=first.reason.encode()[:100])
                    return
                self._controls -= 1
                self._changed.set()
                continue
            deliveries = [first]
            size = len(first.entry)
            while self._waiting and len(deliveries) < ENTRIES_PER_FRAME_MAX:
                following = self._waiting[0]
                if not isinstance(following, Delivery) or size + len(following.entry) > FRAME_BYTES_TARGET:
                    break
                self._waiting.popleft()
                deliveries.append(following)
                size += len(following.entry)
            await _send(self._socket, Deliver(tuple(deliveries)))
            self._grant(self._gate.sent(size))

    def _grant(self, permits: int) -> None:
        if permits and self.consumer is not None and not self.consumer.closed:
            self.consumer.flow(permits)


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
            async with asyncio.timeout(FIRST_FRAME_SECONDS_MAX):
                first = await _next_request(socket)
        except TimeoutError:
            raise InvalidFrame(f"no frame within {FIRST_FRAME_SECONDS_MAX:g} s") from None
        if first is not None:
            await session(socket, request.app[ENGINE], first)
    except (InvalidFrame, EngineError) as error:
        code = error.code if isinstance(error, EngineError) else "InvalidFrame"
        log.info("client refused", path=request.path, peer=request.remote, error=code, reason=str(error))
        await _refuse(socket, Refusal(None, code, str(error)), WSCloseCode.POLICY_VIOLATION)
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
    await _send(socket, Ready(topic.name, engine.cluster))
    answers = _Answers(socket)

    async def read() -> None:
        while (request := await _next_request(socket)) is not None:
            if not isinstance(request, Publish):
                raise InvalidFrame(f"a producer sends publish frames, not {type(request).__name__}")
            request_bytes = sum(map(len, request.entries))
            await answers.submit(request.request_id, _publish(topic, request), request_bytes)

    try:
        await _until_first_ends(read(), answers.run())
    finally:
        await answers.drain()


async def _serve_consumer(socket: web.WebSocketResponse, engine: Engine, first: Request) -> None:
    if not isinstance(first, Subscribe):
        raise InvalidFrame(f"the first frame of a consumer is subscribe, not {type(first).__name__}")
    topic = await engine.topic(first.topic)
    outgoing = _Outgoing(socket)
    consumer = outgoing.consumer = await topic.subscribe(
        first.subscription,
        first.consumer_type,
        first.consumer_name,
        outgoing.deliver,
        initial=first.initial_position,
        replicated=first.replicated,
        properties=first.properties,
    )
    consumer.on_closed = outgoing.closed
    answers = _Answers(socket)

    async def read() -> None:
        while (request := await _next_request(socket)) is not None:
            match request:
                case Flow(permits):
                    outgoing.flow(permits)
                case Acknowledge(request_id, acks):
                    await answers.submit(request_id, _acknowledge(consumer, request), 100 * len(acks))
                case AcknowledgeCumulative(request_id):
                    await answers.submit(request_id, _acknowledge_cumulative(consumer, request), 100)
                case Redeliver():
                    await outgoing.redeliver(request)
                case Unsubscribe(request_id):
                    await answers.submit(request_id, _unsubscribe(consumer, request), 100)
                case _:
                    raise InvalidFrame(f"unexpected {type(request).__name__} from a consumer")

    try:
        await _send(socket, Ready(topic.name, engine.cluster))
        await _until_first_ends(read(), answers.run(), outgoing.run())
    finally:
        consumer.on_closed = None
        consumer.close()
        await answers.drain()


async def _publish(topic: Topic, request: Publish) -> Reply:
    return Receipt(request.request_id, tuple(await topic.publish(request.entries)))


async def _acknowledge(consumer: EngineConsumer, request: Acknowledge) -> Reply:
    await consumer.acknowledge(request.acks)
    return Done(request.request_id)


async def _acknowledge_cumulative(consumer: EngineConsumer, request: AcknowledgeCumulative) -> Reply:
    await consumer.acknowledge_cumulative(request.position, request.batch_index)
    return Done(request.request_id)


async def _unsubscribe(consumer: EngineConsumer, request: Unsubscribe) -> Reply:
    await consumer.unsubscribe()
    return Done(request.request_id)


async def _until_first_ends(*parts: Coroutine[Any, Any, None]) -> None:
    """Run the parts of a session until one of them ends; the others are cancelled, its error is raised."""
    tasks = [asyncio.create_task(part) for part in parts]
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
