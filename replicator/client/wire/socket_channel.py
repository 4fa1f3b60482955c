"""Channels over a WebSocket to a worker: ``http://host:port``. One piece until the binary protocol replaces it.

The frames are those of :mod:`replicator.client.wire.frames`.

Each channel has a task that reads and one that writes. Nothing here waits for a single message: what is to be sent is
gathered while the writer is busy, and goes out in one frame.

A producer that waits for its turn is a socket that waits for its first reply, alive by its heartbeat, for as long as it
takes; whoever cancels the opening closes it.
"""

from __future__ import annotations

import asyncio
import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Final

import aiohttp

from replicator.client.errors import (
    AlreadyClosed,
    ConnectError,
    InvalidUrl,
    MessageTooBig,
    PulsarException,
    Timeout,
    UnknownError,
    from_code,
    from_loss,
)
from replicator.client.settings import ConsumerSettings, ProducerSettings
from replicator.client.wire.channel import ConsumerEvents, ProducerEvents, ProducerReady
from replicator.client.wire.frame_codec import decode_reply, encode_request
from replicator.client.wire.frames import (
    ACKS_PER_FRAME_MAX,
    ENTRIES_PER_FRAME_MAX,
    FRAME_BYTES_MAX,
    FRAME_BYTES_TARGET,
    Acknowledge,
    AcknowledgeCumulative,
    Active,
    AskLastPosition,
    Closed,
    Deliver,
    Done,
    Flow,
    InvalidFrame,
    LastPosition,
    Produce,
    Publish,
    Ready,
    Receipt,
    Redeliver,
    Redelivering,
    Refusal,
    Reply,
    Request,
    Restarted,
    RestartSeen,
    Seek,
    Subscribe,
    Unsubscribe,
)
from replicator.client.wire.topic_watch_channel import TOPICS_PATH, SocketTopicWatchChannel, SocketTopicWatches
from replicator.engine.types import AccessMode, Ack
from replicator.running.short_tasks import awaited, in_background
from replicator.running.supervisor import TELL_SECONDS
from replicator.running.timeouts import timeout
from snapshots.position import Position

PRODUCER_PATH: Final = "/client/v1/producer"
CONSUMER_PATH: Final = "/client/v1/consumer"
PARTITIONS_PATH: Final = "/client/v1/partitions"
HEARTBEAT_SECONDS: Final = 10.0
"""How soon a worker that fell silent without closing the connection is noticed."""
CLOSE_SECONDS_MAX: Final = 2.0
LEAVE_SECONDS_MAX: Final = 2.0
"""How long who moves to another cluster waits for answers to what it has sent; the rest is sent again."""
OWN_REQUEST_IDS_FROM: Final = 2**62
"""Ids of a channel's own requests, such as a seek; those of acknowledgements, which the consumer counts, are below."""


_log = logging.getLogger(__name__)


