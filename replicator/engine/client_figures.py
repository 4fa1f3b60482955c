"""Counts and rates of one client: messages that a consumer got and acknowledged, or that a producer published. Sans-IO.

The code that serves the client counts, with one addition for each delivery, and nothing for each message.

A rate is the mean since a call that is at least :data:`WINDOW_SECONDS` old, or since the client connected. With regular
calls that is the last half minute to minute. Without calls nothing is kept.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

WINDOW_SECONDS: Final = 30.0


class Counts(NamedTuple):
    """Counts since the client connected, or rates per second."""

    messages: float = 0
    bytes: float = 0
    redelivered: float = 0
    acknowledged: float = 0


class ClientFigures:
    """Figures of one client that connected at ``now``, in seconds of any clock."""

    __slots__ = ("_before", "_last", "acknowledged", "bytes", "messages", "redelivered")

    def __init__(self, now: float) -> None:
        self.messages = self.bytes = self.redelivered = self.acknowledged = 0
        self._before = self._last = (now, Counts())

    @property
    def counts(self) -> Counts:
        return Counts(self.messages, self.bytes, self.redelivered, self.acknowledged)

    def rates(self, now: float) -> Counts:
        """Return the rates per second."""
        counts = self.counts
        if now - self._last[0] >= WINDOW_SECONDS:
            self._before, self._last = self._last, (now, counts)
        since, before = self._before
        seconds = max(now - since, 1.0)
        return Counts(*((count - was) / seconds for count, was in zip(counts, before, strict=True)))


def total(of: Iterable[Counts]) -> Counts:
    """Return the sum of all counts."""
    return Counts(*map(sum, zip(Counts(), *of, strict=True)))
