"""What happens when a subscription's backlog is over the topic's quota. Pure decisions; the shell carries them out.

The backlog of a subscription is the log above its mark-delete position; its age is that of the oldest message that it
has not consumed. Only durable subscriptions count: others hold nothing.

1. A backlog over either limit exceeds the quota.
2. Where the policy says to hold or refuse publishes, that is what follows, until no backlog is over a limit.
3. Where it says to evict: a backlog that is too large is cut to :data:`EVICTED_TO` of the limit, so that not every
   publish evicts again; from one that is too old goes what is older than the limit. Each such subscription moves,
   not the slowest alone: the next slowest would be over the limit as well.

Source: upstream's backlog quotas (``BacklogQuotaManager``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from replicator.engine.policies import BacklogQuota, QuotaPolicy

EVICTED_TO: Final = 0.9
"""As upstream."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """What a durable subscription has not consumed; ``oldest_ms`` is when its oldest message was published."""

    subscription: str
    size_bytes: int
    oldest_ms: int | None = None
    """None if there is none."""


@dataclass(frozen=True, slots=True)
class EvictBytes:
    """Move the subscription over its oldest ``size_bytes`` bytes, or the least number of blocks that has as many."""

    subscription: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EvictOlder:
    """Move the subscription over what was published before ``published_before_ms``."""

    subscription: str
    published_before_ms: int


@dataclass(frozen=True, slots=True)
class QuotaDecision:
    """``publishes`` says what is to be done to them, None that they may pass."""

    publishes: QuotaPolicy | None
    evictions: tuple[EvictBytes | EvictOlder, ...] = ()


def decide(quota: BacklogQuota, backlogs: Iterable[Backlog], now_ms: int) -> QuotaDecision:
    """What follows from the backlogs as they are."""
    evictions: list[EvictBytes | EvictOlder] = []
    bytes_max, age_max = quota.bytes_max, quota.age_seconds_max
    for backlog in backlogs:
        if bytes_max is not None and backlog.size_bytes > bytes_max:
            evictions.append(EvictBytes(backlog.subscription, backlog.size_bytes - int(EVICTED_TO * bytes_max)))
        if age_max is not None and backlog.oldest_ms is not None and backlog.oldest_ms < now_ms - 1000 * age_max:
            evictions.append(EvictOlder(backlog.subscription, now_ms - 1000 * age_max))
    if not evictions:
        return QuotaDecision(None)
    if quota.policy is QuotaPolicy.CONSUMER_BACKLOG_EVICTION:
        return QuotaDecision(None, tuple(evictions))
    return QuotaDecision(quota.policy)
