"""When the next request to the admin API may go out, if the brokers, or who stands before them, limit requests. Pure.

1. An answer 429, or one of 503 that says when to come back, begins a pause: as long as the answer says, between
   :data:`PAUSE_FIRST_SECONDS` and :data:`SAID_SECONDS_MAX`; else twice as long as the last one, up to
   :data:`PAUSE_MAX_SECONDS`. Nothing goes out meanwhile.
2. Requests that were under way when a pause began, or when an answer made it longer, do not double it again, and do not
   end it.
3. After the pause requests go out one at a time. Each that is answered halves the next pause; when nothing is left of
   it, they go out beside each other again.

An answer 503 that says nothing is of one topic, such as one that is just loaded, and holds up nobody else.
"""

from __future__ import annotations

from typing import Final

PAUSE_FIRST_SECONDS: Final = 0.5
PAUSE_MAX_SECONDS: Final = 30.0
SAID_SECONDS_MAX: Final = 60.0
"""Who says an hour is asked again after a minute: a limit may be lifted sooner."""


class RequestPace:
    """Times are those of one clock, in seconds."""

    def __init__(self) -> None:
        self._pause = 0.0
        self._began = 0.0
        self._until = 0.0
        self.refusals = 0
        """Answers that told the worker to wait."""

    @property
    def limited(self) -> bool:
        """Whether requests go out one at a time."""
        return self._pause > 0

    def wait_seconds(self, now: float) -> float:
        """So long nothing goes out."""
        return max(0.0, self._until - now)

    def refused(self, sent: float, now: float, said_seconds: float | None, chance: float) -> bool:
        """A request that went out at ``sent`` is to wait; ``chance`` from 0 to 1 keeps workers apart. Returns whether
        requests were not limited before."""
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
        """A request that went out at ``sent`` had its answer. Returns whether requests are limited no more."""
        if not self.limited or sent < self._began:
            return False
        self._pause /= 2
        if self._pause < PAUSE_FIRST_SECONDS:
            self._pause = 0.0
        return not self.limited
