"""One lane of a plan, as one Spark task carries it: segment after segment, for as long as the micro-batch lasts.

A segment is asked for before those under way are done, so that the lane never stands still, and what is done is
reported with the next question. So the copy lags by segments, milliseconds, and not by micro-batches.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Final

import uvloop

from replicator.links.errors import LinkError
from replicator.pipeline.carrying import Carrier, LinkWork
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import PipelineError, PlanGone
from replicator.pipeline.link_plans import WAIT_MS_MAX, Done, LinkPlans, PlanId, Segment

SEGMENT_BYTES: Final = 8 * 1024 * 1024
"""What is asked for at once: two frames, some hundredths of a second, so that the worker knows how far its link is."""
SEGMENTS_AHEAD: Final = 3
"""Under way at once; fewer, and fewer bytes, than a worker hands out to a lane that has reported none of them."""


@dataclass(frozen=True, slots=True)
class LaneTask:
    """Carry lane number ``lane`` of a plan of ``work``, beginning with ``first``, for ``seconds``."""

    work: LinkWork
    plan: PlanId
    lane: int
    first: Segment | None
    seconds: float


@dataclass(slots=True)
class LaneResult:
    """Why a lane stopped before its time, and what it had carried by then and could not report."""

    unreported: list[Done] = field(default_factory=list)
    error: str | None = None


def carry_lane(task: LaneTask) -> LaneResult:
    """Carry until the task's time is over. Nothing is raised that a worker's or a network's failure explains: the
    result says it, and whoever planned the lane plans what is left again."""
    result = LaneResult()
    try:
        uvloop.run(_carry(task, result))
    except PlanGone:
        result.unreported = []  # nobody wants to know; the link has asked the destination itself
    except (PipelineError, LinkError) as error:
        result.error = str(error)
    return result


async def _carry(task: LaneTask, result: LaneResult) -> None:
    deadline = time.monotonic() + task.seconds
    under_way: deque[tuple[int, asyncio.Future[Done]]] = deque()
    with DataPlane(task.work.worker_url) as worker:
        plans = LinkPlans(worker, task.work.key)
        async with Carrier(task.work) as carrier:
            if task.first is not None:
                under_way.append((task.first["segment"], carrier.start(task.first)))
            while (left := deadline - time.monotonic()) > 0:
                _collect(under_way, result)
                if len(under_way) >= SEGMENTS_AHEAD:
                    await asyncio.wait([under_way[0][1]])
                    continue
                reported = list(result.unreported)
                segment = await asyncio.to_thread(
                    plans.following,
                    task.plan,
                    task.lane,
                    reported,
                    holding=[number for number, _ in under_way],
                    bytes_max=SEGMENT_BYTES,
                    wait_ms=0 if under_way else min(int(left * 1000), WAIT_MS_MAX),
                )
                del result.unreported[: len(reported)]
                if segment is not None:
                    under_way.append((segment["segment"], carrier.start(segment)))
                elif under_way:
                    await asyncio.wait([under_way[0][1]])
            while under_way:
                await asyncio.wait([under_way[0][1]])
                _collect(under_way, result)
        if result.unreported:
            await asyncio.to_thread(plans.following, task.plan, task.lane, result.unreported, bytes_max=0)
            result.unreported = []


def _collect(under_way: deque[tuple[int, asyncio.Future[Done]]], result: LaneResult) -> None:
    """Take the segments that are done, in their order; raises what broke the carrier."""
    while under_way and under_way[0][1].done():
        _, future = under_way.popleft()
        result.unreported.append(future.result())
