"""Tasks that end by themselves, or that whoever started them awaits. What is to run for ever has a supervisor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_going: set[asyncio.Task[Any]] = set()
"""Running background tasks, kept here until they end, since the event loop alone does not keep a task."""


def awaited(work: Coroutine[Any, Any, _T], name: str | None = None) -> asyncio.Task[_T]:
    """Start ``work`` as a task and return it. The caller must await its result, or ask for it in a callback."""
    return asyncio.get_running_loop().create_task(work, name=name)


def in_background(
    work: Coroutine[Any, Any, _T], name: str, *, tell: Callable[[str, BaseException], object] | None = None
) -> asyncio.Task[_T]:
    """Start ``work`` as a task that nobody needs to await, and return it.

    If it fails, ``tell`` is called with ``name`` and the error; by default that is logged.
    """
    task = asyncio.get_running_loop().create_task(work, name=name)
    _going.add(task)

    def ended(task: asyncio.Task[_T]) -> None:
        _going.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            (tell or _tell)(name, error)

    task.add_done_callback(ended)
    return task


class Receiver(Protocol):
    """Receiver of one outcome, such as an :class:`asyncio.Future`."""

    def done(self) -> bool:
        """Return whether the receiver has an outcome already, or waits no more, such as after a cancellation."""

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, exception: BaseException, /) -> None: ...


def complete(receiver: Receiver, outcome: object) -> None:
    """Give ``receiver`` its outcome: an exception, or any other value as its result. If it has one, it keeps that."""
    if receiver.done():
        return
    if isinstance(outcome, BaseException):
        receiver.set_exception(outcome)
    else:
        receiver.set_result(outcome)


def heard(outcome: asyncio.Future[Any]) -> None:
    """Note that the outcome of a task or a future was seen, though perhaps nobody waits for it any more.

    Otherwise asyncio logs an error with its traceback.
    """
    if not outcome.cancelled():
        outcome.exception()


async def to_the_end(work: Coroutine[Any, Any, _T]) -> _T:
    """Await ``work`` to its end, and return its result.

    If the caller is cancelled meanwhile, go on to the end all the same, and raise the cancellation then.
    """
    task = awaited(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError:
                continue
        if not task.cancelled() and (error := task.exception()) is not None:
            _tell(task.get_name(), error)
        raise


def _tell(name: str, error: BaseException) -> None:
    _log.error("%s failed: %s", name, error, exc_info=error)
