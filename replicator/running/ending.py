"""Ends supervised tasks at random, to test that the worker goes on. Off unless the environment asks for it.

``REPLICATOR_END_TASKS=SEED:SECONDS`` makes a worker end one of its tasks about every SECONDS seconds, chosen by chance
from that seed: half of the times by a cancellation, half of the times by an exception out of its current await.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Generator, Mapping
from typing import Any, Final

import structlog

from replicator.running.supervisor import SupervisedTask, Supervisor

VARIABLE: Final = "REPLICATOR_END_TASKS"

log = structlog.get_logger(__name__)


class TaskEnded(BaseException):
    """Error that is thrown into a task to end it. It is no :class:`Exception`, so no task handles it as expected."""


class TaskEnder:
    """Ends tasks of a supervisor that was made with its :meth:`around`."""

    def __init__(self, chance: random.Random | None = None, every_seconds: float = 1.0) -> None:
        self._chance = chance or random.Random(0)
        self._every_seconds = every_seconds
        self._to_throw: dict[asyncio.Task[Any], BaseException] = {}

    def around(self, work: Coroutine[Any, Any, Any]) -> Coroutine[Any, Any, Any]:
        """Return a coroutine that runs ``work``, into whose current ``await`` :meth:`raise_in` can raise an error."""
        return _through(_Interruptible(work, self._to_throw))

    def raise_in(self, task: SupervisedTask, error: BaseException) -> bool:
        """Have the task's current ``await`` raise ``error``. Return whether the task ran."""
        inner = task.inner
        if inner is None or inner.done():
            return False
        self._to_throw[inner] = error
        return inner.cancel()

    def end(self, task: SupervisedTask, *, by_error: bool) -> bool:
        """End the task by :class:`TaskEnded` with ``by_error``, else by a cancellation. Return whether it ran."""
        return self.raise_in(task, TaskEnded("ended for a test")) if by_error else task.interrupt()

    def start(self, supervisor: Supervisor) -> SupervisedTask:
        """Start and return a task that ends tasks of ``supervisor`` at random, until it is stopped."""
        return supervisor.start("task ender", "task ender", lambda: self._run(supervisor))

    async def _run(self, supervisor: Supervisor) -> None:
        while True:
            await asyncio.sleep(self._every_seconds * self._chance.uniform(0.5, 1.5))
            tasks = [task for task in supervisor.running() if task.kind != "task ender" and not task.pausing]
            if tasks:
                task, by_error = self._chance.choice(tasks), self._chance.random() < 0.5
                if self.end(task, by_error=by_error):
                    log.info("task ended for a test", task=task.name, by_error=by_error)


class _Interruptible:
    """Awaitable that runs a coroutine, and turns the cancellation that :meth:`TaskEnder.raise_in` made into its
    error."""

    def __init__(self, work: Coroutine[Any, Any, Any], to_throw: dict[asyncio.Task[Any], BaseException]) -> None:
        self._work = work
        self._to_throw = to_throw

    def __del__(self) -> None:
        self._work.close()  # of a task that was ended before its first step

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        assert task is not None
        error: BaseException | None = None
        try:
            while True:
                try:
                    awaited = self._work.send(None) if error is None else self._work.throw(error)
                except StopIteration as stopped:
                    return stopped.value
                error = None
                try:
                    yield awaited
                except asyncio.CancelledError as cancelled:
                    error = self._to_throw.pop(task, None) or cancelled
                    if error is not cancelled:
                        task.uncancel()
                except BaseException as other:  # noqa: BLE001 - whatever it is, it is for the coroutine
                    error = other
        finally:
            self._to_throw.pop(task, None)


async def _through(thrown: _Interruptible) -> Any:
    return await thrown


def ender_of_environment(environment: Mapping[str, str]) -> TaskEnder | None:
    """Return the ender that the variable :data:`VARIABLE` in ``environment`` asks for; None if it is not set.

    Raise :class:`ValueError` if its value has another form.
    """
    wanted = environment.get(VARIABLE)
    if not wanted:
        return None
    seed, _, seconds = wanted.partition(":")
    return TaskEnder(random.Random(int(seed)), float(seconds or 1.0))
