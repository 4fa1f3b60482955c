"""Values of producers and subscriptions: options, deliveries, acknowledgements, and entries read from the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from snapshots.position import BEFORE_ALL, Position

DUPLICATE: Final = BEFORE_ALL
"""Position that stands for a duplicate in a receipt: deduplication did not store the entry, because it is stored
already."""
END_LEDGER: Final = 2**63 - 1
"""Ledger of the position after every message, as upstream's clients use it."""


class SubscriptionType(Enum):
    """Way in which a subscription shares its topic among consumers."""

    EXCLUSIVE = "Exclusive"
    FAILOVER = "Failover"
    SHARED = "Shared"
    KEY_SHARED = "Key_Shared"

    @property
    def one_active(self) -> bool:
        """Whether one consumer gets everything, in order, so that acknowledgements may be cumulative."""
        return self in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)


class InitialPosition(Enum):
    """Position at which a subscription starts that its first consumer creates."""

    LATEST = "Latest"
    EARLIEST = "Earliest"


class AccessMode(Enum):
    """Way in which a producer shares its topic with other producers."""

    SHARED = "Shared"
    EXCLUSIVE = "Exclusive"
    """The producer is refused with :class:`ProducerFenced` while another producer is connected."""
    WAIT_FOR_EXCLUSIVE = "WaitForExclusive"
    """The producer waits until no other producer is connected."""
    EXCLUSIVE_WITH_FENCING = "ExclusiveWithFencing"
    """The producer disconnects all others."""


class HashRange(NamedTuple):
    """Slots ``start`` to ``end`` of 65,536, both included."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class KeySharedPolicy:
    """Options of a Key_Shared consumer. Consumers of one subscription must agree on the kind and the ordering."""

    sticky_ranges: tuple[HashRange, ...] | None = None
    """Slots that the consumer wants; None lets the subscription assign them."""
    allow_out_of_order_delivery: bool = False


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """Program that connects a producer or a consumer over the network. It is only used for figures."""

    address: str
    software: str
    """Library and version, as the client states them."""
    connected_at_ms: int


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """Options of a connecting consumer, and of the subscription that it creates if there is none."""

    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    consumer_name: str = ""
    priority: int = 0
    """Priority; 0 is the highest."""
    key_shared: KeySharedPolicy = KeySharedPolicy()
    consumer_properties: Mapping[str, str] = field(default_factory=dict)
    initial: InitialPosition = InitialPosition.LATEST
    start: Position | None = None
    """Position up to which everything counts as consumed in a subscription that this consumer creates; overrides
    ``initial``."""
    durable: bool = True
    """Whether the subscription outlives its last consumer. If not, it also holds no message back from retention."""
    replicated: bool | None = None
    """Whether acknowledgements are announced to other clusters. None does not change an existing subscription, and lets
    the topic's policies decide for a new one."""
    read_compacted: bool = False
    """Whether the subscription reads only the newest message of each key, as far as the topic is compacted; Exclusive
    and Failover only. It is a property of the subscription, so later consumers do not get compacted messages either."""
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    client: ClientInfo | None = None


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """Options of a connecting producer. Without a name, the topic chooses an unused one."""

    name: str | None = None
    access_mode: AccessMode = AccessMode.SHARED
    topic_epoch: int | None = None
    """Epoch that an exclusive producer got before it lost its connection, with which it takes its place again."""
    properties: Mapping[str, str] = field(default_factory=dict)
    client: ClientInfo | None = None


class Delivery(NamedTuple):
    """One entry on its way to a consumer. It is a tuple, like :class:`LoggedEntry`: a frozen dataclass takes twice as
    long to make, and one is made for each entry on either side of the wire.

    ``acked`` is the serialized roaring bitmap of the batch indexes that are acknowledged already, or None.
    """

    position: Position
    redelivery_count: int
    batch_size: int
    acked: bytes | None
    entry: bytes
    origin: str
    origin_position: Position


@dataclass(frozen=True, slots=True)
class Ack:
    """An individual acknowledgement: of a whole entry, or of some indexes of its batch."""

    position: Position
    batch_indexes: tuple[int, ...] | None = None
    batch_size: int = field(default=0, compare=False)
    """Number of messages in the batch, as far as the client knows; 0: unknown. The engine uses the number in the
    log."""


class LoggedEntry(NamedTuple):
    """An entry as it is read from the log for a subscription.

    ``compacted_out`` is the serialized roaring bitmap of the batch indexes that the compacted view leaves out, or None.
    """

    position: Position
    batch_size: int
    marker: bool
    entry: memoryview
    origin: str
    origin_position: Position
    compacted_out: bytes | None = None


ReadEntries = Callable[[Position, Position | None, int, int], list[LoggedEntry]]
"""Function that returns entries in (after, upto], up to a number and a number of bytes, at least one if there is
one."""
