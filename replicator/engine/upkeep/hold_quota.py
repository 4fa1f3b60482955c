"""How much of a topic's log a link may keep from retention, and whether it keeps more. Pure.

A link that is slow, paused or cut off holds the log back at the position up to which its destination has it. Against
its quota counts what it holds back alone: the log above that position, up to what every subscription is done with.

1. More bytes than ``bytes_max``, or an oldest message older than ``age_seconds_max``: the quota is exceeded.
2. ``hold``: the log is held back all the same, and it is said loudly. ``release``: retention goes on as if the link
   were not there, and the link will find a gap. ``refuse-producers``: the log is held back and publishes are refused.
3. It is over when the link has come up to where its quota is kept.

Source: replication slots of databases, whose limit is either a full disk or a slot that is lost in silence.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HOLD: Final = "hold"
RELEASE: Final = "release"
REFUSE_PRODUCERS: Final = "refuse-producers"


@dataclass(frozen=True, slots=True)
class HoldQuota:
    """Limits of one holder; None is no limit. ``policy`` is what happens past them."""

    bytes_max: int | None = None
    age_seconds_max: int | None = None
    policy: str = HOLD

    @property
    def limited(self) -> bool:
        return self.bytes_max is not None or self.age_seconds_max is not None


@dataclass(frozen=True, slots=True)
class Held:
    """What a holder keeps that nobody else needs; ``oldest_ms`` is when its oldest message was published."""

    size_bytes: int
    oldest_ms: int | None = None


def exceeded(quota: HoldQuota, held: Held, now_ms: int) -> bool:
    """Whether more is held than the quota allows."""
    if quota.bytes_max is not None and held.size_bytes > quota.bytes_max:
        return True
    age_max = quota.age_seconds_max
    return age_max is not None and held.oldest_ms is not None and held.oldest_ms < now_ms - 1000 * age_max
