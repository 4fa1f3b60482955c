"""Producer of one topic over a broker connection.

All entries of one turn of the event loop leave in one write. A broker confirms the sends of a producer in their order,
so receipts are matched by order; the sequence id in each must be that of the send. It refuses a send at once, before it
confirms those that it is still storing. A cluster of ours answers sends whose entries lie one behind the other with one
receipt.

A cluster of ours reads the sequence ids of an entry's messages from its metadata, so the sequence id of the send is the
id of the entry; other brokers look only at the send. A caller that passes on entries of other producers sets
``own_numbers``: then the sequence id is the id of the entry there too, as the metadata has ids of many producers. After
a refusal nothing more is sent then, because the refused entry must come first.
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
from replicator.engine.log.entry import METADATA_ROOM_BYTES, decode_entry
from replicator.engine.types import AccessMode
from replicator.metadata.metadata_pb2 import KeyValue
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandCloseProducer,
    CommandProducer,
    CommandProducerSuccess,
    CommandSend,
    CommandSendError,
)
from replicator.protocol.data_commands import SendHeadWriter
from replicator.protocol.frames import encode_head
from replicator.protocol.runs import Receipts
from replicator.protocol.schemas import schema_on_the_wire
from snapshots.position import Position

CLOSE_SECONDS_MAX: Final = 2.0
WRITE_BYTES: Final = 1024 * 1024
"""Size of one write, after which the socket is asked whether it takes more."""
FRAME_PADDING_BYTES: Final = 10 * 1024
"""Room for an entry's metadata, which other brokers allow beyond the size of a message."""

T = BaseCommand.Type
_MODES: Final = {mode: number for number, mode in enumerate(AccessMode)}


