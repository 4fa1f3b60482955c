from __future__ import annotations

import pytest

from replicator.engine.policies import BacklogQuota, QuotaPolicy
from replicator.engine.upkeep.backlog_quota import Backlog, EvictBytes, EvictOlder, QuotaDecision, decide

NOW_MS = 1_000_000
HOLDING = [QuotaPolicy.PRODUCER_REQUEST_HOLD, QuotaPolicy.PRODUCER_EXCEPTION]


@pytest.mark.parametrize("policy", QuotaPolicy)
def test_within_its_limits_nothing_happens(policy: QuotaPolicy) -> None:
    backlogs = [Backlog("a", 1000, NOW_MS - 5000), Backlog("b", 0)]
    assert decide(BacklogQuota(1000, 5, policy), backlogs, NOW_MS) == QuotaDecision(None)
    assert decide(BacklogQuota(None, None, policy), backlogs, NOW_MS) == QuotaDecision(None)
    assert decide(BacklogQuota(0, 0, policy), [], NOW_MS) == QuotaDecision(None)


@pytest.mark.parametrize("policy", HOLDING)
def test_one_slow_subscription_holds_publishes_and_nobody_is_moved(policy: QuotaPolicy) -> None:
    too_large = [Backlog("slow", 1001, NOW_MS), Backlog("fast", 0)]
    assert decide(BacklogQuota(1000, None, policy), too_large, NOW_MS) == QuotaDecision(policy)
    too_old = [Backlog("slow", 1, NOW_MS - 5001), Backlog("fast", 0)]
    assert decide(BacklogQuota(None, 5, policy), too_old, NOW_MS) == QuotaDecision(policy)


def test_eviction_moves_each_subscription_that_is_over_and_lets_publishes_pass() -> None:
    quota = BacklogQuota(1000, 5, QuotaPolicy.CONSUMER_BACKLOG_EVICTION)
    backlogs = [
        Backlog("large", 1500, NOW_MS),
        Backlog("old", 10, NOW_MS - 9000),
        Backlog("fine", 1000, NOW_MS - 5000),
        Backlog("larger", 4000, NOW_MS),
    ]
    assert decide(quota, backlogs, NOW_MS) == QuotaDecision(
        None, (EvictBytes("large", 600), EvictOlder("old", NOW_MS - 5000), EvictBytes("larger", 3100))
    )
