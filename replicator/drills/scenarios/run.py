"""One run of a scenario: starts the workers and the traffic, has the operator take the steps, and waits until all has
settled: everything published, copied everywhere it goes, consumed, and acknowledged wherever that is told."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from replicator.drills.errors import DrillError
from replicator.drills.input import InputMessage
from replicator.drills.observations import Observations
from replicator.drills.scenarios.catalog import Scenario
from replicator.drills.scenarios.operator import Operator
from replicator.drills.scenarios.parts import Parts
from replicator.drills.scenarios.steps import room_before
from replicator.drills.subscriptions import TestedSubscription
from replicator.drills.systems.seen import until_still
from replicator.drills.systems.system import StepTimedOut, System
from replicator.drills.traffic.active import ActiveCluster, Drill
from replicator.drills.traffic.publisher import Publishers
from replicator.drills.traffic.subscriber import Subscriber

SETTLE_SECONDS_MAX: Final = 60.0
SETTLE_POLL_SECONDS: Final = 0.2
PROGRESS_SECONDS: Final = 0.1
FIRST_SHARE_MAX: Final = 0.1
"""Largest share of the messages that is published before the clusters are in step."""
READY_SECONDS: Final = 2.0
"""Time in which a few messages are everywhere if links copy as fast as later. Spark's first batches take longer."""
READY_ROUNDS_MAX: Final = 5
"""Most rounds of a few messages. On a busy machine none of them is fast, and Spark has compiled its code by then."""
BEGIN_SECONDS_MAX: Final = 150.0
"""Longest time until the clusters are in step. Brokers and workers run before, so an idle machine takes seconds."""
STALLED_SECONDS_MAX: Final = 180.0
"""Time without confirmations after which a drill fails. No step waits so long for a worker to start or catch up."""


@dataclass(frozen=True, slots=True)
class Progress:
    """State for the progress bars: counts so far, and what the drill does now."""

    phase: str
    published: int
    confirmed: int
    consumed: Mapping[str, int]
    """Number of consumed messages for each subscription."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of a run for the report. ``unsettled`` says what had not settled in time, if anything."""

    observations: Observations
    topics: tuple[str, ...]
    started_s: float
    ended_s: float
    unsettled: str | None
    failovers: list[dict[str, Any]]
    lost_disks: list[dict[str, Any]]
    """Clusters that lost their disks, each with the times until it served again."""


class _Seen:
    """Ids that a subscription has received."""

    def __init__(self) -> None:
        self._flags = bytearray()
        self.count = 0

    def __call__(self, message_id: int) -> None:
        if message_id >= len(self._flags):
            self._flags.extend(bytes(message_id + 1 - len(self._flags)))
        if not self._flags[message_id]:
            self._flags[message_id] = 1
            self.count += 1


