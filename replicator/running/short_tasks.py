"""Tasks that end by themselves, or that whoever started them awaits. What is to run for ever has a supervisor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

_T = TypeVar("_T")
_log = logging.getLogger(__name__)
_going: set[asyncio.Task[Any]] = set()
"""Held until they end: the event loop alone does not keep a task."""


def awaited(work: Coroutine[Any, Any, _T], name: str | None = None) -> asyncio.Task[_T]:
    """Start a task whose result its caller awaits, or asks for in a callback of its own: a failure is the caller's."""
    return asyncio.get_running_loop().create_task(work, name=name)


def in_background(
    work: Coroutine[Any, Any, _T], name: str, *, tell: Callable[[str, BaseException], object] | None = None
) -> asyncio.Task[_T]:
    """Start a task that ends by itself and that nobody awaits: a failure is logged, or ``tell`` is told of it."""
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
        """Return whether nobody waits for the outcome any more, such as after a cancellation."""

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
    """Await ``work`` to its end, also when whoever waits is cancelled meanwhile, however often; then raise that."""
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
