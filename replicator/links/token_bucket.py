"""The rate limit of a link. Pure; the clock is passed in.

Invariant (DESIGN §3): 11. Over any time t no more is let through than ``rate * t``, one burst, and one frame.

1. The bucket holds at most :data:`BURST_SECONDS` worth of bytes, and starts full.
2. A frame is never cut: it takes what it has, and may leave the bucket in debt.
3. The next frame waits until the debt is paid off.
"""

from __future__ import annotations

from typing import Final

BURST_SECONDS: Final = 0.1
"""So that a rate means the same over a second as over an hour, and short pauses are not lost."""


class TokenBucket:
    """``rate_bytes`` per second; ``now_seconds`` is of any clock that does not go back."""

    def __init__(self, rate_bytes: int, now_seconds: float) -> None:
        assert rate_bytes > 0
        self.rate_bytes = rate_bytes
        self._burst_bytes = rate_bytes * BURST_SECONDS
        self._left_bytes = self._burst_bytes
        self._at_seconds = now_seconds

    def wait_seconds(self, now_seconds: float) -> float:
        """How long the next frame has to wait; 0 if it may go."""
        self._fill(now_seconds)
        return max(0.0, -self._left_bytes / self.rate_bytes)

    def take(self, size_bytes: int, now_seconds: float) -> None:
        """A frame of that size goes."""
        self._fill(now_seconds)
        self._left_bytes -= size_bytes

    def _fill(self, now_seconds: float) -> None:
        assert now_seconds >= self._at_seconds, "the clock went back"
        earned = (now_seconds - self._at_seconds) * self.rate_bytes
        self._left_bytes = min(self._burst_bytes, self._left_bytes + earned)
        self._at_seconds = now_seconds
