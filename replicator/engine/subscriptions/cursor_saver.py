"""Writing of a cursor's changes to the store. Concurrent changes share one write, and a failed write is repeated with
the next.

All subscriptions with changes in one turn of the event loop share one request to the writer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from replicator.engine.errors import EngineError
from replicator.engine.log.writer import Writer
from replicator.engine.subscriptions.cursor_rows import CursorRows, RowWrite
from replicator.engine.subscriptions.cursor_state import CursorState
from replicator.running.short_tasks import complete

SaveCallback = Callable[[EngineError | None], None]
"""Receives the outcome of a save: None if the state is durable, otherwise the error."""

log = structlog.get_logger(__name__)


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
        self._waiting: list[SaveCallback] = []
        self._waiting_since = 0.0
        """Time at which the first of the waiting callers began to wait."""
        self._since = 0.0
        """Time at which the first of the callers whose state is being written began to wait."""
        self._begun = False
        """Whether rows were taken from the cursor, and their write has not ended."""
        self._being_saved: list[SaveCallback] | None = None
        """Callers whose state is being written; None if no save is under way."""
        self._deleting: EngineError | None = None
        """Error for callers while the subscription is being deleted, and after that."""
        self._refusal: EngineError | None = None
        """Error for callers after :meth:`refuse`."""
        self._next: tuple[CursorState, SaveCallback] | None = None
        """State that the next save writes in place of the present one, and the only caller whom that save is for."""
        self._writes_next = False
        """Whether the save under way writes :attr:`_next`."""
        self._was_refused = False
        """Whether the last save was refused by :meth:`refuse` or :meth:`delete`."""
        self._with_first_save = with_first_save
        self.stored = stored
        """Whether the store has the subscription. It does not for a moment after creation."""

    def saved(self) -> asyncio.Future[None]:
        """Return a future that is done when the present state is durable."""
        future: asyncio.Future[None] = self._loop.create_future()
        self.call_when_saved(partial(complete, future))
        return future

    def saved_before(self, state: CursorState, move: Callable[[], None]) -> asyncio.Future[None]:
        """Return a future that is done when ``state`` is durable in place of the present state.

        ``move`` is called as soon as it is, before anything else is saved, and must make it the present state. It is
        not called if the store refuses. Only one such save may be under way. Other callers wait for the save after it,
        because ``state`` lacks what changed since it was made.
        """
        assert self._next is None
        future: asyncio.Future[None] = self._loop.create_future()

        def told(error: EngineError | None) -> None:
            try:
                if error is None:
                    move()
            finally:
                complete(future, error)

        self._next = state, told
        self.call_when_saved(told)
        return future

    def call_when_saved(self, told: SaveCallback) -> None:
        """Call ``told`` once the current state is durable, or with an error if it cannot be saved."""
        if not self._waiting:
            self._waiting_since = time.perf_counter()
        self._waiting.append(told)
        if len(self._waiting) == 1 and self._being_saved is None:
            self._writer.gathered.join(self)

    async def delete(self, refusal: EngineError, writes: Sequence[RowWrite]) -> None:
        """Delete the state from the store, in one transaction with ``writes``. Later saves raise ``refusal``, because
        they would bring the state back."""
        self._deleting = refusal
        try:
            deletion = self._rows.deletion()
            await self._writer.put_many([*deletion.writes, *writes], cleared=deletion.cleared)
        except BaseException:
            self._deleting = None
            self._save_what_was_refused()
            raise

    def refuse(self, refusal: EngineError | None) -> None:
        """Make later saves raise ``refusal``, because the subscription was not created, or its topic is being deleted.
        With None, allow saves again, and save what was refused meanwhile."""
        self._refusal = refusal
        if refusal is None:
            self._save_what_was_refused()

    def _save_what_was_refused(self) -> None:
        if self._was_refused and self.stored:
            self.call_when_saved(lambda _: None)  # who asked was told of the refusal

    def begin(self) -> tuple[Sequence[RowWrite], Sequence[tuple[str, bytes]]]:
        """Return the rows that make the current state durable, and the prefixes to delete first.

        Raises the error of :meth:`refuse` or :meth:`delete` if the state may not be saved any more.
        """
        if self._next is None:
            self._being_saved, self._waiting = self._waiting, []
        else:
            self._being_saved = [self._next[1]]
            self._waiting.remove(self._next[1])
        self._since = self._waiting_since
        self._writes_next = self._next is not None
        refusal = self._deleting or self._refusal
        self._was_refused = refusal is not None
        if refusal is not None:
            raise refusal.with_traceback(None)
        changes = self._rows.changes(self._state() if self._next is None else self._next[0])
        self._begun = True
        if changes and not self.stored:
            return [*changes.writes, *self._with_first_save], changes.cleared
        return changes.writes, changes.cleared

    def undo(self) -> None:
        """Mark the rows of the current save as unsaved again. The next save writes them, with later changes."""
        if self._begun:
            self._begun = False
            self._rows.failed()
        self._waiting = [*(self._being_saved or ()), *self._waiting]
        self._waiting_since, self._being_saved = self._since, None

    def ended(self, error: EngineError | None) -> None:
        """Tell the waiting callers that their save ended, with ``error`` if it failed.

        Begin another save if more callers came while this one ran.
        """
        told, self._being_saved = self._being_saved or [], None
        if self._writes_next:
            self._next, self._writes_next = None, False
        if self._begun:
            self._begun = False
            if error is None:
                self._rows.saved()
            else:
                self._rows.failed()
        if error is None:
            self.stored = True
            self._writer.latencies.acknowledge.observe(time.perf_counter() - self._since, len(told))
        elif not self.stored:  # the subscription was not stored, and later changes must not store it
            told += self._waiting
            self._waiting = []
        if self._waiting:
            self._writer.gathered.join(self)
        for each in told:
            try:
                each(error)
            except Exception:  # a bug of this caller, of which the others must not hear
                log.exception("a caller failed to take the outcome of a save")
