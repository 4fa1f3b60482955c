"""One client's connection: the handshake, keep-alive, and which session a command is for.

Commands of one connection are begun in the order in which they come. A command that breaks the protocol closes the
connection, and it alone; a request that the engine refuses costs nothing but that request.

Invariant 11 on this path: frames have a limit (:mod:`replicator.protocol.frames`); reading stops while
:data:`HELD_BYTES_MAX` of the client wait for the engine or :data:`CALLS_MAX` calls run; sessions withhold permits while
the socket does not take more; producers, consumers and watchers of one connection are counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final, cast

import structlog

from replicator import __version__
from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError, InvalidTopicName
from replicator.engine.topic_name import parse_topic
from replicator.engine.types import AccessMode
from replicator.gateway import lookups
from replicator.gateway.consuming import ConsumerSession
from replicator.gateway.producing import ProducerSession
from replicator.gateway.refusals import server_error
from replicator.gateway.values import message_id, producer_options, subscribe_options
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandConnected,
    CommandConsumerStatsResponse,
    CommandError,
    CommandGetLastMessageIdResponse,
    CommandPing,
    CommandPong,
    CommandProducerSuccess,
    CommandSuccess,
    FeatureFlags,
    ServerError,
)
from replicator.protocol.errors import OutOfOrder, ProtocolError
from replicator.protocol.frames import MESSAGE_BYTES_MAX, Frame, FrameDecoder, encode
from replicator.running.short_tasks import in_background

PROTOCOL_VERSION: Final = 21
HANDSHAKE_SECONDS_MAX: Final = 10.0
KEEP_ALIVE_SECONDS: Final = 30.0
"""As upstream: a client that sent nothing for so long is asked, and is gone if it does not answer for as long again."""
HELD_BYTES_MAX: Final = 32 * 1024 * 1024
CALLS_MAX: Final = 1_000
SESSIONS_MAX: Final = 10_000
WRITE_BUFFER_BYTES: Final = 4 * 1024 * 1024

log = structlog.get_logger(__name__)

T = BaseCommand.Type
Handler = Callable[["Connection", BaseCommand], None]


class Connection(asyncio.Protocol):
    """Made by the server for each socket that speaks the binary protocol."""

    def __init__(self, engine: Engine, addresses: lookups.Addresses, on_over: Callable[[Connection], None]) -> None:
        self.engine = engine
        self.addresses = addresses
        self.writable = True
        self._on_over = on_over
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport
        self._loop = asyncio.get_running_loop()
        self._greeted = False
        self._over = False
        self._heard = True
        self._alarm: asyncio.TimerHandle | None = None
        self._producers: dict[int, ProducerSession | None] = {}
        self._consumers: dict[int, ConsumerSession | None] = {}
        """By the client's ids; None while they are being connected."""
        self._calls: set[asyncio.Task[None]] = set()
        self._held_bytes = 0
        self._reading = True

    # The transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._alarm = self._loop.call_later(HANDSHAKE_SECONDS_MAX, self._no_handshake)

    def data_received(self, data: bytes) -> None:
        self._heard = True
        try:
            for frame in self._decoder.receive(data):
                self._begin(frame)
                if self._over:
                    return
        except ProtocolError as error:
            self.fail(str(error))

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        for session in list(self._consumers.values()):
            if session is not None:
                session.writable()

    def connection_lost(self, error: Exception | None) -> None:
        self._over = True
        if self._alarm is not None:
            self._alarm.cancel()
        for task in list(self._calls):
            if task.get_name() not in _FINISH:
                task.cancel()
        producers, self._producers = self._producers, {}
        consumers, self._consumers = self._consumers, {}
        for session in [*producers.values(), *consumers.values()]:
            if session is not None:
                session.close()
        self._on_over(self)

    def close(self) -> None:
        """The worker stops."""
        self._transport.close()

    # What the sessions need.

    def send(self, command: BaseCommand) -> None:
        self.write(encode(command))

    def write(self, frames: bytes) -> None:
        if not self._over:
            self._transport.write(frames)

    def fail(self, reason: str) -> None:
        if not self._over:
            log.info("client disconnected", peer=self._transport.get_extra_info("peername"), reason=reason)
            self._over = True
            self._transport.close()

    def work(self, call: Coroutine[Any, Any, None], name: str) -> None:
        task = in_background(call, name)
        self._calls.add(task)
        task.add_done_callback(self._has_ended)
        self._read_or_not()

    def held(self, size_bytes: int) -> None:
        self._held_bytes += size_bytes
        self._read_or_not()

    def producer_gone(self, producer_id: int) -> None:
        self._producers.pop(producer_id, None)

    def consumer_gone(self, consumer_id: int) -> None:
        self._consumers.pop(consumer_id, None)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._calls.discard(task)
        self._read_or_not()

    def _read_or_not(self) -> None:
        reading = self._held_bytes < HELD_BYTES_MAX and len(self._calls) < CALLS_MAX
        if reading is not self._reading and not self._transport.is_closing():
            self._reading = reading
            (self._transport.resume_reading if reading else self._transport.pause_reading)()

    # Keep-alive.

    def _no_handshake(self) -> None:
        self.fail(f"no CONNECT within {HANDSHAKE_SECONDS_MAX:g} s")

    def _keep_alive(self) -> None:
        if not self._heard:
            self.fail(f"nothing heard for {2 * KEEP_ALIVE_SECONDS:g} s")
            return
        self._heard = False
        self.send(BaseCommand(type=T.PING, ping=CommandPing()))
        self._alarm = self._loop.call_later(KEEP_ALIVE_SECONDS, self._keep_alive)

    # Commands.

    def _begin(self, frame: Frame) -> None:
        command = frame.command
        if command.type == T.SEND and self._greeted:
            session = self._producers.get(command.send.producer_id)
            if session is None:
                raise OutOfOrder(f"SEND for producer {command.send.producer_id}, which is not there")
            session.send(command.send, bytes(frame.rest))
            return
        if not self._greeted:
            if command.type != T.CONNECT:
                raise OutOfOrder(f"{T.Name(command.type)} before CONNECT")
            self._connect(command)
            return
        handler = _HANDLERS.get(command.type)
        if handler is None:
            raise OutOfOrder(f"{T.Name(command.type)} is not for a server, or not now")
        handler(self, command)

    def _connect(self, command: BaseCommand) -> None:
        self._greeted = True
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self._loop.call_later(KEEP_ALIVE_SECONDS, self._keep_alive)
        connected = CommandConnected(
            server_version=f"replicator {__version__}",
            protocol_version=min(PROTOCOL_VERSION, command.connect.protocol_version),
            max_message_size=MESSAGE_BYTES_MAX,
            feature_flags=FeatureFlags(
                supports_topic_watchers=True,
                supports_get_partitioned_metadata_without_auto_creation=True,
                supports_partial_producer=True,
            ),
        )
        self.send(BaseCommand(type=T.CONNECTED, connected=connected))

    def _pong(self, command: BaseCommand) -> None:
        self.send(BaseCommand(type=T.PONG, pong=CommandPong()))

    def _heard_pong(self, command: BaseCommand) -> None:
        """That something came was noted already."""

    def _succeeded(self, request_id: int) -> None:
        self.send(BaseCommand(type=T.SUCCESS, success=CommandSuccess(request_id=request_id)))

    def _refuse(self, request_id: int, error: ServerError, message: str) -> None:
        refusal = CommandError(request_id=request_id, error=error, message=message)
        self.send(BaseCommand(type=T.ERROR, error=refusal))

    def answer(self, request_id: int, call: Coroutine[Any, Any, None], name: str) -> None:
        """Run a call that answers by itself; what the engine refuses is answered as an error."""

        async def answered() -> None:
            try:
                await call
            except EngineError as error:
                self._refuse(request_id, server_error(error), str(error))

        self.work(answered(), name)

    # Producers.

    def _produce(self, command: BaseCommand) -> None:
        wanted = command.producer
        if wanted.producer_id in self._producers:
            if self._producers[wanted.producer_id] is None:
                self._refuse(wanted.request_id, ServerError.ServiceNotReady, "the producer is being connected already")
            else:
                raise OutOfOrder(f"producer {wanted.producer_id} is there already")
            return
        if len(self._producers) >= SESSIONS_MAX:
            self._refuse(wanted.request_id, ServerError.TooManyRequests, f"{SESSIONS_MAX} producers, the limit")
            return
        self._producers[wanted.producer_id] = None
        self.answer(wanted.request_id, self._connect_producer(command), "connecting of a producer")

    async def _connect_producer(self, command: BaseCommand) -> None:
        wanted = command.producer
        try:
            topic = await self.engine.topic(wanted.topic)
            options = producer_options(wanted)
            if options.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE:
                waiting = CommandProducerSuccess(
                    request_id=wanted.request_id, producer_name=wanted.producer_name, producer_ready=False
                )
                self.send(BaseCommand(type=T.PRODUCER_SUCCESS, producer_success=waiting))
            producer = await topic.create_producer(options)
        except BaseException:
            self._producers.pop(wanted.producer_id, None)
            raise
        if self._over or wanted.producer_id not in self._producers:  # gone, or closed before it was there
            producer.close()
            return
        self._producers[wanted.producer_id] = ProducerSession(self, wanted.producer_id, producer, topic.partition)
        success = CommandProducerSuccess(
            request_id=wanted.request_id,
            producer_name=producer.name,
            last_sequence_id=producer.last_sequence_id,
            schema_version=b"",
        )
        if producer.topic_epoch is not None:
            success.topic_epoch = producer.topic_epoch
        self.send(BaseCommand(type=T.PRODUCER_SUCCESS, producer_success=success))

    def _close_producer(self, command: BaseCommand) -> None:
        session = self._producers.pop(command.close_producer.producer_id, None)
        if session is not None:
            session.close()
        self._succeeded(command.close_producer.request_id)

    # Consumers.

    def _subscribe(self, command: BaseCommand) -> None:
        wanted = command.subscribe
        if wanted.consumer_id in self._consumers:
            if self._consumers[wanted.consumer_id] is None:
                self._refuse(wanted.request_id, ServerError.ServiceNotReady, "the consumer is being connected already")
            else:
                self._succeeded(wanted.request_id)
            return
        if len(self._consumers) >= SESSIONS_MAX:
            self._refuse(wanted.request_id, ServerError.TooManyRequests, f"{SESSIONS_MAX} consumers, the limit")
            return
        self._consumers[wanted.consumer_id] = None
        self.answer(wanted.request_id, self._connect_consumer(command), "connecting of a consumer")

    async def _connect_consumer(self, command: BaseCommand) -> None:
        wanted = command.subscribe
        try:
            topic = await self.engine.topic(wanted.topic, create=wanted.force_topic_creation)
            session = ConsumerSession(
                self, wanted.consumer_id, topic, wanted.consumer_epoch if wanted.HasField("consumer_epoch") else None
            )
            consumer = await topic.subscribe(wanted.subscription, subscribe_options(wanted), session.deliver)
        except BaseException:
            self._consumers.pop(wanted.consumer_id, None)
            raise
        session.connected(consumer)
        if self._over or wanted.consumer_id not in self._consumers:
            session.close()
            return
        self._consumers[wanted.consumer_id] = session
        self._succeeded(wanted.request_id)

    def _consumer(self, consumer_id: int) -> ConsumerSession | None:
        return self._consumers.get(consumer_id)

    def _flow(self, command: BaseCommand) -> None:
        session = self._consumer(command.flow.consumer_id)
        if session is not None:
            session.flow(command.flow.messagePermits)

    def _ack(self, command: BaseCommand) -> None:
        session = self._consumer(command.ack.consumer_id)
        if session is not None:
            session.acknowledge(command.ack)

    def _redeliver(self, command: BaseCommand) -> None:
        session = self._consumer(command.redeliverUnacknowledgedMessages.consumer_id)
        if session is not None:
            session.redeliver(command.redeliverUnacknowledgedMessages)

    def _close_consumer(self, command: BaseCommand) -> None:
        session = self._consumers.pop(command.close_consumer.consumer_id, None)
        if session is not None:
            session.close()
        self._succeeded(command.close_consumer.request_id)

    def _with_consumer(self, consumer_id: int, request_id: int) -> ConsumerSession | None:
        session = self._consumer(consumer_id)
        if session is None:
            self._refuse(request_id, ServerError.MetadataError, "the consumer is not there")
        return session

    def _unsubscribe(self, command: BaseCommand) -> None:
        wanted = command.unsubscribe
        session = self._with_consumer(wanted.consumer_id, wanted.request_id)
        if session is None:
            return

        async def unsubscribe() -> None:
            session.consumer.on_closed = None
            await session.consumer.unsubscribe(force=wanted.force)
            self._consumers.pop(wanted.consumer_id, None)
            self._succeeded(wanted.request_id)

        self.answer(wanted.request_id, unsubscribe(), "unsubscribing")

    def _seek(self, command: BaseCommand) -> None:
        wanted = command.seek
        session = self._with_consumer(wanted.consumer_id, wanted.request_id)
        if session is None:
            return

        async def seek() -> None:
            await session.seek(wanted)
            self._succeeded(wanted.request_id)

        self.answer(wanted.request_id, seek(), "seeking")

    def _last_message_id(self, command: BaseCommand) -> None:
        wanted = command.getLastMessageId
        session = self._with_consumer(wanted.consumer_id, wanted.request_id)
        if session is None:
            return
        mark_delete = session.consumer.subscription.cursor.mark_delete
        answer = CommandGetLastMessageIdResponse(
            request_id=wanted.request_id,
            last_message_id=session.last_message_id(),
            consumer_mark_delete_position=message_id(mark_delete, session.topic.partition),
        )
        self.send(BaseCommand(type=T.GET_LAST_MESSAGE_ID_RESPONSE, getLastMessageIdResponse=answer))

    def _consumer_stats(self, command: BaseCommand) -> None:
        wanted = command.consumerStats
        session = self._consumer(wanted.consumer_id)
        answer = CommandConsumerStatsResponse(request_id=wanted.request_id)
        if session is None:
            answer.error_code, answer.error_message = ServerError.ConsumerNotFound, "the consumer is not there"
        else:
            answer.consumerName = session.consumer.name
            answer.availablePermits = session.unused_permits
            answer.type = session.consumer.options.type.value
            answer.msgBacklog = session.consumer.subscription.backlog_messages()
        self.send(BaseCommand(type=T.CONSUMER_STATS_RESPONSE, consumerStatsResponse=answer))

    # Finding topics.

    def _partitions(self, command: BaseCommand) -> None:
        self.work(lookups.partitions(self, command.partitionMetadata), "partitions of a topic")

    def _lookup(self, command: BaseCommand) -> None:
        wanted = command.lookupTopic
        try:
            parse_topic(wanted.topic)
        except InvalidTopicName as error:
            self.send(lookups.not_found(wanted, ServerError.InvalidTopicName, str(error)))
            return
        self.send(lookups.found(wanted, self.addresses))

    def _topics_of_namespace(self, command: BaseCommand) -> None:
        wanted = command.getTopicsOfNamespace
        self.send(lookups.topics(self.engine, wanted))


_FINISH: Final = frozenset({"answers of a producer"})
"""Calls that go on when the client is gone: what it sent is published, and its bytes are counted back."""

_HANDLERS: Final[dict[int, Handler]] = {
    T.PING: Connection._pong,
    T.PONG: Connection._heard_pong,
    T.PRODUCER: Connection._produce,
    T.CLOSE_PRODUCER: Connection._close_producer,
    T.SUBSCRIBE: Connection._subscribe,
    T.FLOW: Connection._flow,
    T.ACK: Connection._ack,
    T.REDELIVER_UNACKNOWLEDGED_MESSAGES: Connection._redeliver,
    T.CLOSE_CONSUMER: Connection._close_consumer,
    T.UNSUBSCRIBE: Connection._unsubscribe,
    T.SEEK: Connection._seek,
    T.GET_LAST_MESSAGE_ID: Connection._last_message_id,
    T.CONSUMER_STATS: Connection._consumer_stats,
    T.PARTITIONED_METADATA: Connection._partitions,
    T.LOOKUP: Connection._lookup,
    T.GET_TOPICS_OF_NAMESPACE: Connection._topics_of_namespace,
}
