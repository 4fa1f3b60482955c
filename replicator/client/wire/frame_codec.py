"""Between frames and bytes. Sans-IO.

Everything that comes in is checked here, type by type and against the limits of invariant 11, before any of it is
acted on: a frame is either a value of :mod:`replicator.client.wire.frames` or an :class:`InvalidFrame` that says what
is wrong.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from replicator.client.wire.channel import ProducerReady
from replicator.client.wire.frame_fields import (
    U63_MAX,
    Fields,
    cut,
    data_frame,
    read_number,
    read_position,
    split_data_frame,
    text_frame,
)
from replicator.client.wire.frames import (
    ACKS_PER_FRAME_MAX,
    ENTRIES_PER_FRAME_MAX,
    INDEXES_PER_FRAME_MAX,
    PERMITS_MAX,
    PRIORITY_MAX,
    STICKY_RANGES_MAX,
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
from replicator.engine.log.entry import BATCH_MESSAGES_MAX
from replicator.engine.types import (
    AccessMode,
    Ack,
    Delivery,
    HashRange,
    InitialPosition,
    KeySharedPolicy,
    ProducerOptions,
    SubscribeOptions,
    SubscriptionType,
)
from snapshots.position import Position

_SLOT_MAX: Final = 65_535
_NAME_CHARACTERS_MAX: Final = 200


def encode_request(request: Request) -> str | bytes:
    """The frame of a request: text, or bytes for :class:`Publish`."""
    match request:
        case Publish(request_id, entries):
            header = {"type": "publish", "id": request_id, "sizes": [len(entry) for entry in entries]}
            return data_frame(header, entries)
        case Acknowledge(request_id, acks):
            return text_frame({"type": "ack", "id": request_id, "acks": [_encode_ack(ack) for ack in acks]})
        case AcknowledgeCumulative(request_id, upto, batch_index):
            return text_frame(
                {"type": "ack_cumulative", "id": request_id, "position": upto, "batch_index": batch_index}
            )
        case Flow(permits):
            return text_frame({"type": "flow", "permits": permits})
        case Redeliver(positions):
            return text_frame({"type": "redeliver", "positions": positions})
        case RestartSeen():
            return text_frame({"type": "restart_seen"})
        case Seek(request_id, target):
            by_position = isinstance(target, Position)
            return text_frame(
                {
                    "type": "seek",
                    "id": request_id,
                    "position": target if by_position else None,
                    "publish_time_ms": None if by_position else target,
                }
            )
        case AskLastPosition(request_id):
            return text_frame({"type": "last_position", "id": request_id})
        case Unsubscribe(request_id, force):
            return text_frame({"type": "unsubscribe", "id": request_id, "force": force})
        case Produce(topic, options):
            return text_frame(
                {
                    "type": "produce",
                    "topic": topic,
                    "producer_name": options.name,
                    "access_mode": options.access_mode.value,
                    "topic_epoch": options.topic_epoch,
                    "properties": dict(options.properties),
                }
            )
        case Subscribe(topic, subscription, wanted, create_topic):
            return text_frame(
                {
                    "type": "subscribe",
                    "topic": topic,
                    "subscription": subscription,
                    "create_topic": create_topic,
                    **_encode_options(wanted),
                }
            )


def encode_reply(reply: Reply) -> str | bytes:
    """The frame of a reply: text, or bytes for :class:`Deliver`."""
    match reply:
        case Deliver(deliveries):
            header = {"type": "deliver", "entries": [_encode_delivery(delivery) for delivery in deliveries]}
            return data_frame(header, [delivery.entry for delivery in deliveries])
        case Receipt(request_id, positions):
            return text_frame({"type": "receipt", "id": request_id, "positions": _runs(positions)})
        case Done(request_id):
            return text_frame({"type": "done", "id": request_id})
        case Refusal(refused_id, code, message):
            return text_frame({"type": "error", "id": refused_id, "error": code, "message": message})
        case LastPosition(request_id, last):
            return text_frame({"type": "position", "id": request_id, "position": last})
        case Ready(topic, cluster, producer):
            ready: dict[str, Any] = {"type": "ready", "topic": topic, "cluster": cluster}
            if producer is not None:
                ready["producer_name"] = producer.producer_name
                ready["last_sequence_id"] = producer.last_sequence_id
                ready["topic_epoch"] = producer.topic_epoch
            return text_frame(ready)
        case Redelivering():
            return text_frame({"type": "redelivering"})
        case Restarted():
            return text_frame({"type": "restarted"})
        case Active(active):
            return text_frame({"type": "active", "active": active})
        case Closed(error, reason):
            return text_frame({"type": "closed", "error": error, "reason": reason})


def decode_request(frame: str | bytes) -> Request:
    """Read a client's frame; raises :class:`InvalidFrame`."""
    if isinstance(frame, bytes):
        fields, entries = split_data_frame(frame, "publish")
        sizes = fields.array("sizes", ENTRIES_PER_FRAME_MAX)
        if not sizes:
            raise InvalidFrame("the frame has no entries")
        return Publish(fields.number("id"), tuple(cut(entries, sizes, 1)))
    fields = Fields.parse(frame)
    decode = _REQUESTS.get(fields.type)
    if decode is None:
        raise InvalidFrame(f"unknown type of frame {fields.type!r:.80}")
    return decode(fields)


