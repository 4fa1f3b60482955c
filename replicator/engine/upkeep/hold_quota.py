"""Quota for the part of a topic's log that a link may keep from retention, and its check. Pure.

A link that is slow, paused or cut off holds the log back at the position up to which its destination has it. Its quota
counts what only the link holds back: the log above that position, up to where every subscription is done.

1. The quota is exceeded by more bytes than ``bytes_max``, or by a message older than ``age_seconds_max``.
2. Then ``hold`` still holds the log back, and reports it loudly. ``release`` lets retention go on as if the link were
   not there, and the link will find a gap. ``refuse-producers`` holds the log back and refuses publishes.
3. This ends when the link has come so far that its quota is kept.

Source: replication slots of databases, which end in a full disk or in a slot that is silently lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HOLD: Final = "hold"
RELEASE: Final = "release"
REFUSE_PRODUCERS: Final = "refuse-producers"


@dataclass(frozen=True, slots=True)
class HoldQuota:
    """Limits of one holder; None is no limit. ``policy`` says what to do if they are exceeded."""

    bytes_max: int | None = None
    age_seconds_max: int | None = None
    policy: str = HOLD

    @property
    def limited(self) -> bool:
        return self.bytes_max is not None or self.age_seconds_max is not None


@dataclass(frozen=True, slots=True)
class HeldData:
    """Data that only this holder keeps from retention. ``oldest_ms`` is the publish time of its oldest message."""

    size_bytes: int
    oldest_ms: int | None = None


def exceeded(quota: HoldQuota, held: HeldData, now_ms: int) -> bool:
    """Return whether the holder keeps more than the quota allows."""
    if quota.bytes_max is not None and held.size_bytes > quota.bytes_max:
        return True
    age_max = quota.age_seconds_max
    return age_max is not None and held.oldest_ms is not None and held.oldest_ms < now_ms - 1000 * age_max
