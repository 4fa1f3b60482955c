"""Changes of a cluster's settings: the names of rows that may have changed, and the order of changes.

Invariants (DESIGN §3): 11, no more names are noted than rows exist; 13, a confirmed change is not overwritten by
settings that are put back at the same time.

Operators change single rows concurrently. Settings that are put back replace all rows: that waits for changes under
way, and later changes wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from replicator.engine.cluster_settings.state import Key


class ChangedSettings:
    """Names of rows that may have changed. The parts of an engine that change rows add to it.

    It records nothing before all rows were read once: an engine whose settings are never announced must not collect
    names.
    """

    __slots__ = ("_changing", "_idle", "_replacing", "keys", "noting", "on_changed")

    def __init__(self) -> None:
        self.keys: dict[Key, None] = {}
        self.noting = False
        self.on_changed: Callable[[], None] = lambda: None
        """Called after a row was noted."""
        self._replacing = asyncio.Lock()
        self._idle = asyncio.Event()
        self._changing = 0
        """Number of changes under way."""

    def __call__(self, kind: str, name: str) -> None:
        """Note that a row may have changed."""
        if self.noting:
            self.keys[kind, name] = None
            self.on_changed()

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Change a row, in the store and in memory, while nobody replaces all rows."""
        async with self._replacing:
            self._changing += 1
        try:
            yield
        finally:
            self._changing -= 1
            if not self._changing:
                self._idle.set()

    @asynccontextmanager
    async def replacing(self) -> AsyncIterator[None]:
        """Replace all rows, while nobody changes one."""
        async with self._replacing:
            while self._changing:
                self._idle.clear()
                await self._idle.wait()
            yield
