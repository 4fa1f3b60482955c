"""What one consumer got and acknowledged, and how much of it a second. Sans-IO; counting costs an addition a delivery.

A rate is the mean over the time since it was asked for before the last :data:`WINDOW_SECONDS`, or since the consumer
connected: who asks regularly sees the last half minute to minute, and nothing is kept for who never asks.
"""

from __future__ import annotations

from typing import Final, NamedTuple

WINDOW_SECONDS: Final = 30.0


class Counts(NamedTuple):
    """Since the consumer connected; or of each so much a second."""

    messages: float = 0
    bytes: float = 0
    redelivered: float = 0
    acknowledged: float = 0


class ConsumerFigures:
    """Of one consumer that connected at ``now``, in seconds of any clock."""

    __slots__ = ("_before", "_last", "acknowledged", "bytes", "redelivered")

    def __init__(self, now: float) -> None:
        self.bytes = self.redelivered = self.acknowledged = 0
        self._before = self._last = (now, Counts())

    def rates(self, now: float, messages: int) -> Counts:
        """So much a second, of ``messages`` in all."""
        counts = Counts(messages, self.bytes, self.redelivered, self.acknowledged)
        if now - self._last[0] >= WINDOW_SECONDS:
            self._before, self._last = self._last, (now, counts)
        since, before = self._before
        seconds = max(now - since, 1.0)
        return Counts(*((count - was) / seconds for count, was in zip(counts, before, strict=True)))
