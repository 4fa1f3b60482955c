"""The rate limit of a link, under clocks of every pace."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from replicator.links.token_bucket import BURST_SECONDS, TokenBucket

RATE = 1_000


def test_a_frame_may_overdraw_and_the_next_one_waits_until_that_is_paid_off() -> None:
    bucket = TokenBucket(RATE, 50.0)
    assert bucket.wait_seconds(50.0) == 0
    bucket.take(2_100, 50.0)
    assert bucket.wait_seconds(50.0) == 2.0
    assert bucket.wait_seconds(51.5) == 0.5
    assert bucket.wait_seconds(52.0) == 0


def test_a_pause_earns_no_more_than_one_burst() -> None:
    bucket = TokenBucket(RATE, 0.0)
    bucket.take(100, 1_000.0)
    assert bucket.wait_seconds(1_000.0) == 0
    bucket.take(500, 1_000.0)
    assert bucket.wait_seconds(1_000.0) == 0.5


@given(st.lists(st.tuples(st.integers(0, 5_000), st.floats(0, 3)), max_size=50))
def test_invariant_11_no_more_passes_than_the_rate_a_burst_and_a_frame(frames: list[tuple[int, float]]) -> None:
    bucket = TokenBucket(RATE, 0.0)
    now = 0.0
    passed = 0
    for size, pause in frames:
        now += pause
        now += bucket.wait_seconds(now)
        assert passed <= RATE * (now + BURST_SECONDS) + 1e-3, "what passed before this frame is paid off"
        bucket.take(size, now)
        passed += size
