"""Spark task of a backfill: it carries one lane of a plan until the lane is empty, or for a limited time.

Every topic is in one lane, because its blocks must be appended in order; so topics are carried side by side, and one
topic is as fast as one task. A task that runs again, or twice at once, does no harm: the destination takes each block
once.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Final

import uvloop

from replicator.links.errors import LinkError
from replicator.pipeline.backfill.progress import Pace
from replicator.pipeline.data_plane import DataPlane
from replicator.pipeline.errors import PipelineError
from replicator.pipeline.live.carrying import Carrier, LinkWork
from replicator.pipeline.live.link_plans import Done, LinkPlans, PlanId, Segment

AHEAD: Final = 2
"""Segments of a lane in flight. The next one is fetched while the last frames of one are being committed."""
SMALL_SHARE: Final = 16
"""Share below which a segment is small. One below a sixteenth of the largest ends a backlog; live traffic follows."""


@dataclass(frozen=True, slots=True)
class LaneWork:
    """Settings of a job that every task of it gets. Picklable."""

    link: LinkWork
    plan: PlanId
    bytes_max: int
    """Largest size of one segment."""
    seconds_max: float
    """Time after which a task ends, so that the next job can divide the rate again."""
    rate_bytes: float | None = None
    """Bytes per second that this lane may carry."""
    wait_ms: int = 0
    """Longest wait of the worker for the lane's next segment before it answers that there is none."""


@dataclass(slots=True)
class LaneResult:
    """Result of a task. ``unreported`` segments are reported when the plan ends."""

    lane: int
    segments: int = 0
    bytes: int = 0
    wire_bytes: int = 0
    moved: bool = False
    topics: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Entries and bytes by topic."""
    refused: dict[str, str] = field(default_factory=dict)
    unreported: list[Done] = field(default_factory=list)
    error: str | None = None
    unavailable: bool = False

    def add(self, segment: Segment, done: Done) -> None:
        self.segments += 1
        self.bytes += done["bytes"]
        self.wire_bytes += done["wire_bytes"]
        blocks = {topic["topic"]: topic["blocks"] for topic in segment["topics"]}
        for topic in done["topics"]:
            name, refused = topic["topic"], topic["refused"]
            if refused is not None:
                self.refused[name] = f"{refused['code']}: {refused['message']}"
                continue
            self.moved = True
            entries, size_bytes = self.topics.get(name, (0, 0))
            carried = blocks.get(name, ())
            self.topics[name] = (
                entries + sum(block[2] for block in carried),
                size_bytes + sum(block[3] for block in carried),
            )


def carry_lanes(work: LaneWork, lanes: Iterable[tuple[int, Segment]]) -> Iterator[LaneResult]:
    """Carry lanes, each beginning with its given segment. Errors are in the results.

    A terminal's Ctrl-C reaches the tasks of a local master too. It is meant for the driver, which ends them.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    for lane, segment in lanes:
        yield uvloop.run(_carry_lane(work, lane, segment))


async def _carry_lane(work: LaneWork, lane: int, first: Segment) -> LaneResult:
    result = LaneResult(lane)
    link = replace(work.link, stream=f"backfill-{lane}")
    try:
        with DataPlane(link.worker_url) as worker:
            async with Carrier(link) as carrier:
                carried = _Lane(work, lane, carrier, LinkPlans(worker, link.key), result)
                try:
                    await carried.carry(first)
                finally:
                    carried.give_up()
    except (PipelineError, LinkError) as error:
        result.error = str(error)
    return result


class _Lane:
    def __init__(self, work: LaneWork, lane: int, carrier: Carrier, plans: LinkPlans, result: LaneResult) -> None:
        self._work = work
        self._lane = lane
        self._carrier = carrier
        self._plans = plans
        self._result = result
        self._under_way: deque[tuple[Segment, asyncio.Future[Done]]] = deque()
        now = time.monotonic()
        self._until = now + work.seconds_max
        self._pace = None if work.rate_bytes is None else Pace(work.rate_bytes, now)

    async def carry(self, first: Segment) -> None:
        """Carry segments until the lane has no more, or its time is up. Then nothing is in flight."""
        segment: Segment | None = first
        more = True
        while segment is not None or self._under_way:
            if segment is not None:
                await self._start(segment)
                more = more and segment["bytes"] * SMALL_SHARE >= self._work.bytes_max
                segment = None
            more = more and time.monotonic() < self._until
            if more and len(self._under_way) < AHEAD:
                segment = await self._following()
                if segment is not None:
                    continue
            if self._under_way:
                await self._finish()
                if more and not self._under_way:  # with nothing under way, no answer means that nothing is left
                    segment = await self._following()

    def give_up(self) -> None:
        """Drop the segments in flight. They may have arrived or not."""
        for _, future in self._under_way:
            future.cancel()

    async def _start(self, segment: Segment) -> None:
        if self._pace is not None:
            await asyncio.sleep(self._pace.wait_seconds(time.monotonic()))
            self._pace.take(segment["bytes"], time.monotonic())
        self._under_way.append((segment, self._carrier.start(segment)))

    async def _finish(self) -> None:
        segment, future = self._under_way.popleft()
        done = await future
        if self._pace is not None:  # the rate is of what goes over the wire
            self._pace.take(done["wire_bytes"] - segment["bytes"], time.monotonic())
        self._result.add(segment, done)
        self._result.unreported.append(done)

    async def _following(self) -> Segment | None:
        reports, self._result.unreported = self._result.unreported, []
        following = await asyncio.to_thread(
            self._plans.following,
            self._work.plan,
            self._lane,
            reports,
            bytes_max=self._work.bytes_max,
            wait_ms=0 if self._under_way else self._work.wait_ms,
            holding=[segment["segment"] for segment, _ in self._under_way],
        )
        return following.segment
