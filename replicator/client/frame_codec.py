"""Between frames and bytes. Sans-IO.

Everything that comes in is checked here, type by type and against the limits of invariant 11, before any of it is acted
on: a frame is either a value of :mod:`replicator.client.frames` or an :class:`InvalidFrame` that says what is wrong.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from replicator.client.frames import (
    ACKS_PER_FRAME_MAX,
    ENTRIES_PER_FRAME_MAX,
    HEADER_BYTES_MAX,
    INDEXES_PER_FRAME_MAX,
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
from replicator.client.settings import PROPERTIES_MAX
from replicator.engine.entry import BATCH_MESSAGES_MAX
from replicator.engine.types import Ack, Delivery, InitialPosition, SubscriptionType
from snapshots.position import Position

_LENGTH = struct.Struct(">I")
_U63: Final = 2**63 - 1
_U64: Final = 2**64 - 1


def encode_request(request: Request) -> str | bytes:
    """The frame of a request: text, or bytes for :class:`Publish`."""
    match request:
        case Publish(request_id, entries):
            header = {"type": "publish", "id": request_id, "sizes": [len(entry) for entry in entries]}
            return _data_frame(header, entries)
        case Acknowledge(request_id, acks):
            return _text({"type": "ack", "id": request_id, "acks": [_encode_ack(ack) for ack in acks]})
        case AcknowledgeCumulative(request_id, position, batch_index):
            return _text({"type": "ack_cumulative", "id": request_id, "position": position, "batch_index": batch_index})
        case Flow(permits):
            return _text({"type": "flow", "permits": permits})
        case Redeliver(positions):
            return _text({"type": "redeliver", "positions": positions})
        case Unsubscribe(request_id):
            return _text({"type": "unsubscribe", "id": request_id})
        case Produce(topic, producer_name):
            return _text({"type": "produce", "topic": topic, "producer_name": producer_name})
        case Subscribe():
            return _text(
                {
                    "type": "subscribe",
                    "topic": request.topic,
                    "subscription": request.subscription,
                    "consumer_type": request.consumer_type.value,
                    "consumer_name": request.consumer_name,
                    "initial_position": request.initial_position.value,
                    "replicated": request.replicated,
                    "properties": request.properties,
                }
            )


def encode_reply(reply: Reply) -> str | bytes:
    """The frame of a reply: text, or bytes for :class:`Deliver`."""
    match reply:
        case Deliver(deliveries):
            header = {"type": "deliver", "entries": [_encode_delivery(delivery) for delivery in deliveries]}
            return _data_frame(header, [delivery.entry for delivery in deliveries])
        case Receipt(request_id, positions):
            return _text({"type": "receipt", "id": request_id, "positions": _runs(positions)})
        case Done(request_id):
            return _text({"type": "done", "id": request_id})
        case Refusal(refused_id, code, message):
            return _text({"type": "error", "id": refused_id, "error": code, "message": message})
        case Ready(topic, cluster):
            return _text({"type": "ready", "topic": topic, "cluster": cluster})
        case Redelivering():
            return _text({"type": "redelivering"})
        case Closed(reason):
            return _text({"type": "closed", "reason": reason})


def decode_request(frame: str | bytes) -> Request:
    """Read a client's frame; raises :class:`InvalidFrame`."""
    if isinstance(frame, bytes):
        fields, entries = _split_data_frame(frame, "publish")
        sizes = fields.array("sizes", ENTRIES_PER_FRAME_MAX)
        return Publish(fields.number("id"), tuple(_cut(entries, sizes)))
    fields = _Fields.parse(frame)
    decode = _REQUESTS.get(fields.type)
    if decode is None:
        raise InvalidFrame(f"unknown type of frame {fields.type!r:.80}")
    return decode(fields)


def decode_reply(frame: str | bytes) -> Reply:
    """Read a worker's frame; raises :class:`InvalidFrame`."""
    if isinstance(frame, bytes):
        fields, entries = _split_data_frame(frame, "deliver")
        return Deliver(tuple(_decode_deliveries(fields.array("entries", ENTRIES_PER_FRAME_MAX), entries)))
    fields = _Fields.parse(frame)
    decode = _REPLIES.get(fields.type)
    if decode is None:
        raise InvalidFrame(f"unknown type of frame {fields.type!r:.80}")
    return decode(fields)


