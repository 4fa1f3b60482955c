"""When a link holds back more than it may."""

from __future__ import annotations

from replicator.engine.upkeep.hold_quota import HeldData, HoldQuota, exceeded


def test_either_limit_is_exceeded_by_itself_and_no_limit_never() -> None:
    now_ms = 100_000
    assert not exceeded(HoldQuota(), HeldData(10**15, 0), now_ms)
    assert not HoldQuota().limited
    assert exceeded(HoldQuota(bytes_max=10), HeldData(11), now_ms)
    assert not exceeded(HoldQuota(bytes_max=10), HeldData(10), now_ms)
    assert exceeded(HoldQuota(age_seconds_max=50), HeldData(0, 49_999), now_ms)
    assert not exceeded(HoldQuota(age_seconds_max=50), HeldData(0, 50_000), now_ms)
    assert not exceeded(HoldQuota(age_seconds_max=50), HeldData(0), now_ms)