class BrokerProducerChannel:
    """Producer channel over a broker connection (:class:`replicator.client.wire.channel.ProducerChannel`)."""

    def __init__(self, connection: Connection, producer_id: int) -> None:
        self.ready: ProducerReady
        self.own_numbers = False
        self._connection = connection
        self._id = producer_id
        self._entry_bytes_max = connection.message_bytes_max + (
            METADATA_ROOM_BYTES if connection.cluster else FRAME_PADDING_BYTES
        )
        self._heads = SendHeadWriter(producer_id)
        self._events: ProducerEvents | None = None
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._scheduled = False
        self._sent: deque[tuple[int, int]] = deque()
        """Entries that are not answered, and the sequence ids of their sends."""
        self._leaving = False
        self._answer = asyncio.Event()
        self._lost: PulsarException | None = None
        self._over = False

    @property
    def entry_bytes_max(self) -> int:
        """Size of the largest entry that the broker takes, whatever its topics' policies say."""
        return self._entry_bytes_max

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
        """Stop sending; return when every sent entry is answered, or the channel is over."""
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

    def on_receipts(self, receipts: Receipts) -> None:
        receipt, sent = receipts.command, self._sent
        entry_ids: list[int] = []
        positions: list[Position] = []
        wrong = ""
        for (sequence_id, *_), position in zip(receipts.numbers, receipts.positions(), strict=True):
            if self._is_old(sequence_id):
                continue
            if wrong := self._does_not_fit(sequence_id, receipt.sends, receipt.last_sequence_id):
                break
            ledger, entry = position
            entry_ids.append(sent.popleft()[0])
            positions.append(position)
            for step in range(1, receipt.sends):
                entry_ids.append(sent.popleft()[0])
                positions.append(Position(ledger, entry + step))
        if entry_ids:
            self._answer.set()
            if self._events is not None:
                self._events.on_receipts(entry_ids, positions)
        if wrong:
            self._connection.end(ConnectError(wrong))

    def on_command(self, command: BaseCommand) -> None:
        match command.type:
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
        connection, waiting, sent, head = self._connection, self._waiting, self._sent, self._heads.head
        ours, entry_bytes_max = bool(connection.cluster), self._entry_bytes_max
        while waiting and connection.writable and not self._leaving and not self._over:
            pieces: list[bytes] = []
            size = 0
            while waiting and size < WRITE_BYTES and not self._leaving:
                entry_id, entry = waiting.popleft()
                entry_bytes = len(entry)
                if entry_bytes > entry_bytes_max:
                    self._refuse_too_big(entry_id, entry_bytes)
                    continue
                if ours:
                    sent.append((entry_id, entry_id))
                    pieces.append(head(entry_id, entry_bytes))
                else:
                    send = self._numbered(entry_id, entry)
                    sent.append((entry_id, send.sequence_id))
                    pieces.append(encode_head(BaseCommand(type=T.SEND, send=send), entry_bytes))
                pieces.append(entry)
                size += entry_bytes
            connection.write(b"".join(pieces))

    def _numbered(self, sequence_id: int, entry: bytes) -> CommandSend:
        """Return a send command with the numbers that the entry's metadata has."""
        send = CommandSend(producer_id=self._id, sequence_id=sequence_id)
        try:
            metadata, _ = decode_entry(entry, check=False)
        except EngineError:
            return send  # the broker will say so
        send.num_messages = metadata.num_messages_in_batch
        send.is_chunk = metadata.num_chunks_from_msg > 1
        if self.own_numbers:
            return send
        send.sequence_id = metadata.sequence_id
        if metadata.HasField("highest_sequence_id"):
            send.highest_sequence_id = metadata.highest_sequence_id
        return send

    def _refuse_too_big(self, entry_id: int, size: int) -> None:
        self._refused(entry_id, MessageTooBig(f"an entry of {size} bytes; the cluster takes {self._entry_bytes_max}"))

    def _on_refusal(self, refusal: CommandSendError) -> None:
        """Handle a refusal, which may come before the answers to earlier sends."""
        if self._is_old(refusal.sequence_id):
            return
        sent = self._sent
        at = next((index for index, (_, sequence_id) in enumerate(sent) if sequence_id == refusal.sequence_id), None)
        if at is None:
            self._connection.end(ConnectError(self._does_not_fit(refusal.sequence_id)))
            return
        self._answer.set()
        entry_id, _ = sent[at]
        del sent[at]
        self._refused(entry_id, from_server(refusal.error, refusal.message, refusal.engine_error))

    def _refused(self, entry_id: int, error: PulsarException) -> None:
        if self.own_numbers:
            self._leaving = True
            self._waiting.clear()
        if self._events is not None:
            self._events.on_refused(entry_id, error)

    def _is_old(self, sequence_id: int) -> bool:
        """Return whether a send was answered before. Such an answer is ignored: brokers may answer a duplicate
        twice."""
        return bool(self._sent) and sequence_id < self._sent[0][1]

    def _does_not_fit(self, sequence_id: int, sends: int = 1, last_sequence_id: int = 0) -> str:
        """Return why an answer does not fit the oldest send and the ``sends - 1`` behind it; empty if it fits."""
        sent = self._sent
        if sent and sent[0][1] == sequence_id:
            if sends <= 1 or (sends <= len(sent) and sent[sends - 1][1] == last_sequence_id):
                return ""
            return f"{self._connection.address}: one answer to {sends} sends, {sequence_id} to {last_sequence_id}"
        expected = sent[0][1] if sent else "none"
        return f"{self._connection.address}: an answer to send {sequence_id}; expected {expected}"

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
    """Connect a producer. One that waits for exclusive access waits without a limit. Raises the errors of
    :class:`Connector`."""
    producer_id = connection.next_id()
    channel = BrokerProducerChannel(connection, producer_id)
    connection.producers[producer_id] = channel
    patient = settings.access_mode is AccessMode.WAIT_FOR_EXCLUSIVE
    try:
        ready: CommandProducerSuccess = await connection.request(
            lambda request_id: _produce(
                producer_id, request_id, settings, topic_epoch, extended=bool(connection.cluster)
            ),
            f"producer of {settings.topic}",
            None if patient else seconds_max,
        )
    except BaseException as error:
        connection.producers.pop(producer_id, None)
        if isinstance(error, Timeout) or not isinstance(error, PulsarException):  # it may be made all the same
            connection.ask(lambda request_id: _closing(producer_id, request_id), lambda _: None)
        raise
    channel.ready = ProducerReady(
        ready.producer_name,
        ready.last_sequence_id,
        ready.topic_epoch if ready.HasField("topic_epoch") else None,
        connection.message_bytes_max,
    )
    return channel


def _produce(
    producer_id: int, request_id: int, settings: ProducerSettings, topic_epoch: int | None, *, extended: bool
) -> BaseCommand:
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
    if settings.schema is not None:
        command.schema.CopyFrom(schema_on_the_wire(settings.schema))
    if settings.initial_subscription is not None:
        command.initial_subscription_name = settings.initial_subscription
    if extended:
        command.extended = True
    return BaseCommand(type=T.PRODUCER, producer=command)


def _closing(producer_id: int, request_id: int) -> BaseCommand:
    closing = CommandCloseProducer(producer_id=producer_id, request_id=request_id)
    return BaseCommand(type=T.CLOSE_PRODUCER, close_producer=closing)
