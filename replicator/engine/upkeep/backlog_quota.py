"""Decisions about subscriptions whose backlog exceeds the topic's quota. Pure; the shell carries them out.

The backlog of a subscription is the log above its mark-delete position; its age is that of the oldest message that it
has not consumed. Only durable subscriptions count, because others keep nothing in the log.

1. A backlog over either limit exceeds the quota.
2. If the policy says to hold or refuse publishes, do so until no backlog is over a limit.
3. If the policy says to evict, cut a backlog that is too large to :data:`EVICTED_TO` of the limit, so that not every
   publish evicts again. From a backlog that is too old, remove the messages older than the limit. Do so with each such
   subscription and not only with the slowest one, because the next slowest would be over the limit, too.

Source: upstream's backlog quotas (``BacklogQuotaManager``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from replicator.engine.policies import BacklogQuota, QuotaPolicy

EVICTED_TO: Final = 0.9
"""Share of the limit to which a backlog is cut, as upstream."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """Unconsumed part of the log for a durable subscription."""

    subscription: str
    size_bytes: int
    oldest_ms: int | None = None
    """Publish time of the oldest unconsumed message; None if there is none."""


@dataclass(frozen=True, slots=True)
class EvictBytes:
    """Decision to move the subscription over its oldest ``size_bytes`` bytes, or over the fewest blocks that have as
    many."""

    subscription: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class EvictOlder:
    """Decision to move the subscription over messages published before ``published_before_ms``."""

    subscription: str
    published_before_ms: int


@dataclass(frozen=True, slots=True)
class QuotaDecision:
    """Decision for a topic. ``publishes`` is the policy to apply to publishes; None lets them pass."""

    publishes: QuotaPolicy | None
    evictions: tuple[EvictBytes | EvictOlder, ...] = ()


def decide(quota: BacklogQuota, backlogs: Iterable[Backlog], now_ms: int) -> QuotaDecision:
    """Return the decision for the present backlogs."""
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