class Run:
    """One run of a scenario on a system."""

    def __init__(
        self,
        system: System,
        scenario: Scenario,
        subscriptions: Sequence[TestedSubscription],
        *,
        messages: Iterable[InputMessage],
        count: int,
        rate: int,
        seed: int,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._system = system
        source = random.Random(seed)
        self._steps = scenario.steps(source)
        self._count = count
        self._on_progress = on_progress
        observations = Observations(tuple(each.observed for each in subscriptions), len(system.topics))
        for name in system.clusters:
            observations.clusters.code(name)
        active = ActiveCluster(system.cast.primary)
        self._drill = Drill(system.topics, observations, active, system.clients(active), source, asyncio.Event())
        self._publisher = Publishers(self._drill, messages, rate, count)
        self._seen = {each.name: _Seen() for each in subscriptions}
        self._subscribers = [
            Subscriber(self._drill, topic, each, f"{each.kind}-{number}", self._seen[each.name])
            for topic in system.topics
            for each in subscriptions
            for number in range(1, each.consumers + 1)
        ]
        self._operator = Operator(system, self._drill, self._publisher, count=count)

    async def run(self) -> Outcome:
        """Let traffic flow through the scenario until all has settled."""
        started = time.monotonic()
        async with Parts() as parts:
            consuming = [parts.start("a subscriber", each.run()) for each in self._subscribers]
            watching = [parts.start("a watcher", each) for each in self._system.watchers(self._drill)]
            others = [parts.start("the report of progress", self._report_progress())]
            others += [parts.start(what, chore) for what, chore in self._system.background_work()]
            publishing = [parts.start("a publisher", each.run()) for each in self._publisher]
            await self._begin()
            unsettled = await self._take_steps()
            await asyncio.gather(*publishing)
            self._operator.count(time.monotonic())
            await self._operator.counted()
            self._operator.phase = "settling"
            unsettled = unsettled or await self._settle()
            if self._operator.lost_disks:  # what the readers have not seen counts as lost
                await until_still(self._drill)
            self._drill.finished.set()
            await asyncio.wait(consuming + watching, timeout=10)
            parts.end(*consuming, *watching, *others)
        self._on_progress(self.progress())
        return Outcome(
            self._drill.observations,
            self._drill.topics,
            started,
            time.monotonic(),
            unsettled,
            self._operator.failovers,
            self._operator.lost_disks,
        )

    async def _begin(self) -> None:
        """Publish a few messages, and wait until the clusters are in step. Raise :class:`DrillError` if they are late.

        Repeat this until it takes at most :data:`READY_SECONDS`, but not more than :data:`READY_ROUNDS_MAX` times.
        Lags are not measured meanwhile, like those of a broken link: they belong to the start. Systems that need no
        such time skip this.
        """
        if not self._system.first_messages:
            return
        step, most = self._system.first_messages, math.ceil(FIRST_SHARE_MAX * self._count)
        observations, now = self._drill.observations, time.monotonic()
        for source, destination in self._system.links:
            observations.link_broke(source, destination, now)
        self._operator.phase = "bringing the clusters in step"
        deadline = now + BEGIN_SECONDS_MAX
        for number in range(1, READY_ROUNDS_MAX + 1):
            began = time.monotonic()
            await self._synchronise(min(number * step, most), deadline)
            if time.monotonic() - began <= READY_SECONDS:
                break
        now = time.monotonic()
        for source, destination in self._system.links:
            observations.link_repaired(source, destination, now)

    async def _synchronise(self, count: int, deadline: float) -> None:
        """Publish until ``count`` messages are confirmed, and wait until the clusters are in step.

        Raise :class:`DrillError` if they are not at ``deadline``, a time of the monotonic clock.
        """
        self._publisher.limit_first(count)
        await self._publisher.wait_until_confirmed(count)
        while (what_is_left := await self._system.unmet_start_condition(self._drill)) is not None:
            if time.monotonic() > deadline:
                raise DrillError(
                    f"the clusters were not in step after {BEGIN_SECONDS_MAX:.0f} s: {what_is_left}; see the workers' "
                    "logs in the drill's directory"
                )
            await asyncio.sleep(SETTLE_POLL_SECONDS)

    async def _take_steps(self) -> str | None:
        """Take the steps of the scenario. If a step waits in vain, return what it waited for, and skip the rest."""
        try:
            for step, room in zip(self._steps, room_before(self._steps), strict=True):
                self._publisher.limit(room)
                await self._operator.take(step)
        except StepTimedOut as error:
            return str(error)
        finally:
            self._publisher.limit(None)
        return None

    async def _settle(self) -> str | None:
        """Wait until nothing is left to do anywhere; return what was left when the time was over."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while True:
            left = await self._system.unsettled_work(self._drill)
            if left is None or time.monotonic() > deadline:
                return left
            await asyncio.sleep(SETTLE_POLL_SECONDS)

    async def _report_progress(self) -> None:
        """Report the progress until cancelled. Raise :class:`DrillError` if confirmations stop too early."""
        confirmed, since = -1, time.monotonic()
        while True:
            self._on_progress(self.progress())
            if self._publisher.confirmed > confirmed or self._publisher.confirmed >= self._count:
                confirmed, since = self._publisher.confirmed, time.monotonic()
            elif time.monotonic() - since > STALLED_SECONDS_MAX:
                raise DrillError(
                    f"no published message was confirmed for {STALLED_SECONDS_MAX:.0f} s (phase: "
                    f"{self._operator.phase}); see the logs in the drill's directory"
                )
            await asyncio.sleep(PROGRESS_SECONDS)

    def progress(self) -> Progress:
        return Progress(
            self._operator.phase,
            self._publisher.published,
            self._publisher.confirmed,
            {name: seen.count for name, seen in self._seen.items()},
        )
