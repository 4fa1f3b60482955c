"""The sum of the backlogs of a link's topics, with bounded work for each question. Pure.

Invariant 11: thousands of topics may be late, and counting the backlog of each would hold up all clients of a worker.

1. Whoever moves a topic says so. That costs a dictionary's entry.
2. A question counts at most :data:`COUNTED_AT_ONCE` of the topics that moved, those that moved first. Others count with
   the figure that they had before.
3. The link counts the rest every few seconds, a part in each turn of the event loop (:meth:`BacklogSum.count`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

COUNTED_AT_ONCE: Final = 200
"""Some three milliseconds."""


class BacklogSum:
    """The sum of the backlogs of topics. ``backlog_of`` counts the backlog of one topic."""

    def __init__(self, backlog_of: Callable[[str], int]) -> None:
        self._backlog_of = backlog_of
        self._moved: dict[str, None] = {}
        """Topics that moved since they were counted, in that order."""
        self._counted: dict[str, int] = {}
        """Backlogs that are not 0, as they were counted last."""
        self._total = 0

    def moved(self, name: str) -> None:
        """Note that the backlog of a topic may have changed."""
        self._moved[name] = None

    def forget(self, name: str) -> None:
        """Leave out a topic that the link carries no more."""
        self._moved.pop(name, None)
        self._total -= self._counted.pop(name, 0)

    def count(self) -> bool:
        """Count at most :data:`COUNTED_AT_ONCE` topics again; return whether all figures are up to date now."""
        for name in list(islice(self._moved, COUNTED_AT_ONCE)):
            del self._moved[name]
            backlog = self._backlog_of(name)
            self._total += backlog - self._counted.pop(name, 0)
            if backlog:
                self._counted[name] = backlog
        return not self._moved

    def figures(self) -> dict[str, int]:
        """Return the backlogs that are not 0, by topic, as they were counted last."""
        return dict(self._counted)

    def total(self) -> int:
        """Return the sum: exact if few topics moved since the last question, else as it was some seconds ago."""
        self.count()
        return self._total
