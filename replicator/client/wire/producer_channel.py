"""The producer of one topic over a broker connection.

Entries of one turn of the event loop leave in one write, as they are. A broker answers the sends of a producer in
their order, so receipts are matched by it; the sequence id in each must be that of the send.

A cluster of ours reads the numbers of an entry's messages in its metadata, so the sequence id of the send is the id of
the entry; others look at the send alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from replicator.client.errors import ConnectError, MessageTooBig, PulsarException, Timeout, from_loss, from_server
from replicator.client.settings import ProducerSettings
from replicator.client.wire.channel import ProducerEvents, ProducerReady
from replicator.client.wire.connection import Connection
from replicator.engine.errors import EngineError
from replicator.engine.log.entry import decode_entry
from replicator.engine.types import AccessMode
from replicator.metadata.metadata_pb2 import KeyValue
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandCloseProducer,
    CommandProducer,
    CommandProducerSuccess,
    CommandSend,
    CommandSendError,
    CommandSendReceipt,
)
from replicator.protocol.frames import METADATA_BYTES_MAX, encode_head
from replicator.protocol.values import position_of

CLOSE_SECONDS_MAX: Final = 2.0
WRITE_BYTES: Final = 1024 * 1024
"""Of one write; behind it the socket is asked whether it takes more."""
FRAME_PADDING_BYTES: Final = 10 * 1024
"""What other brokers take beyond the size of a message: an entry's metadata must fit in it."""

T = BaseCommand.Type
_MODES: Final = {mode: number for number, mode in enumerate(AccessMode)}


class BrokerProducerChannel:
    """A producer channel (:class:`replicator.client.wire.channel.ProducerChannel`)."""

    def __init__(self, connection: Connection, producer_id: int) -> None:
        self.ready: ProducerReady
        self._connection = connection
        self._id = producer_id
        self._entry_bytes_max = connection.message_bytes_max + (
            METADATA_BYTES_MAX if connection.cluster else FRAME_PADDING_BYTES
        )
        self._send = BaseCommand(type=T.SEND, send=CommandSend(producer_id=producer_id, sequence_id=0))
        self._events: ProducerEvents | None = None
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._scheduled = False
        self._sent: deque[tuple[int, int]] = deque()
        """Entries that are not answered, and the sequence ids of their sends."""
        self._leaving = False
        self._answer = asyncio.Event()
        self._lost: PulsarException | None = None
        self._over = False

    def start(self, events: ProducerEvents) -> None:
        self._events = events
        if self._lost is not None:  # before anybody listened
            asyncio.get_running_loop().call_soon(self._report_lost)

    def publish(self, entry_id: int, entry: bytes) -> None:
        self._waiting.append((entry_id, entry))
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._write)

    async def leave(self) -> None:
        """Send nothing more; returns when what was sent is answered, or the channel is over."""
        self._leaving = True
        while self._sent and not self._over:
            self._answer.clear()
            await self._answer.wait()

    async def close(self) -> None:
        if self._over:
            return
        self._write()
        self._end()
        self._events = None
        connection, producer_id = self._connection, self._id
        connection.producers.pop(producer_id, None)
        with suppress(PulsarException):  # it is gone already, or is about to be
            await connection.request(
                lambda request_id: _closing(producer_id, request_id), "closing of a producer", CLOSE_SECONDS_MAX
            )

    # From the connection.

    def on_command(self, command: BaseCommand) -> None:
        match command.type:
            case T.SEND_RECEIPT:
                self._on_receipt(command.send_receipt)
            case T.SEND_ERROR:
                self._on_refusal(command.send_error)
            case T.CLOSE_PRODUCER:
                closing = command.close_producer
                reason = f"{self._connection.address}: {closing.reason or 'the broker closed the producer'}"
                self.on_lost(from_loss(closing.engine_error, reason))

    def on_lost(self, error: PulsarException) -> None:
        if self._over:
            return
        self._end()
        self._lost = error
        self._report_lost()

    def on_writable(self) -> None:
        self._write()

    # Inside.

    def _write(self) -> None:
        self._scheduled = False
        connection, send = self._connection, self._send
        while self._waiting and connection.writable and not self._leaving and not self._over:
            pieces: list[bytes] = []
            size = 0
            while self._waiting and size < WRITE_BYTES:
                entry_id, entry = self._waiting.popleft()
                if len(entry) > self._entry_bytes_max:
                    self._refuse_too_big(entry_id, len(entry))
                    continue
                send.send.sequence_id = entry_id
                if not connection.cluster:
                    _number(send.send, entry)
                self._sent.append((entry_id, send.send.sequence_id))
                pieces.append(encode_head(send, len(entry)))
                pieces.append(entry)
                size += len(entry)
            connection.write(pieces)

    def _refuse_too_big(self, entry_id: int, size: int) -> None:
        error = MessageTooBig(f"an entry of {size} bytes; the cluster takes {self._entry_bytes_max}")
        if self._events is not None:
            self._events.on_refused(entry_id, error)

    def _on_receipt(self, receipt: CommandSendReceipt) -> None:
        entry_id = self._answered(receipt.sequence_id)
        if entry_id is not None and self._events is not None:
            self._events.on_receipt(entry_id, position_of(receipt.message_id))

    def _on_refusal(self, refusal: CommandSendError) -> None:
        entry_id = self._answered(refusal.sequence_id)
        if entry_id is not None and self._events is not None:
            self._events.on_refused(entry_id, from_server(refusal.error, refusal.message, refusal.engine_error))

    def _answered(self, sequence_id: int) -> int | None:
        """The entry that an answer is about; None, and the end of the connection, if it is about none. An answer to
        what was answered before means nothing: brokers may answer a duplicate twice."""
        if self._sent and sequence_id < self._sent[0][1]:
            return None
        if not self._sent or self._sent[0][1] != sequence_id:
            expected = self._sent[0][1] if self._sent else "none"
            self._connection.end(
                ConnectError(f"{self._connection.address}: an answer to send {sequence_id}; expected {expected}")
            )
            return None
        self._answer.set()
        return self._sent.popleft()[0]

    def _end(self) -> None:
        self._over = True
        self._waiting.clear()
        self._answer.set()

    def _report_lost(self) -> None:
        if self._events is not None and self._lost is not None:
            events, self._events = self._events, None
            events.on_lost(self._lost)


