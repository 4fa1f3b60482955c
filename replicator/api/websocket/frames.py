"""The JSON texts of the WebSocket API, and the values in them. Pure.

Names and shapes are those of Pulsar's WebSocket service: payloads and message ids in base64 (an id is a
``MessageIdData`` in protobuf, as all clients write one down), times in ISO 8601. Numbers and flags where a text belongs
are taken as texts, as there; names that nobody knows are passed over.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import Any, Final

from google.protobuf.message import DecodeError

from replicator.api.websocket.fields import (
    EPOCH,
    BadField,
    BadTime,
    clusters_field,
    from_base64,
    null_value_field,
    number_field,
    read_object,
    text_field,
    texts_field,
    time_field,
)
from replicator.client.errors import InvalidMessage
from replicator.client.message import ChunkMessageId, Message, MessageId, OutgoingMessage
from replicator.protocol.commands_pb2 import MessageIdData
from replicator.protocol.values import position_of
from snapshots.position import BEFORE_ALL

MESSAGE_ID_CHARACTERS_MAX: Final = 1_024
PIECE_BYTES: Final = 3 * 128 * 1024
"""Bytes that are encoded at once, half a millisecond of work: a multiple of 3, so that pieces need no padding."""


class ErrorCode(IntEnum):
    """The numbers behind ``send-error:``."""

    NOT_JSON = 3
    NOT_BASE64 = 7
    UNKNOWN = 8


class Unsendable(Exception):
    """A message that is not sent. The text says why."""

    def __init__(self, code: ErrorCode, reason: str, context: str | None = None) -> None:
        super().__init__(reason)
        self.code = code
        self.context = context


@dataclass(frozen=True, slots=True)
class SendRequest:
    """A message that a client wants to be sent, and what it wants to hear back with the answer."""

    message: OutgoingMessage
    context: str | None


@dataclass(frozen=True, slots=True)
class Command:
    """Command of the client of a consumer or a reader. Without a type it is an acknowledgement."""

    type: str | None
    message_id: str | None
    permits: int | None


# Sending.


def read_message(text: str, now_ms: int) -> SendRequest:
    """Read a producer's message. Raise :class:`Unsendable`."""
    try:
        fields = read_object(text)
        context = text_field(fields, "context")
    except BadField as error:
        raise Unsendable(ErrorCode.NOT_JSON, str(error)) from None
    try:
        return SendRequest(_message(fields, now_ms), context)
    except Unsendable as error:
        error.context = context
        raise
    except BadTime as error:
        raise Unsendable(ErrorCode.NOT_BASE64, str(error), context) from None
    except BadField as error:
        raise Unsendable(ErrorCode.NOT_JSON, str(error), context) from None


def _message(fields: Mapping[str, Any], now_ms: int) -> OutgoingMessage:
    payload = text_field(fields, "payload")
    content: bytes | None = None
    if not null_value_field(fields):
        if payload is None:
            raise Unsendable(ErrorCode.NOT_BASE64, "payload is missing")
        try:
            content = from_base64(payload)
        except ValueError as error:
            raise Unsendable(ErrorCode.NOT_BASE64, f"Invalid Base64 message-payload error={error}") from None
    deliver_at, deliver_after = number_field(fields, "deliverAt"), number_field(fields, "deliverAfterMs")
    return OutgoingMessage(
        content,
        texts_field(fields, "properties"),
        text_field(fields, "key"),
        event_timestamp=time_field(fields, "eventTime"),
        deliver_at=deliver_at if deliver_at > 0 else now_ms + deliver_after if deliver_after > 0 else None,
        clusters=clusters_field(fields),
    )


def sent(message_id: MessageId, context: str | None) -> str:
    """Return the answer to a message that is stored."""
    return _answer({"result": "ok", "messageId": write_message_id(message_id)}, context)


def not_sent(error: Unsendable) -> str:
    """Return the answer to a message that is not stored."""
    return _answer({"result": f"send-error:{int(error.code)}", "errorMsg": str(error)}, error.context)


