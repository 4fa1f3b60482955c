"""One run of a scenario: starts the workers and the traffic, has the operator take the steps, and waits until all has
settled: everything published, copied everywhere it goes, consumed, and acknowledged wherever that is told."""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import aiohttp

from replicator.drills.errors import DrillError
from replicator.drills.input import InputMessage
from replicator.drills.observations import Observations
from replicator.drills.scenarios.cast import Cast
from replicator.drills.scenarios.catalog import Scenario
from replicator.drills.scenarios.operator import Failover, Operator, StepTimedOut
from replicator.drills.scenarios.parts import Parts
from replicator.drills.scenarios.settling import left_to_do
from replicator.drills.scenarios.steps import room_before
from replicator.drills.stage import Stage
from replicator.drills.subscriptions import TestedSubscription
from replicator.drills.traffic.ack_watcher import AckWatcher
from replicator.drills.traffic.active import ActiveCluster, Drill
from replicator.drills.traffic.making import make_clients
from replicator.drills.traffic.publisher import Publisher
from replicator.drills.traffic.subscriber import Subscriber
from replicator.drills.traffic.tail_reader import TailReader
from replicator.operating.status import fetch
from replicator.security.asking import worker_session

SETTLE_SECONDS_MAX: Final = 60.0
SETTLE_POLL_SECONDS: Final = 0.2
PROGRESS_SECONDS: Final = 0.1
STALLED_SECONDS_MAX: Final = 180.0
"""Longer than any step waits while clients wait too: for a worker to start, or for one to catch up."""


@dataclass(frozen=True, slots=True)
class Progress:
    """For the progress bars: counts so far, and what is going on."""

    phase: str
    published: int
    confirmed: int
    consumed: Mapping[str, int]
    """By subscription."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run left behind for the report. ``unsettled`` says what had not settled in time, if anything."""

    observations: Observations
    topic: str
    started_s: float
    ended_s: float
    unsettled: str | None
    failovers: list[dict[str, Any]]
    statuses: Mapping[str, Mapping[str, Any]]
    """What the workers said at the end."""


class _Seen:
    """Which ids a subscription has been handed."""

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
    """One run of a scenario on a stage."""

    def __init__(
        self,
        stage: Stage,
        scenario: Scenario,
        subscriptions: Sequence[TestedSubscription],
        cast: Cast,
        *,
        topic: str,
        messages: Iterable[InputMessage],
        count: int,
        rate: int,
        seed: int,
        client: str,
        out_dir: Path,
        failover: Failover,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._stage = stage
        self._topology = stage.topology
        self._cast = cast
        source = random.Random(seed)
        self._steps = scenario.steps(source)
        self._count = count
        self._on_progress = on_progress
        urls = {cluster.name: cluster.pulsar_url for cluster in stage.topology.clusters}
        observations = Observations(tuple(each.observed for each in subscriptions))
        for name in stage.topology.names:
            observations.clusters.code(name)
        active = ActiveCluster(self._cast.primary)
        clients = make_clients(client, stage.topology, active, out_dir, stage.client_access)
        self._drill = Drill(topic, observations, active, clients, source, asyncio.Event())
        self._publisher = Publisher(self._drill, messages, rate)
        self._seen = {each.name: _Seen() for each in subscriptions}
        self._subscribers = [
            Subscriber(self._drill, each, f"{each.kind}-{number}", self._seen[each.name])
            for each in subscriptions
            for number in range(1, each.consumers + 1)
        ]
        self._watchers = [
            watcher
            for name in self._cast.pair
            for watcher in (
                TailReader(self._drill, name, urls[name], stage.workers.running[name], stage.client_access),
                AckWatcher(self._drill, name, stage.topology.cluster(name).url, stage.workers.running[name]),
            )
        ]
        self._operator = Operator(
            stage.topology,
            self._cast,
            self._drill,
            self._publisher,
            stage.workers,
            count=count,
            failover=failover,
            faults=stage.faults,
            databases=stage.databases,
        )

    async def run(self) -> Outcome:
        """Let traffic flow through the scenario until all has settled."""
        started = time.monotonic()
        async with Parts() as parts:
            consuming = [parts.start("a subscriber", each.run()) for each in self._subscribers]
            watching = [parts.start("a watcher", each.run()) for each in self._watchers]
            others = [parts.start("the report of progress", self._report_progress())]
            others += [
                parts.start(f"the watch over {name}'s worker", self._stage.workers.watch(name))
                for name in self._topology.names
            ]
            if self._stage.secrets is not None:
                exchange = self._stage.secrets.exchange(self._topology)
                others.append(parts.start("the exchange of certificates", exchange))
            publishing = parts.start("the publisher", self._publisher.run())
            unsettled = await self._take_steps()
            await publishing
            self._operator.count(time.monotonic())
            await self._operator.counted()
            self._operator.phase = "settling"
            unsettled = unsettled or await self._settle()
            self._drill.finished.set()
            await asyncio.wait(consuming + watching, timeout=10)
            parts.end(*consuming, *watching, *others)
        self._on_progress(self._progress())
        return Outcome(
            self._drill.observations,
            self._drill.topic,
            started,
            time.monotonic(),
            unsettled,
            self._operator.failovers,
            await self._statuses(),
        )

    async def _take_steps(self) -> str | None:
        """Returns what a step waited for in vain, if one did; then the rest is not taken."""
        try:
            for step, room in zip(self._steps, room_before(self._steps), strict=True):
                self._publisher.messages_max = math.ceil(room * self._count)
                await self._operator.take(step)
        except StepTimedOut as error:
            return str(error)
        finally:
            self._publisher.messages_max = None
        return None

    async def _settle(self) -> str | None:
        """Wait until nothing is left to do anywhere; returns what was left when the time was over."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        names = [each.name for each in self._drill.observations.subscriptions]
        while True:
            left = left_to_do(
                self._topology,
                self._drill.topic,
                names,
                self._drill.active.name,
                await self._statuses(),
                databases=self._stage.databases is not None,
            )
            if left is None or time.monotonic() > deadline:
                return left
            await asyncio.sleep(SETTLE_POLL_SECONDS)

    async def _statuses(self) -> dict[str, dict[str, Any]]:
        async with worker_session(timeout=aiohttp.ClientTimeout(total=5)) as session:
            return {each.name: await fetch(session, each.address) for each in self._topology.clusters}

    async def _report_progress(self) -> None:
        """Until cancelled. Raises :class:`DrillError` if nothing is confirmed any more while it should be."""
        confirmed, since = -1, time.monotonic()
        while True:
            self._on_progress(self._progress())
            if self._publisher.confirmed > confirmed or self._publisher.confirmed >= self._count:
                confirmed, since = self._publisher.confirmed, time.monotonic()
            elif time.monotonic() - since > STALLED_SECONDS_MAX:
                raise DrillError(
                    f"nothing was confirmed for {STALLED_SECONDS_MAX:.0f} s ({self._operator.phase}); see the logs of "
                    f"the workers"
                )
            await asyncio.sleep(PROGRESS_SECONDS)

    def _progress(self) -> Progress:
        return Progress(
            self._operator.phase,
            self._publisher.published,
            self._publisher.confirmed,
            {name: seen.count for name, seen in self._seen.items()},
        )
