"""Writing a cursor's changes to the store: concurrent ones share a write, and one that fails leaves them to be made."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from replicator.engine.errors import EngineError
from replicator.engine.log.writer import Writer
from replicator.engine.subscriptions.cursor_rows import CursorRows, RowWrite
from replicator.engine.subscriptions.cursor_state import CursorState
from replicator.running.short_tasks import in_background


class CursorSaver:
    """Saves one durable subscription's state."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        writer: Writer,
        rows: CursorRows,
        state: Callable[[], CursorState],
        *,
        stored: bool,
        with_first_save: Sequence[RowWrite] = (),
    ) -> None:
        self._loop = loop
        self._writer = writer
        self._rows = rows
        self._state = state
        self._waiting: list[asyncio.Future[None]] = []
        self._waiting_since = 0.0
        """When the first of them began to wait."""
        self._running: asyncio.Task[None] | None = None
        self._deleting: EngineError | None = None
        self._with_first_save = with_first_save
        self.stored = stored
        """Whether the store knows of the subscription. Not so for a moment after it was made."""

    def saved(self) -> asyncio.Future[None]:
        """A future that is done when the state as it is now is durable."""
        future: asyncio.Future[None] = self._loop.create_future()
        if not self._waiting:
            self._waiting_since = time.perf_counter()
        self._waiting.append(future)
        if self._running is None:
            self._running = in_background(self._run(), "saving of a cursor")
        return future

    async def delete(self, refusal: EngineError, writes: Sequence[RowWrite]) -> None:
        """Remove the state from the store, and make the ``writes`` that belong to that; from here on saving raises
        ``refusal``: it would bring the state back."""
        self._deleting = refusal
        try:
            deletion = self._rows.deletion()
            await self._writer.put_many([*deletion.writes, *writes], cleared=deletion.cleared)
        except BaseException:
            self._deleting = None
            raise

    def refuse(self, refusal: EngineError | None) -> None:
        """From here on saving raises ``refusal``: the subscription was not made, or its topic is being deleted. With
        None it is allowed again."""
        self._deleting = refusal

    async def _run(self) -> None:
        try:
            await self._save_all()
        finally:  # a bug, or a loop that ends, must not leave those waiting who come after
            self._running = None

    async def _save_all(self) -> None:
        while self._waiting:
            waiting, self._waiting = self._waiting, []
            since = self._waiting_since
            try:
                await self._write()
            except EngineError as error:
                if not self.stored:  # it was not made, so what was asked of it meanwhile must not make it
                    waiting += self._waiting
                    self._waiting = []
                for future in waiting:
                    if not future.done():
                        future.set_exception(error)
                continue
            self.stored = True
            self._writer.latencies.acknowledge.observe(time.perf_counter() - since, len(waiting))
            for future in waiting:
                if not future.done():
                    future.set_result(None)

    async def _write(self) -> None:
        if self._deleting is not None:
            raise self._deleting.with_traceback(None)
        changes = self._rows.changes(self._state())
        try:
            if changes:
                writes = changes.writes if self.stored else [*changes.writes, *self._with_first_save]
                await self._writer.put_many(writes, cleared=changes.cleared)
        except BaseException:
            self._rows.failed()
            raise
        self._rows.saved()
