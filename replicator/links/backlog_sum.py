"""Sum of the backlogs of a link's topics, kept up to date with limited work per question.

Invariant 11: thousands of topics may lag at once, and counting all of them in one go would delay a worker's clients.

1. The link calls :meth:`BacklogSum.moved` when a topic's backlog may have changed. That only adds a key to a
   dictionary.
2. A question for the sum counts at most :data:`COUNTED_AT_ONCE` of these topics, those that moved first. The other
   topics contribute the figure that was counted last.
3. Every few seconds the link counts the rest, a part in each turn of the event loop (:meth:`BacklogSum.count`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import islice
from typing import Final

COUNTED_AT_ONCE: Final = 200
"""Most topics that one question counts; this takes some three milliseconds."""


class BacklogSum:
    """Sum of the backlogs of a link's topics. ``backlog_of`` returns the backlog of one topic."""

    def __init__(self, backlog_of: Callable[[str], int]) -> None:
        self._backlog_of = backlog_of
        self._moved: dict[str, None] = {}
        """Topics that moved since their backlog was counted, those that moved first at the front."""
        self._counted: dict[str, int] = {}
        """Backlogs by topic, as counted last; a backlog of 0 is left out."""
        self._total = 0

    def moved(self, name: str) -> None:
        """Record that the backlog of a topic may have changed."""
        self._moved[name] = None

    def forget(self, name: str) -> None:
        """Remove a topic that the link no longer carries."""
        self._moved.pop(name, None)
        self._total -= self._counted.pop(name, 0)

    def count(self) -> bool:
        """Count the backlogs of at most :data:`COUNTED_AT_ONCE` topics again. Return whether the figures of all topics
        are up to date now."""
        for name in list(islice(self._moved, COUNTED_AT_ONCE)):
            del self._moved[name]
            backlog = self._backlog_of(name)
            self._total += backlog - self._counted.pop(name, 0)
            if backlog:
                self._counted[name] = backlog
        return not self._moved

    async def count_all(self) -> None:
        """Count all topics that moved, and let other tasks run in between."""
        while not self.count():  # noqa: ASYNC110 - there is no event to wait for: other tasks must run
            await asyncio.sleep(0)

    async def of_all(self) -> dict[str, int]:
        """Return, by topic, how many entries the destination has not confirmed. Topics without a backlog are left
        out."""
        await self.count_all()
        return self.figures()

    def figures(self) -> dict[str, int]:
        """Return the backlogs that are not 0, by topic, as they were counted last."""
        return dict(self._counted)

    def total(self) -> int:
        """Return the sum of all backlogs.

        It is exact if few topics moved since the last question. Otherwise it is some seconds old.
        """
        self.count()
        return self._total
