"""What one consumer got and acknowledged, or one producer published, and how much of it a second. Sans-IO.

Whoever serves the client counts, so that it costs an addition a delivery, and nothing a message.

A rate is the mean over the time since it was asked for before the last :data:`WINDOW_SECONDS`, or since the client
connected: who asks regularly sees the last half minute to minute, and nothing is kept for who never asks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

WINDOW_SECONDS: Final = 30.0


class Counts(NamedTuple):
    """Since the client connected; or of each so much a second."""

    messages: float = 0
    bytes: float = 0
    redelivered: float = 0
    acknowledged: float = 0


class ClientFigures:
    """Of one client that connected at ``now``, in seconds of any clock."""

    __slots__ = ("_before", "_last", "acknowledged", "bytes", "messages", "redelivered")

    def __init__(self, now: float) -> None:
        self.messages = self.bytes = self.redelivered = self.acknowledged = 0
        self._before = self._last = (now, Counts())

    @property
    def counts(self) -> Counts:
        return Counts(self.messages, self.bytes, self.redelivered, self.acknowledged)

    def rates(self, now: float) -> Counts:
        """So much a second."""
        counts = self.counts
        if now - self._last[0] >= WINDOW_SECONDS:
            self._before, self._last = self._last, (now, counts)
        since, before = self._before
        seconds = max(now - since, 1.0)
        return Counts(*((count - was) / seconds for count, was in zip(counts, before, strict=True)))


def total(of: Iterable[Counts]) -> Counts:
    """All together."""
    return Counts(*map(sum, zip(Counts(), *of, strict=True)))
