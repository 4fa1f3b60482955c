"""The supervisor of long-lived tasks, with real tasks and short pauses."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from asynchronous import asynchronous
from engine_support import eventually

from replicator.running.supervisor import SupervisedTask, Supervisor


class Lines:
    """A log that is kept."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, dict[str, Any]]] = []

    def error(self, event: str, /, **fields: Any) -> None:
        self.lines.append((event, fields))

    info = error

    def of(self, event: str) -> list[dict[str, Any]]:
        return [fields for said, fields in self.lines if said == event]


class Clock:
    """The time that the supervisor sees, to be moved on."""

    def __init__(self) -> None:
        self.ahead = 0.0

    def __call__(self) -> float:
        return time.monotonic() + self.ahead


@pytest.fixture
def lines() -> Lines:
    return Lines()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def supervisor(lines: Lines, clock: Clock) -> Supervisor:
    return Supervisor(log=lines, clock=clock)


class Work:
    """Runs until it is told to end in some way; each start is counted."""

    def __init__(self) -> None:
        self.starts = 0
        self.started = asyncio.Condition()
        self.endings: list[BaseException | None] = []
        self.leftover: list[int] = []

    async def __call__(self) -> None:
        self.starts += 1
        task = asyncio.current_task()
        assert task is not None
        self.leftover.append(task.cancelling())
        async with self.started:
            self.started.notify_all()
        if not self.endings:
            await asyncio.Event().wait()
        ending = self.endings.pop(0)
        if ending is not None:
            raise ending

    async def has_started(self, times: int) -> None:
        async with self.started:
            await asyncio.wait_for(self.started.wait_for(lambda: self.starts >= times), 10)


class Failure(BaseException):
    """Failure that is not even an Exception."""


@pytest.mark.parametrize("ending", [None, RuntimeError("a defect"), Failure("worse"), asyncio.CancelledError()])
@asynchronous
async def test_a_task_that_ended_by_itself_starts_again_and_its_end_is_told_once(
    supervisor: Supervisor, lines: Lines, ending: BaseException | None
) -> None:
    work = Work()
    work.endings = [ending]
    task = supervisor.start("kind", "one of a kind", work)
    await work.has_started(2)
    await eventually(lambda: len(lines.of("task ended; it starts again")) > 0)
    (told,) = lines.of("task ended; it starts again")
    assert told["task"] == "one of a kind"
    assert (
        told["cause"]
        == {
            type(None): "it returned",
            RuntimeError: "RuntimeError: a defect",
            Failure: "Failure: worse",
            asyncio.CancelledError: "it was cancelled",
        }[type(ending)]
    )
    assert supervisor.restarts() == {"kind": 1}
    assert task.restarts == 1
    await task.stop()


@asynchronous
async def test_a_cancellation_from_outside_is_an_end_that_nobody_asked_for(supervisor: Supervisor) -> None:
    work = Work()
    task = supervisor.start("kind", "it", work)
    await work.has_started(1)
    assert task.interrupt()
    await work.has_started(2)
    assert supervisor.restarts() == {"kind": 1}
    assert work.leftover == [0, 0]
    await supervisor.stop()


@asynchronous
async def test_a_stop_is_silent_also_in_a_pause(supervisor: Supervisor, lines: Lines) -> None:
    work = Work()
    task = supervisor.start("kind", "it", work)
    await work.has_started(1)
    await task.stop()
    assert not task.running
    assert supervisor.running() == []
    assert lines.lines == []

    work.endings = [RuntimeError("once")] * 9
    task.start()
    await eventually(lambda: task.pausing)
    await task.stop()
    assert not task.running
    assert supervisor.running() == []
    starts = work.starts
    await asyncio.sleep(0.3)  # longer than the pause would have been
    assert work.starts == starts


