"""The frames of the client sockets: what a client and a worker say to each other over a WebSocket. Sans-IO.

Control frames are WebSocket text: one JSON object with a ``type``. Data frames are WebSocket binary::

    header length u32 (big-endian) | header: JSON object with a type | entries, one after the other

A position is ``[ledger, entry]``. Frames of a client:

==================  ==========================================================================================
produce             first frame of a producer: ``topic, producer_name``
publish (binary)    ``id, sizes``: entries with the ids ``id, id+1, …`` and their sizes in bytes
subscribe           first frame of a consumer: ``topic, subscription, consumer_type, consumer_name,
                    initial_position, replicated, properties``
flow                ``permits``: messages that may be sent
ack                 ``id, acks: [[ledger, entry] | [ledger, entry, [[first, last], …]]]``: whole entries, or ranges of
                    batch indexes
ack_cumulative      ``id, position, batch_index`` (null: the whole entry)
redeliver           ``positions`` (null: everything unacknowledged)
unsubscribe         ``id``
==================  ==========================================================================================

Frames of a worker:

==================  ==========================================================================================
ready               the first frame was accepted: ``topic`` in its full form, ``cluster``
receipt             ``id, positions: [[ledger, first entry, count], …]``: a publish frame is durable
done                ``id``: an acknowledgement is durable, or the subscription is deleted
error               ``id, error, message``: that request was refused, by the name of the error; with a null id
                    the connection is closed next
redelivering        deliveries after this one come after a ``redeliver`` of everything
closed              ``reason``: the worker let go of the consumer; the connection is closed next
deliver (binary)    ``entries: [[ledger, entry, redelivery count, batch size, bytes, origin, origin ledger,
                    origin entry, acked], …]``; ``acked`` is the base64 of a roaring bitmap, or null
==================  ==========================================================================================

The limits below are those of invariant 11; :mod:`replicator.client.frame_codec` checks them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from replicator.client.errors import PulsarException
from replicator.engine.entry import ENTRY_BYTES_MAX
from replicator.engine.types import Ack, Delivery, InitialPosition, SubscriptionType
from snapshots.position import Position

HEADER_BYTES_MAX: Final = 512 * 1024
FRAME_BYTES_MAX: Final = ENTRY_BYTES_MAX + HEADER_BYTES_MAX + 4
"""One entry of any size always fits, with its header."""
FRAME_BYTES_TARGET: Final = 256 * 1024
"""Senders put entries together up to this: large enough that frames cost little, small enough to keep latency low."""
ENTRIES_PER_FRAME_MAX: Final = 2_000
ACKS_PER_FRAME_MAX: Final = 10_000
INDEXES_PER_FRAME_MAX: Final = 1_000_000
"""Batch indexes that the ranges of one ack frame may name."""
PERMITS_MAX: Final = 1_000_000


class InvalidFrame(PulsarException):
    """A frame that breaks the format or a limit; the text says where."""


@dataclass(frozen=True, slots=True)
class Produce:
    topic: str
    producer_name: str


@dataclass(frozen=True, slots=True)
class Publish:
    request_id: int
    entries: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Subscribe:
    topic: str
    subscription: str
    consumer_type: SubscriptionType
    consumer_name: str
    initial_position: InitialPosition
    replicated: bool
    properties: dict[str, str]


@dataclass(frozen=True, slots=True)
class Flow:
    permits: int


@dataclass(frozen=True, slots=True)
class Acknowledge:
    request_id: int
    acks: tuple[Ack, ...]


@dataclass(frozen=True, slots=True)
class AcknowledgeCumulative:
    request_id: int
    position: Position
    batch_index: int | None


@dataclass(frozen=True, slots=True)
class Redeliver:
    positions: tuple[Position, ...] | None


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    request_id: int


@dataclass(frozen=True, slots=True)
class Ready:
    topic: str
    cluster: str


@dataclass(frozen=True, slots=True)
class Receipt:
    request_id: int
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Done:
    request_id: int


@dataclass(frozen=True, slots=True)
class Refusal:
    request_id: int | None
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Redelivering:
    pass


@dataclass(frozen=True, slots=True)
class Closed:
    reason: str


@dataclass(frozen=True, slots=True)
class Deliver:
    deliveries: tuple[Delivery, ...]


Request = Produce | Publish | Subscribe | Flow | Acknowledge | AcknowledgeCumulative | Redeliver | Unsubscribe
Reply = Ready | Receipt | Done | Refusal | Redelivering | Closed | Deliver
