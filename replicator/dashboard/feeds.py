"""Live content of open pages, computed once for all of them, and only while somebody looks.

Nothing runs by itself: whoever follows a view waits until it is due and asks for it, and the first to ask has it
computed; the others wait for the same result.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from replicator.running.short_tasks import awaited

T = TypeVar("T")
VIEWS_MAX: Final = 200
"""Different pages that are kept; searches and positions of lists are pages of their own."""


@dataclass(slots=True)
class _View(Generic[T]):
    value: T | None = None
    at: float = float("-inf")
    computing: asyncio.Task[T] | None = None


class Feeds(Generic[T]):
    """The views of one worker. ``compute`` makes the view of a key; ``period_seconds`` tells how often."""

    def __init__(self, compute: Callable[[str], Awaitable[T]], *, period_seconds: Callable[[str], float]) -> None:
        self._compute = compute
        self._period_seconds = period_seconds
        self._views: OrderedDict[str, _View[T]] = OrderedDict()

    async def current(self, key: str) -> T:
        """Return the view of ``key``, no older than a period. Raise what computing it raises."""
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = _View()
            while len(self._views) > VIEWS_MAX:
                self._views.popitem(last=False)
        self._views.move_to_end(key)
        loop = asyncio.get_running_loop()
        if view.value is not None and loop.time() - view.at < self._period_seconds(key):
            return view.value
        if view.computing is None:
            view.computing = awaited(self._computed(key, view), f"dashboard {key[:40]}")
        return await asyncio.shield(view.computing)

    async def follow(self, key: str) -> AsyncIterator[T]:
        """Yield the view now, and again each period, for as long as somebody asks for the next."""
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._period_seconds(key)
            yield await self.current(key)
            await asyncio.sleep(max(0.0, due - loop.time()))

    def forget(self) -> None:
        """Forget all views after a change, so that the next reader sees it."""
        for view in self._views.values():
            view.at = float("-inf")

    async def _computed(self, key: str, view: _View[T]) -> T:
        try:
            value = await self._compute(key)
            view.value, view.at = value, asyncio.get_running_loop().time()
            return value
        finally:
            view.computing = None
