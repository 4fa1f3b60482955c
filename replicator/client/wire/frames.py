"""The frames of the client sockets: what a client and a worker say to each other over a WebSocket. Sans-IO.

Control frames are WebSocket text: one JSON object with a ``type``. Data frames are WebSocket binary::

    header length u32 (big-endian) | header: JSON object with a type | entries, one after the other

A position is ``[ledger, entry]``. Frames of a client:

==================  ==========================================================================================
produce             first frame of a producer: ``topic, producer_name`` (null: the topic chooses one),
                    ``access_mode, topic_epoch`` (null, or what ``ready`` said before), ``properties``
publish (binary)    ``id, sizes``: entries with the ids ``id, id+1, …`` and their sizes in bytes
subscribe           first frame of a consumer: ``topic, subscription, consumer_type, consumer_name, priority``
                    (0 is the highest), ``key_shared: {sticky_ranges: [[start, end], …]`` or null,
                    ``allow_out_of_order_delivery}, consumer_properties, initial_position, start`` (null, or a
                    position up to which all is consumed), ``durable, replicated`` (null: as the topic's policies
                    say), ``read_compacted, subscription_properties, create_topic`` (may be left out; false: the
                    topic must exist)
flow                ``permits``: messages that may be sent
ack                 ``id, acks: [[ledger, entry] | [ledger, entry, [[first, last], …]]]``: whole entries, or ranges of
                    batch indexes
ack_cumulative      ``id, position, batch_index`` (null: the whole entry)
redeliver           ``positions`` (null: everything unacknowledged)
restart_seen        the answer to ``restarted``; what the client asked before it was about the former place
seek                ``id``, and one of ``position`` and ``publish_time_ms``; the other is null
last_position       ``id``
unsubscribe         ``id, force``
==================  ==========================================================================================

Frames of a worker:

==================  ==========================================================================================
ready               the first frame was accepted: ``topic`` in its full form, ``cluster``; to a producer also
                    ``producer_name, last_sequence_id`` (-1: none), ``topic_epoch`` (null unless exclusive). A
                    producer that waits for its turn hears nothing before
receipt             ``id, positions: [[ledger, first entry, count], …]``: a publish frame is durable; ``[0, -1]`` is
                    the position of an entry that was dropped because it is stored already
done                ``id``: an acknowledgement is durable, a seek is done, or the subscription is deleted
position            ``id, position``: the topic's last message, ``[0, -1]`` if it has none
error               ``id, error, message``: that request was refused, by the name of the error; with a null id
                    the connection is closed next
redelivering        deliveries after this one come after a ``redeliver`` of everything
restarted           the subscription was put elsewhere: what came before is void. Acknowledgements and ``redeliver``
                    that the worker gets before ``restart_seen`` change nothing; they are answered all the same
active              ``active``: whether this consumer of a Failover subscription is the one that gets messages
closed              ``error, reason``: the worker let go of the consumer, for an error of that name; the connection is
                    closed next
deliver (binary)    ``entries: [[ledger, entry, redelivery count, batch size, bytes, origin, origin ledger,
                    origin entry, acked], …]``; ``acked`` is the base64 of a roaring bitmap, or null
==================  ==========================================================================================

The limits below are those of invariant 11; :mod:`replicator.client.wire.frame_codec` checks them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from replicator.client.errors import PulsarException
from replicator.client.wire.channel import ProducerReady
from replicator.engine.log.entry import ENTRY_BYTES_MAX
from replicator.engine.types import Ack, Delivery, ProducerOptions, SubscribeOptions
from snapshots.position import Position

HEADER_BYTES_MAX: Final = 512 * 1024
FRAME_BYTES_MAX: Final = ENTRY_BYTES_MAX + HEADER_BYTES_MAX + 4
"""One entry of any size always fits, with its header."""
FRAME_BYTES_TARGET: Final = 256 * 1024
"""Senders put entries together up to this: large enough that frames cost little, small enough to keep latency low."""
ENTRIES_PER_FRAME_MAX: Final = 2_000
ACKS_PER_FRAME_MAX: Final = 10_000
INDEXES_PER_FRAME_MAX: Final = 200_000
"""Batch indexes that the ranges of one ack frame may name: twice what the largest batch has. A range is short on the
wire and long in memory."""
VALUES_PER_FRAME_MAX: Final = 250_000
"""Arrays and objects in the JSON of one frame: as many as indexes and acknowledgements can make, and few enough that
reading them does not hold up everybody else."""
PERMITS_MAX: Final = 1_000_000
PRIORITY_MAX: Final = 2**31 - 1
STICKY_RANGES_MAX: Final = 1_000
"""Of one consumer: a share of the 65,536 slots as scattered as anyone needs, and a small frame."""
PROPERTIES_CHARACTERS_MAX: Final = 64 * 1024
"""Names and values of one frame together: a worker keeps them for as long as the consumer or subscription lives."""


class InvalidFrame(PulsarException):
    """A frame that breaks the format or a limit; the text says where."""


@dataclass(frozen=True, slots=True)
class Produce:
    topic: str
    options: ProducerOptions


@dataclass(frozen=True, slots=True)
class Publish:
    request_id: int
    entries: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Subscribe:
    topic: str
    subscription: str
    options: SubscribeOptions
    create_topic: bool = True


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
class RestartSeen:
    pass


@dataclass(frozen=True, slots=True)
class Seek:
    request_id: int
    target: Position | int
    """A position, or a publish time in milliseconds since the epoch."""


@dataclass(frozen=True, slots=True)
class AskLastPosition:
    request_id: int


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    request_id: int
    force: bool


@dataclass(frozen=True, slots=True)
class Ready:
    topic: str
    cluster: str
    producer: ProducerReady | None = None
    """Set for producers."""


@dataclass(frozen=True, slots=True)
class Receipt:
    request_id: int
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class Done:
    request_id: int


@dataclass(frozen=True, slots=True)
class LastPosition:
    request_id: int
    position: Position


@dataclass(frozen=True, slots=True)
class Refusal:
    request_id: int | None
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Redelivering:
    pass


@dataclass(frozen=True, slots=True)
class Restarted:
    pass


@dataclass(frozen=True, slots=True)
class Active:
    active: bool


@dataclass(frozen=True, slots=True)
class Closed:
    error: str
    reason: str


@dataclass(frozen=True, slots=True)
class Deliver:
    deliveries: tuple[Delivery, ...]


Request = (
    Produce
    | Publish
    | Subscribe
    | Flow
    | Acknowledge
    | AcknowledgeCumulative
    | Redeliver
    | RestartSeen
    | Seek
    | AskLastPosition
    | Unsubscribe
)
Reply = Ready | Receipt | Done | LastPosition | Refusal | Redelivering | Restarted | Active | Closed | Deliver
