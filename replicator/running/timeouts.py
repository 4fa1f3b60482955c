"""Limits of time that hold in a task that is being cancelled too.

:func:`asyncio.timeout` of Python 3.11.0 to 3.11.2 counts a task's cancellations from zero. In a task that was cancelled
before, such as one that tidies up, its end is a cancellation instead of ``TimeoutError``. What was to follow, such as
the killing of a process that does not end, did not happen. Here the count begins with what it is when the limit is set,
as in later Pythons. So every room takes the limit from here; ``make lint`` refuses the other.
"""

from __future__ import annotations

import asyncio
from types import TracebackType


def timeout(seconds: float | None) -> Timeout:
    """Return a context manager whose body raises ``TimeoutError`` if it takes longer; None is no limit."""
    return Timeout(None if seconds is None else asyncio.get_running_loop().time() + seconds)


def timeout_at(when: float) -> Timeout:
    """Return a context manager whose body raises ``TimeoutError`` at a moment of the event loop's clock."""
    return Timeout(when)


class Timeout:
    """Context manager of a time limit, made by :func:`timeout` or :func:`timeout_at`; it is entered once."""

    __slots__ = ("_cancellations", "_expired", "_handle", "_task", "_when")

    def __init__(self, when: float | None) -> None:
        self._when = when
        self._expired = False
        self._handle: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[object]
        self._cancellations = 0

    def expired(self) -> bool:
        """Return whether the limit was reached."""
        return self._expired

    def lift(self) -> None:
        """Remove the limit from now on."""
        if self._handle is not None:
            self._handle.cancel()

    async def __aenter__(self) -> Timeout:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a bug: a time limit was begun outside an asyncio task, and works only inside one")
        self._task, self._cancellations = task, task.cancelling()
        if self._when is not None:
            self._handle = asyncio.get_running_loop().call_at(self._when, self._expire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.lift()
        # Another cancellation that came meanwhile is not ours to take back: then it is passed on.
        if self._expired and self._task.uncancel() <= self._cancellations and kind is asyncio.CancelledError:
            raise TimeoutError from error

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()
