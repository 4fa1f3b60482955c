"""Values of producers and subscriptions: what users ask for, get and acknowledge, and what is read from the log."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from snapshots.position import BEFORE_ALL, Position

DUPLICATE: Final = BEFORE_ALL
"""The position in the receipt of an entry that deduplication dropped: it is stored already, under another position."""
END_LEDGER: Final = 2**63 - 1
"""The ledger of the position after every message, as upstream's clients name it."""


class SubscriptionType(Enum):
    """How a subscription shares its topic among consumers."""

    EXCLUSIVE = "Exclusive"
    FAILOVER = "Failover"
    SHARED = "Shared"
    KEY_SHARED = "Key_Shared"

    @property
    def one_active(self) -> bool:
        """Whether one consumer gets everything, in order: then acknowledgements may be cumulative."""
        return self in (SubscriptionType.EXCLUSIVE, SubscriptionType.FAILOVER)


class InitialPosition(Enum):
    """Where a subscription that is made by its first consumer starts."""

    LATEST = "Latest"
    EARLIEST = "Earliest"


class AccessMode(Enum):
    """How a producer shares its topic with other producers."""

    SHARED = "Shared"
    EXCLUSIVE = "Exclusive"
    """Refused with :class:`ProducerFenced` while another producer is connected."""
    WAIT_FOR_EXCLUSIVE = "WaitForExclusive"
    """Waits until no other producer is connected."""
    EXCLUSIVE_WITH_FENCING = "ExclusiveWithFencing"
    """Disconnects the others."""


class HashRange(NamedTuple):
    """Slots ``start`` to ``end`` of 65,536, both included."""

    start: int
    end: int


@dataclass(frozen=True, slots=True)
class KeySharedPolicy:
    """What a Key_Shared consumer asks for. Consumers of one subscription must agree on the kind and the ordering."""

    sticky_ranges: tuple[HashRange, ...] | None = None
    """The consumer's own slots; None lets the subscription assign them."""
    allow_out_of_order_delivery: bool = False


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """The program that connects a producer or a consumer over the network, for figures alone."""

    address: str
    software: str
    """Its library and version, as it says."""
    connected_at_ms: int


@dataclass(frozen=True, slots=True)
class SubscribeOptions:
    """One consumer as it connects, and the subscription that it makes if there is none."""

    type: SubscriptionType = SubscriptionType.EXCLUSIVE
    consumer_name: str = ""
    priority: int = 0
    """0 is the highest."""
    key_shared: KeySharedPolicy = KeySharedPolicy()
    consumer_properties: Mapping[str, str] = field(default_factory=dict)
    initial: InitialPosition = InitialPosition.LATEST
    start: Position | None = None
    """All up to here is consumed in a subscription that this consumer makes; overrides ``initial``."""
    durable: bool = True
    """A subscription that is not durable is gone with its last consumer, and holds no message back from retention."""
    replicated: bool | None = None
    """Whether other clusters are told what is consumed; None leaves a subscription as it is, and gives one that is made
    what its topic's policies say."""
    read_compacted: bool = False
    """Only the newest message of each key, as far as the topic is compacted; Exclusive and Failover only. It stays with
    the subscription: what was compacted away meanwhile is not there for its later consumers either."""
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    client: ClientInfo | None = None


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """One producer as it connects; no name lets the topic choose one that nobody has."""

    name: str | None = None
    access_mode: AccessMode = AccessMode.SHARED
    topic_epoch: int | None = None
    """What an exclusive producer was given before it lost its connection; lets it take its place again."""
    properties: Mapping[str, str] = field(default_factory=dict)
    client: ClientInfo | None = None


class Delivery(NamedTuple):
    """One entry on its way to a consumer. A tuple, as :class:`LoggedEntry`: a frozen dataclass takes twice as
    long to make, and one is made of each entry on either side of the wire.

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
    """How many messages the batch has, as far as a client knows; 0: unknown. The engine goes by the log."""


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
"""Reads entries in (after, upto], at most so many and so many bytes, at least one if there is one."""
