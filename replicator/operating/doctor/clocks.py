"""Measurement of how far a worker's clock is from ours, by the HTTP header ``Date`` of its answers, with bounds.

``Date`` has whole seconds. A request is sent at our time A, and its answer, which says second S, comes at our time B.
The answer was made at one of our times in [A, B] and one of its times in [S, S + 1). So its clock is ahead of ours by
more than S - B and less than S + 1 - A. What several answers allow together is narrower; an answer just after a second
began is worth the most. So any worker, of any version, tells its clock, to whoever asks.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Offset:
    """Seconds by which a clock is ahead of ours: at least and at most."""

    least: float = float("-inf")
    most: float = float("inf")

    def narrowed(self, sent: float, received: float, second: float) -> Offset:
        """Return the bounds after one more answer. If answers contradict each other, the clock was set meanwhile, and
        the new answer counts.
        """
        least, most = second - received, second + 1 - sent
        narrower = Offset(max(self.least, least), min(self.most, most))
        return narrower if narrower.least <= narrower.most else Offset(least, most)

    @property
    def middle(self) -> float:
        return (self.least + self.most) / 2

    @property
    def bound(self) -> float:
        """Return how far the middle of the bounds may be from the truth."""
        return (self.most - self.least) / 2

    @property
    def min_offset(self) -> float:
        """Return the least difference of the clocks, whatever is true."""
        return max(0.0, self.least, -self.most)
