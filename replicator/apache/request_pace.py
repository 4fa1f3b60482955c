"""Pace of requests to the admin API, if the brokers or a proxy before them limit requests. Pure.

1. An answer 429, or an answer 503 with ``Retry-After``, begins a pause in which nothing goes out. It is as long as the
   answer says, between :data:`PAUSE_FIRST_SECONDS` and :data:`SAID_SECONDS_MAX`. If the answer does not say it, the
   pause is twice as long as the last one, up to :data:`PAUSE_MAX_SECONDS`.
2. Requests that were under way when a pause began, or when an answer made it longer, do not double it again, and do not
   end it.
3. After the pause requests go out one at a time. Each answer halves the next pause. When nothing is left of it,
   requests go out in parallel again.

An answer 503 without ``Retry-After`` concerns one topic, such as one that is just loaded. It delays nothing else.
"""

from __future__ import annotations

from typing import Final

PAUSE_FIRST_SECONDS: Final = 0.5
PAUSE_MAX_SECONDS: Final = 30.0
SAID_SECONDS_MAX: Final = 60.0
"""Longest pause that an answer can ask for, because a limit may be lifted sooner than it says."""


class RequestPace:
    """Pace of the requests to one admin API. Times are those of one clock, in seconds."""

    def __init__(self) -> None:
        self._pause = 0.0
        self._began = 0.0
        self._until = 0.0
        self.refusals = 0
        """Number of answers that told the worker to wait."""

    @property
    def limited(self) -> bool:
        """Return whether requests go out one at a time."""
        return self._pause > 0

    def wait_seconds(self, now: float) -> float:
        """Return for how long no request may go out; 0 if one may."""
        return max(0.0, self._until - now)

    def refused(self, sent: float, now: float, said_seconds: float | None, chance: float) -> bool:
        """Record that the answer to a request sent at ``sent`` says to wait. Return whether that begins a limit.

        ``chance``, from 0 to 1, spreads the pauses of several workers."""
        self.refusals += 1
        begins = not self.limited
        if begins or sent >= self._began:
            self._pause = min(PAUSE_MAX_SECONDS, max(PAUSE_FIRST_SECONDS, 2 * self._pause))
            self._began = now
            if not said_seconds:
                self._until = now + self._pause * (1 - chance / 2)
        if said_seconds:
            until = now + min(SAID_SECONDS_MAX, max(PAUSE_FIRST_SECONDS, said_seconds))
            if until > self._until:
                self._began, self._until = now, until
        return begins

    def answered(self, sent: float) -> bool:
        """Record that a request sent at ``sent`` was answered. Return whether that ends the limit."""
        if not self.limited or sent < self._began:
            return False
        self._pause /= 2
        if self._pause < PAUSE_FIRST_SECONDS:
            self._pause = 0.0
        return not self.limited