def decode_reply(frame: str | bytes) -> Reply:
    """Read a worker's frame; raises :class:`InvalidFrame`."""
    if isinstance(frame, bytes):
        fields, entries = split_data_frame(frame, "deliver")
        return Deliver(tuple(_decode_deliveries(fields.array("entries", ENTRIES_PER_FRAME_MAX), entries)))
    fields = Fields.parse(frame)
    decode = _REPLIES.get(fields.type)
    if decode is None:
        raise InvalidFrame(f"unknown type of frame {fields.type!r:.80}")
    return decode(fields)


def _decode_produce(fields: Fields) -> Produce:
    return Produce(
        fields.text("topic"),
        ProducerOptions(
            name=None if fields.missing("producer_name") else _name(fields, "producer_name"),
            access_mode=fields.choice("access_mode", AccessMode),
            topic_epoch=None if fields.missing("topic_epoch") else fields.number("topic_epoch"),
            properties=fields.strings("properties"),
        ),
    )


def _decode_subscribe(fields: Fields) -> Subscribe:
    return Subscribe(
        fields.text("topic"),
        fields.text("subscription"),
        SubscribeOptions(
            type=fields.choice("consumer_type", SubscriptionType),
            consumer_name=fields.text("consumer_name", _NAME_CHARACTERS_MAX),
            priority=fields.number("priority", 0, PRIORITY_MAX),
            key_shared=_decode_key_shared(fields.object("key_shared")),
            consumer_properties=fields.strings("consumer_properties"),
            initial=fields.choice("initial_position", InitialPosition),
            start=None if fields.missing("start") else fields.position("start"),
            durable=fields.flag("durable"),
            replicated=None if fields.missing("replicated") else fields.flag("replicated"),
            read_compacted=fields.flag("read_compacted"),
            subscription_properties=fields.strings("subscription_properties"),
        ),
        fields.missing("create_topic") or fields.flag("create_topic"),
    )


def _decode_key_shared(fields: Fields) -> KeySharedPolicy:
    """Whether ranges overlap or are missing is for the engine to say: it knows those of the others."""
    ranges: list[HashRange] = []
    if fields.missing("sticky_ranges"):
        return KeySharedPolicy(None, fields.flag("allow_out_of_order_delivery"))
    for item in fields.array("sticky_ranges", STICKY_RANGES_MAX):
        if not isinstance(item, list) or len(item) != 2:
            raise InvalidFrame(f"sticky_ranges: {item!r:.80} is not a range [start, end]")
        start = read_number(item[0], "sticky_ranges: start", 0, _SLOT_MAX)
        ranges.append(HashRange(start, read_number(item[1], "sticky_ranges: end", start, _SLOT_MAX)))
    return KeySharedPolicy(tuple(ranges), fields.flag("allow_out_of_order_delivery"))


def _decode_seek(fields: Fields) -> Seek:
    if fields.missing("position") == fields.missing("publish_time_ms"):
        raise InvalidFrame("seek: expected a position or a publish_time_ms, and the other one null")
    if fields.missing("position"):
        return Seek(fields.number("id"), fields.number("publish_time_ms"))
    return Seek(fields.number("id"), fields.position("position"))


def _decode_acks(fields: Fields) -> Acknowledge:
    acks: list[Ack] = []
    indexes_left = INDEXES_PER_FRAME_MAX
    for item in fields.array("acks", ACKS_PER_FRAME_MAX):
        if not isinstance(item, list) or len(item) not in (2, 3):
            raise InvalidFrame("acks: expected [ledger, entry] or [ledger, entry, ranges]")
        position = read_position(item[:2])
        if len(item) == 2:
            acks.append(Ack(position))
            continue
        indexes: list[int] = []
        for run in item[2] if isinstance(item[2], list) else [item[2]]:
            if not isinstance(run, list) or len(run) != 2:
                raise InvalidFrame("acks: expected ranges [first, last] of batch indexes")
            first = read_number(run[0], "first index", 0, BATCH_MESSAGES_MAX)
            last = read_number(run[1], "last index", first, BATCH_MESSAGES_MAX)
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


def _decode_cumulative(fields: Fields) -> AcknowledgeCumulative:
    index = None if fields.missing("batch_index") else fields.number("batch_index", 0, BATCH_MESSAGES_MAX)
    return AcknowledgeCumulative(fields.number("id"), fields.position("position"), index)