@asynchronous
async def test_five_ends_in_ten_minutes_are_failing_until_the_ten_minutes_are_over(
    supervisor: Supervisor, lines: Lines, clock: Clock
) -> None:
    work = Work()
    task = supervisor.start("kind", "it", work)
    for number in range(1, 6):
        await work.has_started(number)
        assert not task.failing
        task.interrupt()
    await eventually(lambda: task.failing)
    assert supervisor.failing() == [task]
    assert len(lines.of("task is failing")) == 1
    await work.has_started(6)
    assert supervisor.failing() == [task]
    clock.ahead = 601
    assert supervisor.failing() == []
    await supervisor.stop()


@asynchronous
async def test_a_task_that_runs_until_it_is_done_ends_in_silence_and_can_start_again_at_once(
    supervisor: Supervisor, lines: Lines
) -> None:
    queue, done = [1, 2], list[int]()

    async def work() -> None:
        while queue:
            done.append(queue.pop(0))
            await asyncio.sleep(0)

    task = supervisor.task("kind", "it", work, until_done=True)
    task.start()
    inner = task._task
    assert inner is not None
    inner.add_done_callback(lambda _: (queue.append(3), task.start()))  # before the supervisor has heard, or after
    await eventually(lambda: done == [1, 2, 3] and not task.running)
    queue.append(4)
    task.start()
    await task.done()
    assert done == [1, 2, 3, 4]
    assert lines.lines == []
    await asyncio.sleep(0)
    assert supervisor.running() == []


@asynchronous
async def test_a_start_right_after_the_work_returned_is_not_lost(supervisor: Supervisor) -> None:
    runs: list[int] = []
    task: SupervisedTask

    async def work() -> None:
        runs.append(len(runs))
        if len(runs) == 1:  # runs after the return of this coroutine, before the callbacks of its task
            asyncio.get_running_loop().call_soon(task.start)

    task = supervisor.task("kind", "it", work, until_done=True)
    task.start()
    await eventually(lambda: len(runs) == 2)


@asynchronous
async def test_stopping_returns_although_a_cancellation_is_lost(supervisor: Supervisor) -> None:
    lost = 0

    async def work() -> None:
        nonlocal lost
        while lost < 3:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                lost += 1

    task = supervisor.task("kind", "it", work, cancel_again_seconds=0.01)
    task.start()
    await asyncio.sleep(0)
    await asyncio.wait_for(task.stop(), 10)
    assert lost == 3
    assert supervisor.restarts() == {"kind": 0}


@asynchronous
async def test_a_task_that_stops_itself_does_not_wait_for_itself(supervisor: Supervisor, lines: Lines) -> None:
    over = asyncio.Event()

    async def work() -> None:
        await task.stop()
        over.set()
        await asyncio.Event().wait()

    task = supervisor.start("kind", "it", work)
    await asyncio.wait_for(over.wait(), 10)
    await eventually(lambda: not task.running)
    assert lines.lines == []


def test_what_asyncio_cancels_when_a_program_ends_is_no_news(lines: Lines) -> None:
    async def program() -> None:
        Supervisor(log=lines).start("kind", "it", asyncio.Event().wait)
        await asyncio.sleep(0)

    asyncio.run(program())
    assert lines.lines == []


@asynchronous
async def test_a_task_whose_coroutine_cannot_be_made_is_told_and_tried_again(
    supervisor: Supervisor, lines: Lines
) -> None:
    work, made = Work(), 0

    def make() -> Any:
        nonlocal made
        made += 1
        if made in (1, 3):
            raise ValueError("not yet")
        return work()

    task = supervisor.start("kind", "name", make)
    await eventually(lambda: work.starts == 1, "the second start")
    task.interrupt()
    await eventually(lambda: work.starts == 2, "the fourth start")
    await eventually(lambda: len(lines.of("task ended; it starts again")) == 3, "the ends in the log")
    assert {line["cause"] for line in lines.of("task ended; it starts again")} == {
        "ValueError: not yet",
        "it was cancelled",
    }
    await supervisor.stop()
    assert not supervisor.running()
