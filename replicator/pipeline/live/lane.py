"""One lane of a plan, carried by one Spark task: segment after segment, for as long as the micro-batch lasts.

1. The next segment is asked for before the current ones are done, so that the lane never stands still. Finished
   segments are reported with the next question. So the copy lags by segments, milliseconds, and not by micro-batches.
2. The task ends with its micro-batch. Its process continues until the task of the next one relieves it, because Spark
   needs some tenths of a second to begin that (docs/adr/0037). Then it takes no new segment, and finishes and reports
   those that it has; meanwhile the new task waits. If no next batch comes, it leaves by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

import uvloop

from replicator.links.errors import LinkError
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import PipelineError, PlanGone
from replicator.pipeline.live.carrying import Carrier, LinkWork
from replicator.pipeline.live.link_plans import Done, LinkPlans, NextSegment, PlanId, Segment

SEGMENT_BYTES: Final = 8 * 1024 * 1024
"""Size of a segment: two frames, some hundredths of a second, so that the worker knows the progress of its link."""
SEGMENTS_AHEAD: Final = 3
"""Segments in flight at once. They are fewer, also in bytes, than a worker hands out to a lane without reports."""
LINGER_SECONDS: Final = 15.0
"""Longest time that a lane continues after its task until it is relieved: longer than a busy machine needs to end a
batch and begin the next."""
POLL_SECONDS: Final = 1.0
"""Longest time between two calls of a lane. Without one, its worker takes it for dead."""


@dataclass(frozen=True, slots=True)
class LaneTask:
    """Work of one Spark task: carry lane number ``lane`` of a plan, beginning with ``first``, for ``seconds``.

    It continues for up to ``linger_seconds`` while no other task has the lane."""

    work: LinkWork
    plan: PlanId
    lane: int
    first: Segment | None
    seconds: float
    linger_seconds: float = 0.0


@dataclass(slots=True)
class LaneResult:
    """Error that stopped a lane early, and the finished segments that it could not report."""

    unreported: list[Done] = field(default_factory=list)
    error: str | None = None


def carry_lane(task: LaneTask) -> LaneResult:
    """Carry a lane until the task's time is over; return its result.

    Failures of a worker or a network are in the result, not raised; the planner then plans the rest again. If the lane
    continues after the time, a thread of this process carries it and reports for itself."""
    time_over = threading.Event()
    outcome: Future[LaneResult] = Future()
    threading.Thread(
        target=_carry_in_thread, args=(task, time_over, outcome), name=f"lane {task.lane}", daemon=True
    ).start()
    time_over.wait()
    return outcome.result() if outcome.done() else LaneResult()


def _carry_in_thread(task: LaneTask, time_over: threading.Event, outcome: Future[LaneResult]) -> None:
    try:
        result = _carry_on(task, time_over)
        if time_over.is_set() and result.error is not None:  # nobody else says it
            with contextlib.suppress(PipelineError), DataPlane(task.work.worker_url) as worker:
                LinkPlans(worker, task.work.key).failed(task.plan, result.error)
        outcome.set_result(result)
    except BaseException as error:  # raised where the outcome is waited for; after that, here
        outcome.set_exception(error)
        if time_over.is_set():
            raise
    finally:
        time_over.set()


def _carry_on(task: LaneTask, time_over: threading.Event) -> LaneResult:
    result = LaneResult()
    try:
        uvloop.run(_carry(task, result, time_over))
    except PlanGone:
        result.unreported = []  # nobody wants to know; the link has asked the destination itself
    except (PipelineError, LinkError) as error:
        result.error = str(error)
    return result


async def _carry(task: LaneTask, result: LaneResult, time_over: threading.Event) -> None:
    leave_at = time.monotonic() + task.seconds + task.linger_seconds
    if task.linger_seconds:
        asyncio.get_running_loop().call_later(task.seconds, time_over.set)
    with DataPlane(task.work.worker_url) as worker:
        async with Carrier(task.work) as carrier:
            lane = _Lane(task, LinkPlans(worker, task.work.key), carrier, result)
            if task.first is not None:
                lane.start(task.first)
            while not lane.relieved and (left := leave_at - time.monotonic()) > 0:
                if lane.has_room:
                    following = await lane.ask(0.0 if lane.under_way else min(left, POLL_SECONDS))
                    if following.segment is not None:
                        lane.start(following.segment)
                        continue
                if not await lane.wait():
                    await lane.ask()
            while lane.under_way:
                await lane.wait()
                await lane.ask()
        await lane.leave()


class _Lane:
    """Segments that a lane has in flight, and its questions to the worker."""

    def __init__(self, task: LaneTask, plans: LinkPlans, carrier: Carrier, result: LaneResult) -> None:
        self._task = task
        self._plans = plans
        self._carrier = carrier
        self._result = result
        self.under_way: deque[tuple[int, asyncio.Future[Done]]] = deque()
        self.relieved = False

    @property
    def has_room(self) -> bool:
        return len(self.under_way) < SEGMENTS_AHEAD

    def start(self, segment: Segment) -> None:
        self.under_way.append((segment["segment"], self._carrier.start(segment)))

    async def wait(self) -> bool:
        """Wait a while for the first segment in flight, if there is one. Return False if it is not done."""
        if not self.under_way:
            return True
        await asyncio.wait([self.under_way[0][1]], timeout=POLL_SECONDS)
        return self._collect()

    async def ask(self, wait_seconds: float | None = None) -> NextSegment:
        """Report finished segments, and ask for the next one; without ``wait_seconds`` only report.

        Raises the errors that end the carrier.
        """
        self._collect()
        reported = list(self._result.unreported)
        following = await asyncio.to_thread(
            self._plans.following,
            self._task.plan,
            self._task.lane,
            reported,
            holding=[number for number, _ in self.under_way],
            bytes_max=0 if wait_seconds is None else SEGMENT_BYTES,
            wait_ms=int((wait_seconds or 0.0) * 1000),
        )
        del self._result.unreported[: len(reported)]
        self.relieved = self.relieved or following.relieved
        return following

    async def leave(self) -> None:
        await asyncio.to_thread(self._plans.leave, self._task.plan, self._task.lane, self._result.unreported)
        self._result.unreported = []

    def _collect(self) -> bool:
        """Take the finished segments, in their order; return whether there was any."""
        before = len(self.under_way)
        while self.under_way and self.under_way[0][1].done():
            _, future = self.under_way.popleft()
            self._result.unreported.append(future.result())
        return len(self.under_way) < before
