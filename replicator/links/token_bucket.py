"""The rate limit of a link. Pure; the clock is passed in.

Invariant (DESIGN §3): 11. Over any time t no more is let through than ``rate * t``, one burst, and one frame.

1. The bucket holds at most :data:`BURST_SECONDS` worth of bytes, and starts full.
2. A frame is never cut: it takes what it has, and may leave the bucket in debt.
3. The next frame waits until the debt is paid off.
"""

from __future__ import annotations

from typing import Final

BURST_SECONDS: Final = 0.1
"""Burst, in seconds at the full rate. It makes up for short pauses, and is so short that the rate holds each second."""


class TokenBucket:
    """Token bucket of ``rate_bytes`` per second. ``now_seconds`` is from any clock that does not go back."""

    def __init__(self, rate_bytes: int, now_seconds: float) -> None:
        assert rate_bytes > 0
        self.rate_bytes = rate_bytes
        self._burst_bytes = rate_bytes * BURST_SECONDS
        self._left_bytes = self._burst_bytes
        self._at_seconds = now_seconds

    def wait_seconds(self, now_seconds: float) -> float:
        """Return how long the next frame must wait; 0 if it may go."""
        self._fill(now_seconds)
        return max(0.0, -self._left_bytes / self.rate_bytes)

    def take(self, size_bytes: int, now_seconds: float) -> None:
        """Take the bytes of a frame of that size out of the bucket."""
        self._fill(now_seconds)
        self._left_bytes -= size_bytes

    def _fill(self, now_seconds: float) -> None:
        assert now_seconds >= self._at_seconds, "the clock went back"
        earned = (now_seconds - self._at_seconds) * self.rate_bytes
        self._left_bytes = min(self._burst_bytes, self._left_bytes + earned)
        self._at_seconds = now_seconds
