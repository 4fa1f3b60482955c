"""The tasks of a drill that run beside its steps: its publisher, its subscribers, those who watch.

A drill restarts none of them, since a part that stood still would spoil what is measured: the end of one that nobody
asked for fails the drill, with its cause.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any, Self

from replicator.drills.errors import DrillError


class Parts:
    """A task group whose tasks may not be cancelled by anybody else.

    :class:`asyncio.TaskGroup` takes a cancelled child for one that has done its work, and the drill would only seem
    slow. Leaving raises what the group raises; :class:`DrillError` is among it if a part was cancelled from outside.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()  # bare task: a failure of one is to fail the whole drill
        self._ending = False

    async def __aenter__(self) -> Self:
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending = True
        await self._group.__aexit__(kind, error, trace)

    def start(self, part_name: str, part: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Start a part of the drill; errors name it as ``part_name``."""
        return self._group.create_task(self._run(part_name, part))  # bare task: see above

    def end(self, *parts: asyncio.Task[None]) -> None:
        """Cancel ``parts``. From now on no end is an error."""
        self._ending = True
        for part in parts:
            part.cancel()

    async def _run(self, part_name: str, part: Coroutine[Any, Any, None]) -> None:
        try:
            await part
        except asyncio.CancelledError as error:
            if self._ending:
                raise
            self._ending = True
            raise DrillError(
                f"a part of the drill was cancelled, which nobody asked for: {part_name}; this is a bug of the drill"
            ) from error
        except BaseException:
            self._ending = True  # the group cancels the others now
            raise