async def open_producer(
    connection: Connection, settings: ProducerSettings, topic_epoch: int | None, seconds_max: float
) -> BrokerProducerChannel:
    """Connect a producer; one that waits for its turn waits without a limit. Raises as :class:`Connector` says."""
    producer_id = connection.next_id()
    channel = BrokerProducerChannel(connection, producer_id)
    connection.producers[producer_id] = channel
    patient = settings.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE
    try:
        ready: CommandProducerSuccess = await connection.request(
            lambda request_id: _produce(producer_id, request_id, settings, topic_epoch),
            f"producer of {settings.topic}",
            None if patient else seconds_max,
        )
    except BaseException as error:
        connection.producers.pop(producer_id, None)
        if isinstance(error, Timeout) or not isinstance(error, PulsarException):  # it may be made all the same
            connection.ask(lambda request_id: _closing(producer_id, request_id), lambda _: None)
        raise
    channel.ready = ProducerReady(
        ready.producer_name, ready.last_sequence_id, ready.topic_epoch if ready.HasField("topic_epoch") else None
    )
    return channel


def _produce(producer_id: int, request_id: int, settings: ProducerSettings, topic_epoch: int | None) -> BaseCommand:
    options = settings.options(topic_epoch)
    command = CommandProducer(
        topic=settings.topic,
        producer_id=producer_id,
        request_id=request_id,
        producer_access_mode=_MODES[options.access_mode],  # type: ignore[arg-type]  # an enum's value
        user_provided_producer_name=options.name is not None,
        metadata=[KeyValue(key=key, value=value) for key, value in options.properties.items()],
    )
    if options.name is not None:
        command.producer_name = options.name
    if options.topic_epoch is not None:
        command.topic_epoch = options.topic_epoch
    return BaseCommand(type=T.PRODUCER, producer=command)


def _closing(producer_id: int, request_id: int) -> BaseCommand:
    closing = CommandCloseProducer(producer_id=producer_id, request_id=request_id)
    return BaseCommand(type=T.CLOSE_PRODUCER, close_producer=closing)


def _number(send: CommandSend, entry: bytes) -> None:
    """Say in the send what its entry says of itself."""
    try:
        metadata, _ = decode_entry(entry, check=False)
    except EngineError:
        return  # the broker will say so
    send.sequence_id = metadata.sequence_id
    send.num_messages = metadata.num_messages_in_batch
    send.is_chunk = metadata.num_chunks_from_msg > 1
    if metadata.HasField("highest_sequence_id"):
        send.highest_sequence_id = metadata.highest_sequence_id
    else:
        send.ClearField("highest_sequence_id")
