"""Topics that the destination refused: why, and when each is tried again. Pure; the clock is passed in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

REFUSED_SECONDS_MIN: Final = 0.05
"""The shortest pause before a topic that was refused twice is tried again."""


@dataclass(frozen=True, slots=True)
class _Refusal:
    times: int
    due: float
    reason: str


class Refusals:
    """Topics of one link that the destination refused and has not accepted since."""

    def __init__(self) -> None:
        self._refusals: dict[str, _Refusal] = {}

    def note(self, name: str, reason: str, now: float, seconds_max: float) -> float:
        """Record that topic ``name`` was refused. Return the seconds after which to ask the destination again.

        It is 0 the first time, and then grows up to ``seconds_max``."""
        times = self._refusals[name].times if name in self._refusals else 0
        seconds = min(seconds_max, REFUSED_SECONDS_MIN * 2.0 ** min(times, 16)) if times else 0.0
        self._refusals[name] = _Refusal(times + 1, now + seconds, reason)
        return seconds

    def __contains__(self, name: str) -> bool:
        return name in self._refusals

    def is_due(self, name: str, now: float) -> bool:
        """Return whether the topic may be tried now."""
        return name not in self._refusals or self._refusals[name].due <= now

    def reason(self, name: str) -> str:
        """Return why the topic was refused; empty if it was not."""
        return self._refusals[name].reason if name in self._refusals else ""

    def reasons(self) -> Iterator[tuple[str, str]]:
        return ((name, refusal.reason) for name, refusal in self._refusals.items())

    def forget(self, name: str) -> None:
        """Forget the refusals of a topic that the destination takes again, or that is gone."""
        self._refusals.pop(name, None)
