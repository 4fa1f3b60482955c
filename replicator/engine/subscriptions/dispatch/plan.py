"""Values that pass between a dispatcher and its shell: plans to read, entries that were read, and assignments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from snapshots.position import Position


class Candidate(NamedTuple):
    """An entry that may be sent. ``wanted`` is False for markers and consumed entries, which are skipped."""

    position: Position
    messages: int
    """Number of messages in its batch, which it costs in permits."""
    wanted: bool
    unacked: int = 0
    """Number of its messages that are not acknowledged; 0 means all."""
    key_hash: int = 0
    """32-bit hash of its key, which only Key_Shared uses."""
    deliver_at_ms: int = 0
    """Wall-clock time before which it must not be sent. Only Shared and Key_Shared use it."""


@dataclass(frozen=True, slots=True)
class ReadTail:
    """Plan to read the entries after ``after``, to the end of the log."""

    after: Position


@dataclass(frozen=True, slots=True)
class ReadAgain:
    """Plan to read these positions, which are in order. Positions that the log does not have any more are skipped."""

    positions: Sequence[Position]


ReadPlan = ReadTail | ReadAgain


class Assignment(NamedTuple):
    """Assignment of the candidate at index ``candidate`` to ``consumer_id``."""

    consumer_id: int
    candidate: int
    redelivery_count: int


class ActiveChange(NamedTuple):
    """News that a Failover consumer became the active one, or is not any more."""

    consumer_id: int
    active: bool


@dataclass(frozen=True, slots=True)
class UnackedLimits:
    """Limits of unacknowledged messages. At a limit dispatch pauses until half of it is left."""

    per_consumer: int | None = None
    per_subscription: int | None = None
