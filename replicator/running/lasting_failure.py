"""Log lines about a failure that lasts: one when it begins, one an hour while it lasts, and one when it ends.

Something that is tried again for ever may fail for days. A line for each attempt would fill the log and hide everything
else.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

REPEAT_SECONDS: Final = 3600.0
"""Seconds between two lines about a failure that lasts."""


class LastingFailure:
    """Failures of one action that is tried again and again: decides which of them are logged."""

    __slots__ = ("_clock", "_logged_at", "_since", "attempts")

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None
        self._logged_at = 0.0
        self.attempts = 0
        """Number of attempts that failed since one succeeded last."""

    def failed(self) -> bool:
        """Note that an attempt failed, and return whether the caller must log it."""
        now = self._clock()
        self.attempts += 1
        if self._since is None:
            self._since = now
        elif now - self._logged_at < REPEAT_SECONDS:
            return False
        self._logged_at = now
        return True

    def ended(self) -> float | None:
        """Note that an attempt succeeded. Return the seconds since the first failure; None if none came before it."""
        since, self._since, self.attempts = self._since, None, 0
        return None if since is None else self._clock() - since
