"""Changes of the catalog that are on their way: one at a time, beside topics that the writer is making.

A change goes on when whoever asked for it gives up, so that the catalog in memory is what the store has. Topics are
made beside changes and beside each other; a change that must not have them looks at :attr:`CatalogChanges.being_made`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from replicator.engine.topic import Topic
from replicator.running.short_tasks import awaited, heard

_T = TypeVar("_T")


class CatalogChanges:
    """What is being changed in the catalog of one engine."""

    __slots__ = ("_lock", "_tasks", "being_made")

    def __init__(self) -> None:
        self.being_made: dict[str, asyncio.Task[Topic]] = {}
        """By full name, the topics that the writer is making."""
        self._lock = asyncio.Lock()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def alone(self, change: Callable[[], Awaitable[_T]]) -> _T:
        """Make a change of the catalog while nobody makes another. The change goes on when its caller gives up."""

        async def make() -> _T:
            async with self._lock:
                return await change()

        task = awaited(make(), name="change of the catalog")
        self._tasks.add(task)
        task.add_done_callback(self._changed)
        return await asyncio.shield(task)

    async def made_by(self, full_name: str, making: Coroutine[Any, Any, Topic]) -> Topic:
        """What ``making`` makes. Others find it in :attr:`being_made`; it goes on when its callers give up."""
        task = awaited(making, name="making of a topic")
        task.add_done_callback(heard)
        self.being_made[full_name] = task
        return await asyncio.shield(task)

    async def made(self, names: Iterable[str]) -> None:
        """Returns when these topics are not being made any more: they are there, or failed."""
        await asyncio.gather(*(self.being_made[name] for name in names), return_exceptions=True)

    async def done(self) -> None:
        """Returns when the change that is being made, if there is one, and those that wait before this are made."""
        async with self._lock:
            pass

    async def stop(self) -> None:
        """Returns when nothing is on its way any more; whoever calls this lets nobody begin anything."""
        await asyncio.gather(*self._tasks, *self.being_made.values(), return_exceptions=True)

    def _changed(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        heard(task)  # who waits for the task has its error