class _Fields:
    """The fields of a JSON object, each read with its type and limits."""

    __slots__ = ("_fields", "type")

    def __init__(self, fields: dict[str, Any]) -> None:
        self._fields = fields
        self.type = self.text("type", 40)

    @classmethod
    def parse(cls, text: str | bytes) -> _Fields:
        try:
            fields = json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidFrame("the frame is not JSON") from None
        if not isinstance(fields, dict):
            raise InvalidFrame("the frame is not a JSON object")
        return cls(fields)

    def text(self, name: str, length_max: int = 1_000) -> str:
        value = self._fields.get(name)
        if not isinstance(value, str) or len(value) > length_max:
            raise InvalidFrame(f"{name} is {value!r:.80}; expected text of at most {length_max} characters")
        return value

    def number(self, name: str, low: int = 0, high: int = _U63) -> int:
        return _number(self._fields.get(name), name, low, high)

    def flag(self, name: str) -> bool:
        value = self._fields.get(name)
        if not isinstance(value, bool):
            raise InvalidFrame(f"{name} is {value!r:.80}; expected true or false")
        return value

    def array(self, name: str, length_max: int) -> list[Any]:
        value = self._fields.get(name)
        if not isinstance(value, list) or len(value) > length_max:
            raise InvalidFrame(f"{name} must be an array of at most {length_max}")
        return value

    def missing(self, name: str) -> bool:
        return self._fields.get(name) is None

    def position(self, name: str) -> Position:
        return _position(self._fields.get(name))

    def strings(self, name: str) -> dict[str, str]:
        value = self._fields.get(name)
        if not isinstance(value, dict) or len(value) > PROPERTIES_MAX:
            raise InvalidFrame(f"{name} must be an object of at most {PROPERTIES_MAX} strings")
        if not all(isinstance(item, str) for item in value.values()):
            raise InvalidFrame(f"{name} must be an object of strings")
        return value


def _decode_subscribe(fields: _Fields) -> Subscribe:
    try:
        consumer_type = SubscriptionType(fields.text("consumer_type"))
        initial = InitialPosition(fields.text("initial_position"))
    except ValueError as error:
        raise InvalidFrame(f"subscribe: {error}") from None
    return Subscribe(
        fields.text("topic"),
        fields.text("subscription"),
        consumer_type,
        fields.text("consumer_name", 200),
        initial,
        fields.flag("replicated"),
        fields.strings("properties"),
    )


def _decode_acks(fields: _Fields) -> Acknowledge:
    acks: list[Ack] = []
    indexes_left = INDEXES_PER_FRAME_MAX
    for item in fields.array("acks", ACKS_PER_FRAME_MAX):
        if not isinstance(item, list) or len(item) not in (2, 3):
            raise InvalidFrame("acks: expected [ledger, entry] or [ledger, entry, ranges]")
        position = _position(item[:2])
        if len(item) == 2:
            acks.append(Ack(position))
            continue
        indexes: list[int] = []
        for run in item[2] if isinstance(item[2], list) else [item[2]]:
            if not isinstance(run, list) or len(run) != 2:
                raise InvalidFrame("acks: expected ranges [first, last] of batch indexes")
            first = _number(run[0], "first index", 0, BATCH_MESSAGES_MAX)
            last = _number(run[1], "last index", first, BATCH_MESSAGES_MAX)
            indexes_left -= last - first + 1
            if indexes_left < 0:
                raise InvalidFrame(f"acks: more than {INDEXES_PER_FRAME_MAX} batch indexes in one frame")
            indexes.extend(range(first, last + 1))
        if not indexes:
            raise InvalidFrame(f"acks: no batch index is given for {position}")
        acks.append(Ack(position, tuple(indexes)))
    if not acks:
        raise InvalidFrame("acks: empty")
    return Acknowledge(fields.number("id"), tuple(acks))


def _decode_cumulative(fields: _Fields) -> AcknowledgeCumulative:
    index = None if fields.missing("batch_index") else fields.number("batch_index", 0, BATCH_MESSAGES_MAX)
    return AcknowledgeCumulative(fields.number("id"), fields.position("position"), index)


def _decode_redeliver(fields: _Fields) -> Redeliver:
    if fields.missing("positions"):
        return Redeliver(None)
    return Redeliver(tuple(_position(item) for item in fields.array("positions", ACKS_PER_FRAME_MAX)))


def _decode_receipt(fields: _Fields) -> Receipt:
    positions: list[Position] = []
    for run in fields.array("positions", ENTRIES_PER_FRAME_MAX):
        if not isinstance(run, list) or len(run) != 3:
            raise InvalidFrame("receipt: expected [ledger, first entry, count]")
        first = _position(run[:2])
        count = _number(run[2], "count", 1, ENTRIES_PER_FRAME_MAX - len(positions))
        positions.extend(Position(first.ledger, first.entry + step) for step in range(count))
    return Receipt(fields.number("id"), tuple(positions))


_REQUESTS: Final[dict[str, Callable[[_Fields], Request]]] = {
    "produce": lambda fields: Produce(fields.text("topic"), fields.text("producer_name", 200)),
    "subscribe": _decode_subscribe,
    "flow": lambda fields: Flow(fields.number("permits", 1, PERMITS_MAX)),
    "ack": _decode_acks,
    "ack_cumulative": _decode_cumulative,
    "redeliver": _decode_redeliver,
    "unsubscribe": lambda fields: Unsubscribe(fields.number("id")),
}

