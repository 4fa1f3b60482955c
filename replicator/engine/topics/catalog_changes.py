"""Changes of the catalog under way: one at a time, while topics may be created concurrently.

A change goes on if its caller is cancelled, so that the catalog in memory matches the store. Topics are created
concurrently with changes and with each other. A change that must not overlap with them checks
:attr:`CatalogChanges.being_made`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from replicator.engine.topic import Topic
from replicator.running.short_tasks import awaited, heard

_T = TypeVar("_T")


class CatalogChanges:
    """Changes of one engine's catalog that are under way."""

    __slots__ = ("_lock", "_tasks", "being_made")

    def __init__(self) -> None:
        self.being_made: dict[str, asyncio.Task[Topic]] = {}
        """Topics that the writer is creating, by full name."""
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def alone(self, change: Callable[[], Awaitable[_T]]) -> _T:
        """Make a change of the catalog while nobody makes another. The change goes on if its caller is cancelled."""

        async def make() -> _T:
            async with self._lock:
                return await change()

        task = awaited(make(), name="change of the catalog")
        self._tasks.add(task)
        task.add_done_callback(self._changed)
        return await asyncio.shield(task)

    async def made_by(self, full_name: str, making: Coroutine[Any, Any, Topic]) -> Topic:
        """Run ``making`` and return its topic. Meanwhile :attr:`being_made` has it. It goes on if its callers are
        cancelled."""
        task = awaited(making, name="making of a topic")
        task.add_done_callback(heard)
        self.being_made[full_name] = task
        return await asyncio.shield(task)

    async def made(self, names: Iterable[str]) -> None:
        """Wait until none of these topics is being created any more: they exist, or their creation failed."""
        await asyncio.gather(*(self.being_made[name] for name in names), return_exceptions=True)

    async def done(self) -> None:
        """Wait for the change under way, if there is one, and for those that began to wait before this call."""
        async with self._lock:
            pass

    async def stop(self) -> None:
        """Wait until no change is under way. The caller must prevent new ones."""
        await asyncio.gather(*self._tasks, *self.being_made.values(), return_exceptions=True)

    def _changed(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        heard(task)  # who waits for the task has its error