def _decode_redeliver(fields: Fields) -> Redeliver:
    if fields.missing("positions"):
        return Redeliver(None)
    return Redeliver(tuple(read_position(item) for item in fields.array("positions", ACKS_PER_FRAME_MAX)))


def _decode_receipt(fields: Fields) -> Receipt:
    positions: list[Position] = []
    for run in fields.array("positions", ENTRIES_PER_FRAME_MAX):
        if not isinstance(run, list) or len(run) != 3:
            raise InvalidFrame("receipt: expected [ledger, first entry, count]")
        first = read_position(run[:2])
        count = read_number(run[2], "count", 1, ENTRIES_PER_FRAME_MAX - len(positions))
        positions.extend(Position(first.ledger, first.entry + step) for step in range(count))
    return Receipt(fields.number("id"), tuple(positions))


def _decode_ready(fields: Fields) -> Ready:
    topic, cluster = fields.text("topic"), fields.text("cluster")
    if fields.missing("producer_name"):
        return Ready(topic, cluster)
    epoch = None if fields.missing("topic_epoch") else fields.number("topic_epoch")
    name, last = _name(fields, "producer_name"), fields.number("last_sequence_id", -1)
    return Ready(topic, cluster, ProducerReady(name, last, epoch))


def _name(fields: Fields, name: str) -> str:
    return fields.text(name, _NAME_CHARACTERS_MAX, length_min=1)


_REQUESTS: Final[dict[str, Callable[[Fields], Request]]] = {
    "produce": _decode_produce,
    "subscribe": _decode_subscribe,
    "flow": lambda fields: Flow(fields.number("permits", 1, PERMITS_MAX)),
    "ack": _decode_acks,
    "ack_cumulative": _decode_cumulative,
    "redeliver": _decode_redeliver,
    "restart_seen": lambda fields: RestartSeen(),
    "seek": _decode_seek,
    "last_position": lambda fields: AskLastPosition(fields.number("id")),
    "unsubscribe": lambda fields: Unsubscribe(fields.number("id"), fields.flag("force")),
}

_REPLIES: Final[dict[str, Callable[[Fields], Reply]]] = {
    "ready": _decode_ready,
    "receipt": _decode_receipt,
    "done": lambda fields: Done(fields.number("id")),
    "position": lambda fields: LastPosition(fields.number("id"), fields.position("position")),
    "error": lambda fields: Refusal(
        None if fields.missing("id") else fields.number("id"),
        fields.text("error", 200),
        fields.text("message", 100_000),
    ),
    "redelivering": lambda fields: Redelivering(),
    "restarted": lambda fields: Restarted(),
    "active": lambda fields: Active(fields.flag("active")),
    "closed": lambda fields: Closed(fields.text("error", 200), fields.text("reason", 10_000)),
}


def _encode_options(options: SubscribeOptions) -> dict[str, Any]:
    return {
        "consumer_type": options.type.value,
        "consumer_name": options.consumer_name,
        "priority": options.priority,
        "key_shared": {
            "sticky_ranges": options.key_shared.sticky_ranges,
            "allow_out_of_order_delivery": options.key_shared.allow_out_of_order_delivery,
        },
        "consumer_properties": dict(options.consumer_properties),
        "initial_position": options.initial.value,
        "start": options.start,
        "durable": options.durable,
        "replicated": options.replicated,
        "read_compacted": options.read_compacted,
        "subscription_properties": dict(options.subscription_properties),
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


def _decode_deliveries(rows: list[Any], entries: memoryview) -> Iterator[Delivery]:
    for row in rows:
        if not isinstance(row, list) or len(row) != 9 or not isinstance(row[5], str):
            raise InvalidFrame("deliver: expected nine values for each entry")
    bodies = cut(entries, [row[4] for row in rows], 0)
    for row, body in zip(rows, bodies, strict=True):
        ledger, entry, redelivered, batch_size, _, origin, origin_ledger, origin_entry, acked = row
        try:
            bitmap = None if acked is None else base64.b64decode(acked, validate=True)
        except (TypeError, ValueError, binascii.Error):
            raise InvalidFrame("deliver: acked is not base64") from None
        yield Delivery(
            position=read_position([ledger, entry]),
            redelivery_count=read_number(redelivered, "redelivery count", 0, U63_MAX),
            batch_size=read_number(batch_size, "batch size", 1, BATCH_MESSAGES_MAX),
            acked=bitmap,
            entry=body,
            origin=origin,
            origin_position=read_position([origin_ledger, origin_entry]),
        )


def _runs(positions: Sequence[Position]) -> list[list[int]]:
    runs: list[list[int]] = []
    for ledger, entry in positions:
        if runs and runs[-1][0] == ledger and runs[-1][1] + runs[-1][2] == entry:
            runs[-1][2] += 1
        else:
            runs.append([ledger, entry, 1])
    return runs
