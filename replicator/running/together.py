"""Coroutines that run side by side until the first of them ends.

:class:`asyncio.TaskGroup` is not used where something runs for long: on Python 3.11.2 a group whose child failed leaves
the count of cancellations of its task at 1, and the next :func:`asyncio.timeout` of that task ends in a cancellation
instead of ``TimeoutError``; on all before 3.13 it can lose a cancellation that comes while a child fails. Here the task
that waits is never cancelled by its children.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from replicator.running.short_tasks import heard


async def until_first_ends(*parts: Coroutine[Any, Any, Any], names: str = "part") -> None:
    """Run ``parts`` together. When one ends, the others are cancelled and awaited; its error is raised.

    Of several that failed the error of the first one is raised, in the order of ``parts`` if they failed at once.
    """
    tasks = _started(parts, names)
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        failed = _first_error(tasks)
    finally:
        await _end_all(tasks)
    if failed is not None:
        raise failed
    if any(task.cancelled() for task in tasks) and not any(_returned(task) for task in tasks):
        raise asyncio.CancelledError(
            f"{_cancelled(tasks)} was cancelled from outside, and the parts that run with it end"
        )


async def until_all_end(*parts: Coroutine[Any, Any, Any], names: str = "part") -> None:
    """Run ``parts`` together until all have ended, or the first has failed: then as :func:`until_first_ends`."""
    tasks = _started(parts, names)
    try:
        while not all(map(_returned, tasks)) and all(_returned(task) or not task.done() for task in tasks):
            await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
        failed = _first_error(tasks)
    finally:
        await _end_all(tasks)
    if failed is not None:
        raise failed
    if any(task.cancelled() for task in tasks):
        raise asyncio.CancelledError(
            f"{_cancelled(tasks)} was cancelled from outside, and the parts that run with it end"
        )


def _started(parts: tuple[Coroutine[Any, Any, Any], ...], names: str) -> list[asyncio.Task[Any]]:
    loop = asyncio.get_running_loop()
    return [loop.create_task(part, name=f"{names} {number}") for number, part in enumerate(parts)]


def _cancelled(tasks: list[asyncio.Task[Any]]) -> str:
    return ", ".join(task.get_name() for task in tasks if task.cancelled())


def _first_error(tasks: list[asyncio.Task[Any]]) -> BaseException | None:
    for task in tasks:
        if task.done() and not task.cancelled() and (error := task.exception()) is not None:
            return error
    return None


def _returned(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


async def _end_all(tasks: list[asyncio.Task[Any]]) -> None:
    """Cancel all tasks, and wait until they have ended. If the waiting task is cancelled meanwhile, raise that
    afterwards.
    """
    cancelled: asyncio.CancelledError | None = None
    for task in tasks:
        task.cancel()
    while left := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(left)
        except asyncio.CancelledError as error:
            cancelled = error
            for task in left:
                task.cancel()
    for task in tasks:
        heard(task)
    if cancelled is not None:
        raise cancelled
