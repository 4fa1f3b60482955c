"""How long what waits for several names waits: for each of them a limited time, and only once. Pure.

While a name stays missing it is not waited for again, whatever comes meanwhile: of what is done again and again, only
the first time is late. Another name that comes to be missing then has its own time. One that was there, and is missing
again, is waited for again.
"""

from __future__ import annotations

from collections.abc import Set


class AwaitedNames:
    """Waits for each name ``seconds_max`` at most."""

    __slots__ = ("_missing_since", "_seconds_max")

    def __init__(self, seconds_max: float) -> None:
        self._seconds_max = seconds_max
        self._missing_since: dict[str, float] = {}

    def wait(self, missing: Set[str], now: float) -> bool:
        """Whether to wait still, while these are missing."""
        self._missing_since = {name: self._missing_since.get(name, now) for name in missing}
        return any(now - since < self._seconds_max for since in self._missing_since.values())
