"""Values of subscriptions: what consumers ask for, get and acknowledge, and what is read from the log for them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from snapshots.position import Position


class SubscriptionType(Enum):
    """How a subscription shares its topic among consumers."""

    EXCLUSIVE = "Exclusive"
    SHARED = "Shared"


class InitialPosition(Enum):
    """Where a subscription that is made by its first consumer starts."""

    LATEST = "Latest"
    EARLIEST = "Earliest"


@dataclass(frozen=True, slots=True)
class Delivery:
    """One entry on its way to a consumer.

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


class LoggedEntry(NamedTuple):
    """An entry as it is read from the log for a subscription."""

    position: Position
    batch_size: int
    marker: bool
    entry: memoryview
    origin: str
    origin_position: Position
