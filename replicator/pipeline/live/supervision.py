"""Supervision of live copy: it decides which queries run, one for each link that its worker lists. Pure; the clock is
passed in.

1. Every link in the worker's listing has a query. If its entry changes (another address, another filter), the query is
   stopped, and started as it is listed now. If the link is not listed any more, the query is stopped.
2. A query that ended by itself has failed. It is started again after a pause that doubles with each failure, from
   :data:`PAUSE_SECONDS_MIN` to :data:`PAUSE_SECONDS_MAX`; one that ran for :data:`HEALTHY_SECONDS` begins anew.
3. A link whose entry changed does not wait: the cause of its failure may be gone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

PAUSE_SECONDS_MIN: Final = 1.0
PAUSE_SECONDS_MAX: Final = 60.0
"""Longest pause before a failed query is started again. Each start costs a second of Spark's work."""
HEALTHY_SECONDS: Final = 120.0

_OF_THE_MOMENT: Final = frozenset({"state", "detail"})
"""Fields of a listed link that change without a restart of its query."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start the query of link ``key``, which is listed as ``link``."""

    key: str
    link: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the query of link ``key``."""

    key: str


@dataclass(frozen=True, slots=True)
class _Failure:
    times: int
    due_seconds: float


class Supervisor:
    """Core of the supervision. Events come in by the methods; :meth:`actions` returns what to do.

    Times are seconds of a clock that does not go back."""

    def __init__(self) -> None:
        self._wanted: dict[str, str] = {}
        """Entry of each link in the listing, as text that can be compared."""
        self._running: dict[str, tuple[str, float]] = {}
        """Entry with which each link's query was started, and the time of the start."""
        self._failed: dict[str, _Failure] = {}

    def on_links(self, links: Iterable[Mapping[str, Any]]) -> None:
        """Handle the worker's listing of links."""
        wanted = {}
        for link in links:
            fields = {name: value for name, value in link.items() if name not in _OF_THE_MOMENT}
            wanted[str(link["key"])] = json.dumps(fields, sort_keys=True)
        for key in list(self._failed):
            if wanted.get(key) != self._wanted.get(key):
                del self._failed[key]
        self._wanted = wanted

    def on_ended(self, key: str, now_seconds: float) -> None:
        """Handle a query that ended, or could not be started, without having been stopped."""
        _, since_seconds = self._running.pop(key)
        times = 0
        if key in self._failed and now_seconds - since_seconds < HEALTHY_SECONDS:
            times = self._failed[key].times
        pause_seconds = min(PAUSE_SECONDS_MAX, PAUSE_SECONDS_MIN * 2.0 ** min(times, 16))
        self._failed[key] = _Failure(times + 1, now_seconds + pause_seconds)

    def actions(self, now_seconds: float) -> list[Start | Stop]:
        """Return the actions to do now; they count as done."""
        actions: list[Start | Stop] = []
        for key, (fields, _) in list(self._running.items()):
            if self._wanted.get(key) != fields:
                del self._running[key]
                actions.append(Stop(key))
        for key, fields in self._wanted.items():
            failure = self._failed.get(key)
            if key not in self._running and (failure is None or failure.due_seconds <= now_seconds):
                self._running[key] = (fields, now_seconds)
                actions.append(Start(key, json.loads(fields)))
        return actions