class SocketConnector:
    """Opens one WebSocket a channel to the worker at ``base_url``, over one HTTP session."""

    def __init__(self, base_url: str, *, connection_timeout_seconds: float, operation_timeout_seconds: float) -> None:
        self._base_url = base_url.rstrip("/")
        self._connection_timeout_seconds = connection_timeout_seconds
        self._operation_timeout_seconds = operation_timeout_seconds
        self._session: aiohttp.ClientSession | None = None
        self._channels: weakref.WeakSet[_SocketChannel] = weakref.WeakSet()
        self._topic_watches = SocketTopicWatches(
            self._open_topics_socket, self._base_url, self._operation_timeout_seconds
        )
        self._closed = False

    async def open_producer(self, settings: ProducerSettings, topic_epoch: int | None = None) -> SocketProducerChannel:
        options = settings.options(topic_epoch)
        patient = options.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE
        socket, ready = await self._connect(PRODUCER_PATH, Produce(settings.topic, options), patient=patient)
        if ready.producer is None:
            await socket.close()
            raise ConnectError(f"{self._base_url} accepted the producer without a name; is the worker of this version?")
        producer = SocketProducerChannel(socket, self._base_url, ready.producer)
        self._channels.add(producer)
        return producer

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        session = self._open_session()
        try:
            async with (
                timeout(self._operation_timeout_seconds),
                session.get(
                    self._base_url + PARTITIONS_PATH, params={"topic": topic} | ({} if create else {"create": "false"})
                ) as response,
            ):
                answer = await response.json()
        except TimeoutError:
            raise Timeout(f"{self._base_url}: no answer within {self._operation_timeout_seconds:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise ConnectError(f"{self._base_url}: {error or type(error).__name__}") from error
        match answer:
            case {"partitions": int(partitions)} if partitions >= 0:
                return partitions
            case {"error": "NotFound"}:  # the path, not the topic
                raise InvalidUrl(f"{self._base_url} has no {PARTITIONS_PATH}; give the worker's http://host:port alone")
            case {"error": str(code), "message": str(message)}:
                raise from_code(code, message)
            case _:
                raise ConnectError(f"{self._base_url}{PARTITIONS_PATH}: {answer!r:.80} is not an answer of a worker")

    async def open_consumer(self, settings: ConsumerSettings) -> SocketConsumerChannel:
        subscribe = Subscribe(settings.topic, settings.subscription, settings.options(), settings.create_topic)
        socket, ready = await self._connect(CONSUMER_PATH, subscribe)
        consumer = SocketConsumerChannel(socket, self._base_url, ready.cluster, self._operation_timeout_seconds)
        self._channels.add(consumer)
        return consumer

    async def open_topic_watch(self, pattern: str, known_hash: str) -> SocketTopicWatchChannel:
        return await self._topic_watches.open(pattern, known_hash)

    async def lose_all(self, error: PulsarException) -> None:
        """Every channel is lost with ``error``, so that its owner opens it again elsewhere. What producers have sent is
        answered first, if that comes soon: what was stored here and is sent again elsewhere would be there twice."""
        producers = [channel for channel in self._channels if isinstance(channel, SocketProducerChannel)]
        with suppress(TimeoutError):
            async with timeout(LEAVE_SECONDS_MAX):
                await asyncio.gather(*(producer.leave() for producer in producers))
        await asyncio.gather(*(channel.lose(error) for channel in list(self._channels)))
        await self._topic_watches.lose(error)

    async def close(self) -> None:
        self._closed = True
        await self._topic_watches.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _open_session(self) -> aiohttp.ClientSession:
        if self._closed:
            raise AlreadyClosed("the client is closed")
        if self._session is None:
            # Every channel is a connection: aiohttp's own limit of 100 would keep the rest waiting for ever.
            self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self._session

    async def _connect(
        self, path: str, first: Produce | Subscribe, *, patient: bool = False
    ) -> tuple[aiohttp.ClientWebSocketResponse, Ready]:
        """Open a socket and hear that its first frame is accepted; the ``patient`` wait for that without a limit."""
        session = self._open_session()
        socket: aiohttp.ClientWebSocketResponse | None = None
        accepted = False
        try:
            async with self._reported(path), timeout(self._connection_timeout_seconds) as deadline:
                socket = await self._dial(session, path)
                await _send(socket, first)
                if patient:
                    deadline.lift()
                reply = _decoded(await socket.receive(), socket, self._base_url)
            if isinstance(reply, Refusal):
                raise from_code(reply.code, reply.message)
            if not isinstance(reply, Ready):
                raise ConnectError(f"{self._base_url} answered with {type(reply).__name__}; expected Ready")
            accepted = True
        finally:
            if socket is not None and not accepted:
                await socket.close()
        return socket, reply

    async def _open_topics_socket(self) -> aiohttp.ClientWebSocketResponse:
        session = self._open_session()
        async with self._reported(TOPICS_PATH), timeout(self._connection_timeout_seconds):
            return await self._dial(session, TOPICS_PATH)

    async def _dial(self, session: aiohttp.ClientSession, path: str) -> aiohttp.ClientWebSocketResponse:
        return await session.ws_connect(
            self._base_url + path,
            max_msg_size=FRAME_BYTES_MAX,
            heartbeat=HEARTBEAT_SECONDS,
            timeout=aiohttp.ClientWSTimeout(ws_close=CLOSE_SECONDS_MAX),
        )

    @asynccontextmanager
    async def _reported(self, path: str) -> AsyncIterator[None]:
        """Raise what fails in opening a socket as errors of the client."""
        try:
            yield
        except TimeoutError:
            raise ConnectError(f"{self._base_url}: no answer within {self._connection_timeout_seconds:g} s") from None
        except aiohttp.WSServerHandshakeError as error:
            raise ConnectError(
                f"{self._base_url}{path}: HTTP {error.status}; is it the address of a worker?"
            ) from error
        except (aiohttp.ClientError, OSError) as error:
            raise ConnectError(f"{self._base_url}: {error or type(error).__name__}") from error


class _SocketChannel:
    """One WebSocket: a reader that hands replies to the subclass, and a writer that asks it for frames."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, base_url: str) -> None:
        self._socket = socket
        self._base_url = base_url
        self._wake = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._over = False

    def _run(self) -> None:
        self._tasks = [awaited(self._read()), awaited(self._write())]
        for task in self._tasks:
            task.add_done_callback(self._part_ended)

    def _part_ended(self, task: asyncio.Task[None]) -> None:
        """Without its reader or its writer the channel is of no use: whoever has it opens another."""
        if not self._over:
            why = "it was cancelled" if task.cancelled() else repr(task.exception())
            asyncio.get_running_loop().call_later(TELL_SECONDS, self._lose_without, why)

    def _lose_without(self, why: str) -> None:
        if not self._over:
            _log.error("%s: a task of the channel ended: %s", self._base_url, why)
            in_background(self._lose(ConnectError(f"{self._base_url}: its task ended: {why}")), "losing of a channel")

    async def close(self) -> None:
        if not self._over:
            self._over = True
            self._on_over(AlreadyClosed(f"{self._base_url}: the channel is closed"))
            await self._stop_tasks()
            await self._socket.close()

    async def lose(self, error: PulsarException) -> None:
        """Report ``error`` as the loss of the channel."""
        if self._tasks:
            await self._lose(error)
        else:  # it is not in use yet: who takes it finds it closed
            await self._socket.close()

    async def _stop_tasks(self) -> None:
        current = asyncio.current_task()
        others = [task for task in self._tasks if task is not current]
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others)

    async def _read(self) -> None:
        try:
            while True:
                reply = _decoded(await self._socket.receive(), self._socket, self._base_url)
                match reply:
                    case Refusal(None, code, message):
                        return await self._lose(from_loss(code, f"{self._base_url}: {message}"))
                    case Closed(code, reason):
                        return await self._lose(from_loss(code, f"{self._base_url} closed the consumer: {reason}"))
                self._on_reply(reply)
        except ConnectError as error:
            await self._lose(error)
        except PulsarException as error:
            await self._lose(ConnectError(f"{self._base_url}: {error.error()}: {error}"))

    async def _write(self) -> None:
        try:
            while True:
                request = self._next_request()
                if request is None:
                    self._wake.clear()
                    await self._wake.wait()
                    continue
                await _send(self._socket, request)
        except (aiohttp.ClientError, OSError) as error:
            await self._lose(ConnectError(f"{self._base_url}: {error or type(error).__name__}"))

    async def _lose(self, error: PulsarException) -> None:
        if self._over:
            return
        self._over = True
        self._on_over(error)
        self._on_lost(error)
        await self._stop_tasks()
        await self._socket.close()

    def _next_request(self) -> Request | None:
        raise NotImplementedError

    def _on_reply(self, reply: Reply) -> None:
        raise NotImplementedError

    def _on_over(self, error: PulsarException) -> None:
        """Nothing comes any more: release whoever waits in a call. Also after :meth:`close`."""

    def _on_lost(self, error: PulsarException) -> None:
        raise NotImplementedError


class SocketProducerChannel(_SocketChannel):
    """Entries that wait for the writer go out together, up to the target size of a frame."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, base_url: str, ready: ProducerReady) -> None:
        super().__init__(socket, base_url)
        self.ready = ready
        self._events: ProducerEvents
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._sent: dict[int, int] = {}
        self._leaving = False
        self._answer = asyncio.Event()

    async def leave(self) -> None:
        """Send nothing more; returns when what was sent is answered, or the channel is over."""
        self._leaving = True
        while self._sent and not self._over:
            self._answer.clear()
            await self._answer.wait()

    def start(self, events: ProducerEvents) -> None:
        self._events = events
        self._run()

    def publish(self, entry_id: int, entry: bytes) -> None:
        self._waiting.append((entry_id, entry))
        self._wake.set()

    def _next_request(self) -> Request | None:
        if self._leaving or not self._waiting:
            return None
        first_id, entry = self._waiting.popleft()
        entries = [entry]
        size = len(entry)
        while (
            self._waiting
            and len(entries) < ENTRIES_PER_FRAME_MAX
            and size + len(self._waiting[0][1]) <= FRAME_BYTES_TARGET
            and self._waiting[0][0] == first_id + len(entries)
        ):
            _, entry = self._waiting.popleft()
            entries.append(entry)
            size += len(entry)
        self._sent[first_id] = len(entries)
        return Publish(first_id, tuple(entries))

    def _on_reply(self, reply: Reply) -> None:
        match reply:
            case Receipt(request_id, positions):
                if self._sent.pop(request_id, None) != len(positions):
                    raise InvalidFrame(f"a receipt for {request_id} that does not match what was sent")
                for step, position in enumerate(positions):
                    self._events.on_receipt(request_id + step, position)
            case Refusal(request_id, code, message) if request_id is not None:
                for step in range(self._sent.pop(request_id, 0)):
                    self._events.on_refused(request_id + step, from_code(code, message))
            case _:
                raise InvalidFrame(f"unexpected {type(reply).__name__} for a producer")
        self._answer.set()

    def _on_over(self, error: PulsarException) -> None:
        self._answer.set()

    def _on_lost(self, error: PulsarException) -> None:
        self._events.on_lost(error)


class SocketConsumerChannel(_SocketChannel):
    """Requests go out in the order in which they were made."""

    def __init__(
        self, socket: aiohttp.ClientWebSocketResponse, base_url: str, cluster: str, operation_timeout_seconds: float
    ) -> None:
        super().__init__(socket, base_url)
        self.cluster = cluster
        self._events: ConsumerEvents
        self._operation_timeout_seconds = operation_timeout_seconds
        self._waiting: deque[Request] = deque()
        self._asked: dict[int, asyncio.Future[Reply]] = {}
        self._next_own_id = OWN_REQUEST_IDS_FROM
        self._redeliveries_awaited = 0

    def start(self, events: ConsumerEvents) -> None:
        self._events = events
        self._run()

    def flow(self, permits: int) -> None:
        self._request(Flow(permits))

    def acknowledge(self, request_id: int, acks: Sequence[Ack]) -> None:
        self._request(Acknowledge(request_id, tuple(acks)))

    def acknowledge_cumulative(self, request_id: int, position: Position, batch_index: int | None) -> None:
        self._request(AcknowledgeCumulative(request_id, position, batch_index))

    def redeliver(self, positions: Sequence[Position] | None) -> None:
        if positions is None:
            self._redeliveries_awaited += 1
            self._request(Redeliver(None))
            return
        for at in range(0, len(positions), ACKS_PER_FRAME_MAX):
            self._request(Redeliver(tuple(positions[at : at + ACKS_PER_FRAME_MAX])))

    async def seek(self, target: Position | int) -> None:
        await self._ask(Seek(self._own_id(), target))

    async def last_position(self) -> Position:
        reply = await self._ask(AskLastPosition(self._own_id()))
        if not isinstance(reply, LastPosition):
            raise ConnectError(f"{self._base_url} answered with {type(reply).__name__}; expected LastPosition")
        return reply.position

    async def unsubscribe(self, *, force: bool = False) -> None:
        await self._ask(Unsubscribe(self._own_id(), force))

    def _own_id(self) -> int:
        self._next_own_id += 1
        return self._next_own_id - 1

    async def _ask(self, request: Seek | AskLastPosition | Unsubscribe) -> Reply:
        if self._over:
            raise AlreadyClosed(f"{self._base_url}: the channel is closed")
        answer: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._asked[request.request_id] = answer
        self._request(request)
        try:
            async with timeout(self._operation_timeout_seconds):
                return await answer
        except TimeoutError:
            name = type(request).__name__
            raise Timeout(f"{name}: no answer within {self._operation_timeout_seconds:g} s") from None
        finally:
            self._asked.pop(request.request_id, None)

    def _request(self, request: Request) -> None:
        self._waiting.append(request)
        self._wake.set()

    def _next_request(self) -> Request | None:
        return self._waiting.popleft() if self._waiting else None

    def _on_reply(self, reply: Reply) -> None:
        match reply:
            case Deliver(deliveries):
                self._events.on_deliveries(deliveries)
            case Done(request_id) | LastPosition(request_id) if request_id >= OWN_REQUEST_IDS_FROM:
                if (asked := self._asked.get(request_id)) is not None and not asked.done():
                    asked.set_result(reply)
            case Done(request_id):
                self._events.on_ack_confirmed(request_id)
            case Refusal(int(request_id), code, message) if request_id >= OWN_REQUEST_IDS_FROM:
                if (asked := self._asked.get(request_id)) is not None and not asked.done():
                    asked.set_exception(from_code(code, message))
            case Refusal(int(request_id), code, message):
                self._events.on_ack_refused(request_id, from_code(code, message))
            case Redelivering() if self._redeliveries_awaited:
                self._redeliveries_awaited -= 1
                self._events.on_redelivery_started()
            case Restarted():
                self._request(RestartSeen())  # first: what the consumer asks on hearing of it is about the new place
                while self._redeliveries_awaited:  # the restart came before them: the worker starts none of them
                    self._redeliveries_awaited -= 1
                    self._events.on_redelivery_started()
                self._events.on_restarted()
            case Active(active):
                self._events.on_active_change(active)
            case _:
                raise InvalidFrame(f"unexpected {type(reply).__name__} for a consumer")

    def _on_over(self, error: PulsarException) -> None:
        for asked in self._asked.values():
            if not asked.done():
                asked.set_exception(error)

    def _on_lost(self, error: PulsarException) -> None:
        self._events.on_lost(error)


async def _send(socket: aiohttp.ClientWebSocketResponse, request: Request) -> None:
    frame = encode_request(request)
    if isinstance(frame, str):
        await socket.send_str(frame)
    else:
        await socket.send_bytes(frame)


def _decoded(message: aiohttp.WSMessage, socket: aiohttp.ClientWebSocketResponse, base_url: str) -> Reply:
    """The reply in a WebSocket message; raises what the end of the connection means."""
    match message.type:
        case aiohttp.WSMsgType.TEXT | aiohttp.WSMsgType.BINARY:
            return decode_reply(message.data)
        case aiohttp.WSMsgType.CLOSE | aiohttp.WSMsgType.CLOSING | aiohttp.WSMsgType.CLOSED:
            if socket.close_code == aiohttp.WSCloseCode.MESSAGE_TOO_BIG:
                raise MessageTooBig(f"{base_url}: a frame was over the limit of {FRAME_BYTES_MAX} bytes")
            raise ConnectError(f"{base_url}: the connection was closed")
        case aiohttp.WSMsgType.ERROR:
            raise ConnectError(f"{base_url}: {message.data}")
        case _:
            raise UnknownError(f"{base_url}: unexpected WebSocket message {message.type}")
