"""Waiting for missing names: a limited time for each name, and only once. Pure.

While a name stays missing, nobody waits for it again, so repeated work is late only the first time. Each name that is
missing later has its own time. A name that was there, and is missing again, is waited for again.
"""

from __future__ import annotations

from collections.abc import Set


class MissingNames:
    """Decides how long to wait for missing names: at most ``seconds_max`` for each."""

    __slots__ = ("_missing_since", "_seconds_max")

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._missing_since: dict[str, float] = {}

    def wait(self, missing: Set[str], now: float) -> bool:
        """Return whether to go on waiting while the names ``missing`` are missing."""
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        return any(now - since < self._seconds_max for since in self._missing_since.values())
