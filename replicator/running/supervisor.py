"""Supervisor of long-lived tasks: none of them dies unseen.

An end that nobody asked for (a return, an exception, a cancellation from outside) is logged once with its cause and
counted, and the task starts again after a pause (:mod:`replicator.running.restarts`). Each start is a new
:class:`asyncio.Task`: what an ended one leaves behind in asyncio, such as a count of cancellations that is never taken
back (Python 3.11.2), is gone with it. The supervisor has no task of its own that could die: it hears of ends by the
tasks' callbacks.

What a task's work must be made for: its coroutine may end at any ``await``, and is then made anew by its factory.
What is to outlive that lies in the object that the factory belongs to.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, Protocol

import structlog

from replicator.running.restarts import PAUSE_SECONDS_MIN, RandomSource, RestartHistory

CANCEL_AGAIN_SECONDS: Final = 5.0
"""Time after which a cancelled task that still runs is cancelled again: it may have lost the cancellation."""
TELL_SECONDS: Final = 0.05
"""Delay of the log line about an end without an error. When a program ends, asyncio cancels all tasks; those lines are
not written."""

Work = Callable[[], Coroutine[Any, Any, Any]]
Around = Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]


class Log(Protocol):
    """Logger for the ends of tasks."""

    def error(self, event: str, /, **fields: Any) -> Any: ...
    def info(self, event: str, /, **fields: Any) -> Any: ...


class StandardLog:
    """Logger of the standard library as a :class:`Log`, for code that runs in other people's programs."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def error(self, event: str, /, exc_info: BaseException | None = None, **fields: Any) -> None:
        self._logger.error("%s: %s", event, _in_words(fields), exc_info=exc_info)

    def info(self, event: str, /, **fields: Any) -> None:
        self._logger.info("%s: %s", event, _in_words(fields))


class SupervisedTask:
    """Task that is kept running from :meth:`start` to :meth:`stop`. Made by :meth:`Supervisor.task`.

    ``kind`` is the label of its metric; ``name`` says which one of the kind it is. With ``until_done`` a return is its
    regular end, after which :meth:`start` may start it again; otherwise it is to run for ever.
    """

    __slots__ = (
        "_cancel_again_seconds",
        "_history",
        "_started_at",
        "_stopping",
        "_supervisor",
        "_task",
        "_timer",
        "_until_done",
        "_work",
        "kind",
        "last_end",
        "name",
    )

    def __init__(
        self, supervisor: Supervisor, kind: str, name: str, work: Work, until_done: bool, cancel_again_seconds: float
    ) -> None:
        self.kind = kind
        self.name = name
        self.last_end = ""
        """Cause of the task's last end that nobody asked for; empty if there was none."""
        self._supervisor = supervisor
        self._work = work
        self._until_done = until_done
        self._cancel_again_seconds = cancel_again_seconds
        self._history: RestartHistory | None = None
        self._task: asyncio.Task[Any] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stopping = False
        self._started_at = 0.0

    @property
    def running(self) -> bool:
        """Return whether the task runs, or starts again after a pause."""
        return self._timer is not None or (self._task is not None and not self._task.done())

    @property
    def pausing(self) -> bool:
        """Return whether the task ended, and starts again after a pause."""
        return self._timer is not None

    @property
    def is_current(self) -> bool:
        """Return whether the caller runs in this task."""
        return self._task is not None and self._task is asyncio.current_task()

    @property
    def inner(self) -> asyncio.Task[Any] | None:
        """Return the present asyncio task; each start makes another one."""
        return self._task

    @property
    def restarts(self) -> int:
        """Return how often the task ended although nobody had asked for it."""
        return 0 if self._history is None else self._history.ends

    @property
    def failing(self) -> bool:
        return self._history is not None and self._history.failing(self._supervisor.clock())

    def start(self) -> None:
        """Run the task, if it does not run. Call it on the event loop, and not while the task is being stopped."""
        if self._task is not None and self._task.done():
            self._has_ended(self._task)  # its callback has not come yet
        if not self.running:
            self._stopping = False
            self._supervisor.note_started(self)
            self._begin()

    async def stop(self) -> None:
        """End the task; return when it has ended, or at once if the task itself asks. It is cancelled once and given
        time to tidy up, and again if it still runs then: a cancellation can be lost.
        """
        self.cancel()
        while (task := self._task) is not None and task is not asyncio.current_task():
            await asyncio.wait([task], timeout=self._cancel_again_seconds)
            if task.done():
                break
            task.cancel()

    def cancel(self) -> None:
        """Begin to end the task, and return without waiting for its end."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._supervisor.note_ended(self)
        if self._task is not None:
            self._task.cancel()

    async def done(self) -> None:
        """Wait until the task was stopped, or has done its work. Go on waiting in a pause before its next start."""
        while self.running:
            if self._task is not None:
                await asyncio.wait([self._task])
            else:
                await asyncio.sleep(PAUSE_SECONDS_MIN)

    def interrupt(self) -> bool:
        """Cancel the task from outside, unlike :meth:`stop`; for tests. Return whether it runs."""
        return self._task is not None and self._task.cancel()

    def _begin(self) -> None:
        self._timer = None
        self._started_at = self._supervisor.clock()
        work = self._create_and_run()
        if self._supervisor.around is not None:
            work = self._supervisor.around(work)
        self._task = asyncio.get_running_loop().create_task(work, name=self.name)
        self._task.add_done_callback(self._has_ended)

    async def _create_and_run(self) -> Any:
        """Make the task's coroutine and run it. Both happen inside the task, so an error of either ends it."""
        return await self._work()

    def _has_ended(self, task: asyncio.Task[Any]) -> None:
        if task is not self._task:
            return  # known before
        self._task = None
        error = None if task.cancelled() else task.exception()
        regular = self._until_done and error is None and not task.cancelled()
        if self._stopping or regular:
            if error is not None:
                self._supervisor.log.error("task failed while it was stopped", task=self.name, exc_info=error)
            self._supervisor.note_ended(self)
            return
        self.last_end = "it was cancelled" if task.cancelled() else "it returned" if error is None else _cause(error)
        supervisor, now_seconds = self._supervisor, self._supervisor.clock()
        if self._history is None:
            self._history = RestartHistory(supervisor.chance)
        restart = self._history.ended(now_seconds, ran_seconds=now_seconds - self._started_at)
        self._timer = task.get_loop().call_later(restart.pause_seconds, self._begin)
        supervisor.count_restart(self)
        if error is None:
            task.get_loop().call_later(TELL_SECONDS, self._tell_end, restart.pause_seconds, None)
        else:
            self._tell_end(restart.pause_seconds, error)
        if restart.newly_failing:
            supervisor.note_failing(self)
            self._watch_recovery(task.get_loop())

    def _tell_end(self, pause_seconds: float, error: BaseException | None) -> None:
        self._supervisor.log.error(
            "task ended; it starts again",
            task=self.name,
            kind=self.kind,
            cause=self.last_end,
            ends=self.restarts,
            pause_seconds=round(pause_seconds, 3),
            exc_info=error,
        )

    def _watch_recovery(self, loop: asyncio.AbstractEventLoop) -> None:
        assert self._history is not None
        seconds = self._history.healthy_at - self._supervisor.clock()
        if seconds > 0:
            loop.call_later(seconds, self._watch_recovery, loop)
        elif self.running:
            self._supervisor.log.info("task is healthy again", task=self.name, kind=self.kind)