_REPLIES: Final[dict[str, Callable[[_Fields], Reply]]] = {
    "ready": lambda fields: Ready(fields.text("topic"), fields.text("cluster")),
    "receipt": _decode_receipt,
    "done": lambda fields: Done(fields.number("id")),
    "error": lambda fields: Refusal(
        None if fields.missing("id") else fields.number("id"),
        fields.text("error", 200),
        fields.text("message", 100_000),
    ),
    "redelivering": lambda fields: Redelivering(),
    "closed": lambda fields: Closed(fields.text("reason", 10_000)),
}


def _encode_ack(ack: Ack) -> list[Any]:
    if ack.batch_indexes is None:
        return [ack.position.ledger, ack.position.entry]
    runs: list[list[int]] = []
    for index in sorted(ack.batch_indexes):
        if runs and runs[-1][1] == index - 1:
            runs[-1][1] = index
        else:
            runs.append([index, index])
    return [ack.position.ledger, ack.position.entry, runs]


def _encode_delivery(delivery: Delivery) -> list[Any]:
    return [
        delivery.position.ledger,
        delivery.position.entry,
        delivery.redelivery_count,
        delivery.batch_size,
        len(delivery.entry),
        delivery.origin,
        delivery.origin_position.ledger,
        delivery.origin_position.entry,
        None if delivery.acked is None else base64.b64encode(delivery.acked).decode(),
    ]


def _decode_deliveries(rows: list[Any], entries: memoryview) -> Iterable[Delivery]:
    at = 0
    for row in rows:
        if not isinstance(row, list) or len(row) != 9 or not isinstance(row[5], str):
            raise InvalidFrame("deliver: expected nine values for each entry")
        ledger, entry, redelivered, batch_size, size, origin, origin_ledger, origin_entry, acked = row
        _number(size, "size", 0, len(entries) - at)
        try:
            bitmap = None if acked is None else base64.b64decode(acked, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise InvalidFrame("deliver: acked is not base64") from None
        yield Delivery(
            position=_position([ledger, entry]),
            redelivery_count=_number(redelivered, "redelivery count", 0, _U63),
            batch_size=_number(batch_size, "batch size", 1, BATCH_MESSAGES_MAX),
            acked=bitmap,
            entry=bytes(entries[at : at + size]),
            origin=origin,
            origin_position=_position([origin_ledger, origin_entry]),
        )
        at += size
    if at != len(entries):
        raise InvalidFrame(f"the frame has {len(entries) - at} bytes after its last entry")


def _runs(positions: Sequence[Position]) -> list[list[int]]:
    runs: list[list[int]] = []
    for ledger, entry in positions:
        if runs and runs[-1][0] == ledger and runs[-1][1] + runs[-1][2] == entry:
            runs[-1][2] += 1
        else:
            runs.append([ledger, entry, 1])
    return runs


def _data_frame(header: dict[str, Any], entries: Sequence[bytes]) -> bytes:
    encoded = json.dumps(header, separators=(",", ":")).encode()
    return b"".join([_LENGTH.pack(len(encoded)), encoded, *entries])


def _split_data_frame(frame: bytes, expected: str) -> tuple[_Fields, memoryview]:
    if len(frame) < _LENGTH.size:
        raise InvalidFrame(f"binary frame of {len(frame)} bytes is shorter than its header")
    (length,) = _LENGTH.unpack_from(frame)
    end = _LENGTH.size + length
    if length > HEADER_BYTES_MAX or end > len(frame):
        raise InvalidFrame(f"binary frame of {len(frame)} bytes says that its header has {length}")
    fields = _Fields.parse(frame[_LENGTH.size : end])
    if fields.type != expected:
        raise InvalidFrame(f"binary frame of type {fields.type!r}; expected {expected!r}")
    return fields, memoryview(frame)[end:]


def _cut(entries: memoryview, sizes: list[Any]) -> Iterable[bytes]:
    if not sizes:
        raise InvalidFrame("the frame has no entries")
    at = 0
    for size in sizes:
        _number(size, "size", 1, len(entries) - at)
        yield bytes(entries[at : at + size])
        at += size
    if at != len(entries):
        raise InvalidFrame(f"the frame has {len(entries) - at} bytes after its last entry")


def _position(value: object) -> Position:
    if not isinstance(value, list) or len(value) != 2:
        raise InvalidFrame(f"{value!r:.80} is not a position [ledger, entry]")
    return Position(_number(value[0], "ledger", 0, _U64), _number(value[1], "entry", -1, _U64))


def _number(value: object, name: str, low: int, high: int) -> int:
    if type(value) is not int or not low <= value <= high:
        raise InvalidFrame(f"{name} is {value!r:.80}; expected a whole number from {low} to {high}")
    return value


def _text(fields: dict[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"))