def _answer(fields: dict[str, Any], context: str | None) -> str:
    if context is not None:
        fields["context"] = context
    return json.dumps({**fields, "errorCode": 0, "schemaVersion": 0})


# Consuming.


def read_command(text: str) -> Command:
    """Read a client's command. Raise :class:`BadField`."""
    fields = read_object(text)
    permits = fields.get("permitMessages")
    if permits is not None and type(permits) is not int:
        raise BadField("permitMessages must be a whole number")
    return Command(text_field(fields, "type"), text_field(fields, "messageId"), permits)


def delivered(message: Message, message_id: str) -> bytes:
    """Return the text of a message for a consumer or a reader, in UTF-8."""
    fields: dict[str, Any] = {
        "messageId": message_id,
        "properties": message.properties(),
        "publishTime": _iso_time(message.publish_timestamp()),
        "redeliveryCount": message.redelivery_count(),
    }
    if message.event_timestamp():
        fields["eventTime"] = _iso_time(message.event_timestamp())
    if message.partition_key():
        fields["key"] = message.partition_key()
    if message.has_null_value():
        fields["nullValue"] = True
    text = json.dumps(fields).encode()
    return b"".join((text[:-1], b', "payload": "', *_base64_pieces(message.data()), b'"}'))


def _base64_pieces(data: bytes) -> Iterator[bytes]:
    """Yield ``data`` in base64. Between two pieces other threads have their turn."""
    if len(data) <= PIECE_BYTES:
        yield base64.b64encode(data)
        return
    view = memoryview(data)
    for at in range(0, len(data), PIECE_BYTES):
        yield base64.b64encode(view[at : at + PIECE_BYTES])


def end_of_topic(reached: bool) -> str:
    return json.dumps({"endOfTopic": reached})


# Message ids.


def write_message_id(message_id: MessageId) -> str:
    """Return a message id in base64, as Pulsar's clients write it."""
    written = MessageIdData(ledgerId=_u64(message_id.ledger_id()), entryId=_u64(message_id.entry_id()))
    if message_id.partition() >= 0:
        written.partition = message_id.partition()
    if message_id.batch_index() >= 0:
        written.batch_index = message_id.batch_index()
        written.batch_size = message_id.batch_size()
    else:
        written.batch_size = 0
    if isinstance(message_id, ChunkMessageId):
        first = message_id.first_chunk_position()
        written.first_chunk_message_id.ledgerId = first.ledger
        written.first_chunk_message_id.entryId = first.entry
    return base64.b64encode(written.SerializeToString()).decode()


def read_message_id(text: str) -> MessageId:
    """Read a message id. Raise :class:`BadField` for a text that is not one."""
    if len(text) > MESSAGE_ID_CHARACTERS_MAX:
        raise BadField(f"a message id of {len(text)} characters is too long to be one: send it back as it came")
    read = MessageIdData()
    try:
        read.ParseFromString(from_base64(text))
        position = position_of(read)
        if position == BEFORE_ALL:
            return MessageId.earliest
        if read.HasField("first_chunk_message_id"):
            return ChunkMessageId((position_of(read.first_chunk_message_id), position), read.partition)
        return MessageId(
            read.partition,
            position.ledger,
            position.entry,
            read.batch_index,
            max(read.batch_size, read.batch_index + 1, 1),
        )
    except (DecodeError, ValueError, InvalidMessage):
        raise BadField(f"{text[:80]!r} is no message id: send it back as it came with the message") from None


def _u64(number: int) -> int:
    return number & (2**64 - 1)


def _iso_time(milliseconds: int) -> str:
    """Return a time in ISO 8601, in UTC; a time that no calendar has is shown as its number."""
    try:
        time = EPOCH + timedelta(milliseconds=milliseconds)
    except OverflowError:
        return str(milliseconds)
    return (
        time.strftime("%Y-%m-%dT%H:%M:%S")
        + (f".{milliseconds % 1000:03}".rstrip("0") if milliseconds % 1000 else "")
        + "Z"
    )