class Supervisor:
    """Starts long-lived tasks, and starts them again when they end.

    ``around`` is for tests: it gets each coroutine before it runs, and what it returns is run.
    """

    def __init__(
        self,
        *,
        log: Log | None = None,
        chance: RandomSource | None = None,
        clock: Callable[[], float] = time.monotonic,
        around: Around | None = None,
    ) -> None:
        self.log: Log = log or structlog.get_logger(__name__)
        self.chance: RandomSource = chance or random.Random()
        self.clock = clock
        self.around = around
        self._running: dict[SupervisedTask, None] = {}
        self._restarts: dict[str, int] = {}

    def task(
        self,
        kind: str,
        name: str,
        work: Work,
        *,
        until_done: bool = False,
        cancel_again_seconds: float = CANCEL_AGAIN_SECONDS,
    ) -> SupervisedTask:
        """Return a task that is not started yet; see :class:`SupervisedTask`.

        ``work`` makes its coroutine, a new one for each start. A stopped task that still runs after
        ``cancel_again_seconds`` is cancelled again.
        """
        self._restarts.setdefault(kind, 0)
        return SupervisedTask(self, kind, name, work, until_done, cancel_again_seconds)

    def start(self, kind: str, name: str, work: Work) -> SupervisedTask:
        """Start a task that runs for ever, and return it."""
        task = self.task(kind, name, work)
        task.start()
        return task

    async def stop(self) -> None:
        """End all tasks that run. Those who started tasks have stopped them before, in an order that loses nothing."""
        while self._running:
            await asyncio.gather(*(task.stop() for task in list(self._running)))

    # What there is to see.

    def running(self) -> list[SupervisedTask]:
        """Return all tasks that run, or start again after a pause."""
        return list(self._running)

    def failing(self) -> list[SupervisedTask]:
        """Return the tasks that ended five times within ten minutes."""
        return [task for task in self._running if task.failing]

    def restarts(self) -> Mapping[str, int]:
        """Return, by kind of task, how often one ended although nobody had asked for it."""
        return dict(self._restarts)

    # What the tasks tell.

    def note_started(self, task: SupervisedTask) -> None:
        self._running[task] = None

    def note_ended(self, task: SupervisedTask) -> None:
        self._running.pop(task, None)

    def count_restart(self, task: SupervisedTask) -> None:
        self._restarts[task.kind] += 1

    def note_failing(self, task: SupervisedTask) -> None:
        self.log.error("task is failing", task=task.name, kind=task.kind, cause=task.last_end, ends=task.restarts)


def _cause(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _in_words(fields: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in fields.items())
