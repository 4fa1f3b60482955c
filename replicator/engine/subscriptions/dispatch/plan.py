"""The values that pass between a dispatcher and its shell: what to read, what was read, and who gets it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from snapshots.position import Position


class Candidate(NamedTuple):
    """An entry that may be sent. ``wanted`` is False for markers and for what is consumed: it is passed over."""

    position: Position
    messages: int
    """The size of its batch: what it costs in permits."""
    wanted: bool
    unacked: int = 0
    """How many of its messages are not acknowledged; 0 means all."""
    key_hash: int = 0
    """The 32-bit hash of its key; only Key_Shared looks at it."""
    deliver_at_ms: int = 0
    """Not to be sent before then, by the wall clock; only Shared and Key_Shared look at it."""


@dataclass(frozen=True, slots=True)
class ReadTail:
    """Read what follows ``after``, to the end of the log."""

    after: Position


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """Read these positions, which are in order. One that the log does not have any more is left out."""

    positions: Sequence[Position]


ReadPlan = ReadTail | ReadAgain


class Assignment(NamedTuple):
    """The candidate at index ``candidate`` goes to ``consumer_id``."""

    consumer_id: int
    candidate: int
    redelivery_count: int


class ActiveChange(NamedTuple):
    """A Failover consumer became the active one, or is not any more."""

    consumer_id: int
    active: bool


@dataclass(frozen=True, slots=True)
class UnackedLimits:
    """Messages that may be sent and not acknowledged; at a limit dispatch pauses until half of it is left."""

    per_consumer: int | None = None
    per_subscription: int | None = None
