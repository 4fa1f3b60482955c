"""The scenarios: when which worker is killed, when clients move, and when the drill is over.

The operator's part of a drill. It starts the workers, lets traffic flow, kills, moves the clients at once
(an unplanned failover), starts the killed worker again while traffic goes on, and waits until both sides have settled:
everything published, copied both ways, consumed, and acknowledged on both sides.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Final

import aiohttp

from replicator.drills.errors import NoPair
from replicator.drills.input import InputMessage
from replicator.drills.observations import Observations
from replicator.drills.traffic import (
    EXCLUSIVE,
    SHARED,
    SHARED_CONSUMERS,
    ActiveCluster,
    Drill,
    MarkDeletePoller,
    Publisher,
    Subscriber,
    TailReader,
)
from replicator.processes import WorkerFailed, WorkerProcess, stop_left_postgres
from replicator.status import fetch
from replicator.topology import Topology
from snapshots.position import BEFORE_ALL, Position

SETTLE_SECONDS_MAX: Final = 60.0
SETTLE_POLL_SECONDS: Final = 0.2
HIGH_WATER_PAUSE_SECONDS: Final = 0.1
"""Frames that left before the kill are still being read; the mark is taken when it no longer moves."""
HIGH_WATER_TRIES: Final = 20
SECOND_KILL_AFTER_SECONDS: Final = (1.5, 3.5)
"""A random moment after the other cluster has caught up; by then a coarse update has followed the messages."""
DOWN_SHARE: Final = 0.2
"""A killed worker stays away for this share of the messages, so that both sides take new ones alone."""


class Scenario(Enum):
    """Kill the primary halfway; or kill each cluster once while it is the primary, at random moments."""

    KILL_PRIMARY = "kill-primary"
    KILL_EACH = "kill-each"


@dataclass(frozen=True, slots=True)
class Plan:
    """Kill ``cluster`` when ``at`` messages are published, and start it again at ``again_at``."""

    cluster: str
    at: int
    again_at: int


@dataclass(frozen=True, slots=True)
class Progress:
    """For the progress bars: counts so far, and what is going on."""

    phase: str
    published: int
    confirmed: int
    exclusive: int
    shared: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run left behind for the report. ``unsettled`` says what had not settled in time, if anything."""

    observations: Observations
    topic: str
    started_s: float
    ended_s: float
    unsettled: str | None


def plan_kills(scenario: Scenario, primary: str, secondary: str, messages: int, source: random.Random) -> list[Plan]:
    """When to kill whom, in message counts, so that a drill of any length has the same shape."""
    down = int(messages * DOWN_SHARE)
    if scenario is Scenario.KILL_PRIMARY:
        return [Plan(primary, messages // 2, messages // 2 + down)]
    first = int(messages * source.uniform(0.1, 0.3))
    second = int(messages * source.uniform(0.55, 0.75))
    return [Plan(primary, first, first + down), Plan(secondary, second, second + down)]


def choose_pair(topology: Topology) -> tuple[str, str]:
    """The cluster where the drill starts and the one it moves to: the first two that are linked both ways."""
    for name in topology.names:
        peers = topology.peers_both_ways(name)
        if peers:
            return name, peers[0]
    raise NoPair(
        f"{topology.path}: links: no two clusters are linked both ways, so no client could move and come back; "
        "add {between: [A, B]}"
    )


class Run:
    """One run of a scenario over the workers of ``topology``."""

    def __init__(
        self,
        topology: Topology,
        topology_file: Path,
        logs: Path,
        *,
        scenario: Scenario,
        messages: Iterable[InputMessage],
        count: int,
        rate: int,
        seed: int,
        on_progress: Callable[[Progress], None],
    ) -> None:
        self._topology = topology
        self._primary, self._secondary = choose_pair(topology)
        self._count = count
        self._random = random.Random(seed)
        self._plans = plan_kills(scenario, self._primary, self._secondary, count, self._random)
        self._on_progress = on_progress
        self._phase = "starting workers"
        self.workers = {
            cluster.name: WorkerProcess(
                cluster.name, cluster.address, topology_file, log_file=logs / f"worker-{cluster.name}.log"
            )
            for cluster in topology.clusters
        }
        self._urls = {cluster.name: f"http://{cluster.address}" for cluster in topology.clusters}
        self._running = {name: asyncio.Event() for name in self._pair}
        topic = f"persistent://public/drill/{scenario.value}-{seed}-{time.time_ns() // 1_000_000}"
        self._drill = Drill(
            topic,
            Observations((EXCLUSIVE, SHARED)),
            ActiveCluster(self._primary, self._urls),
            self._random,
            asyncio.Event(),
        )
        self._publisher = Publisher(self._drill, messages, rate)
        self._seen: dict[str, set[int]] = {EXCLUSIVE.name: set(), SHARED.name: set()}
        self._subscribers = [Subscriber(self._drill, EXCLUSIVE, "exclusive-1", self._seen[EXCLUSIVE.name])] + [
            Subscriber(self._drill, SHARED, f"shared-{number}", self._seen[SHARED.name])
            for number in range(1, SHARED_CONSUMERS + 1)
        ]

    @property
    def _pair(self) -> tuple[str, str]:
        return self._primary, self._secondary

    async def start(self) -> None:
        """Start every worker; raises :class:`WorkerFailed`."""
        await asyncio.gather(*(worker.start() for worker in self.workers.values()))
        await asyncio.gather(*(worker.ready() for worker in self.workers.values()))
        for running in self._running.values():
            running.set()

    async def run(self) -> Outcome:
        """Let traffic flow through the planned kills until all has settled."""
        started = time.monotonic()
        watchers = [
            watcher(self._drill, name, self._urls[name], self._running[name]).run()
            for name in self._pair
            for watcher in (TailReader, MarkDeletePoller)
        ]
        async with asyncio.TaskGroup() as group:
            consuming = [group.create_task(subscriber.run()) for subscriber in self._subscribers]
            watching = [group.create_task(watcher) for watcher in watchers]
            reporting = [group.create_task(self._report_progress())]
            reporting += [group.create_task(self._watch(name)) for name in self._pair]
            publishing = group.create_task(self._publisher.run())
            await self._carry_out_plans()
            await publishing
            self._phase = "settling"
            unsettled = await self._settle()
            self._drill.finished.set()
            await asyncio.wait(consuming + watching, timeout=10)
            for task in [*consuming, *watching, *reporting]:
                task.cancel()
        self._on_progress(self._progress())
        return Outcome(self._drill.observations, self._drill.topic, started, time.monotonic(), unsettled)

    async def stop(self) -> None:
        """Stop every worker, and what a killed one left running."""
        await asyncio.gather(*(worker.stop() for worker in self.workers.values()))
        for cluster in self._topology.clusters:
            stop_left_postgres(self.workers[cluster.name], cluster.data)

    # The operator.

    async def _carry_out_plans(self) -> None:
        self._phase = f"traffic at {self._primary}"
        for number, plan in enumerate(self._plans):
            await self._published(plan.at)
            if number > 0:
                # Nobody fails over to a cluster that is only just coming back; one waits until it has caught up.
                await self._caught_up(self._plans[number - 1].cluster, behind=plan.cluster)
                await asyncio.sleep(self._random.uniform(*SECOND_KILL_AFTER_SECONDS))
            await self._kill(plan.cluster)
            await self._published(plan.again_at)
            await self._start_again(plan.cluster)

    async def _kill(self, name: str) -> None:
        survivor = self._secondary if name == self._primary else self._primary
        self._running[name].clear()
        killed_s = time.monotonic()
        await self.workers[name].kill()
        kill = self._drill.observations.killed(name, killed_s)
        await self._drill.active.move(survivor)
        self._phase = f"{name} killed, traffic at {survivor}"
        high_water = await self._last_high_water(survivor, origin=name)
        self._drill.observations.high_water(kill, survivor, high_water)

    async def _start_again(self, name: str) -> None:
        worker = self.workers[name]
        await worker.start()
        await worker.ready()
        self._drill.observations.restarted(name, time.monotonic())
        self._running[name].set()
        self._phase = f"{name} back, traffic at {self._drill.active.name}"

    async def _watch(self, name: str) -> None:
        """A worker that ends unless we killed it ends the drill: raises :class:`WorkerFailed`."""
        while True:
            await self._running[name].wait()
            status = await self.workers[name].wait()
            if self._running[name].is_set():
                raise WorkerFailed(f"the worker of {name} ended with status {status} and was not to")

    async def _published(self, count: int) -> None:
        await self._publisher.wait_until_confirmed(min(count, self._count))

    async def _caught_up(self, name: str, *, behind: str) -> None:
        """Wait until ``name`` has all that ``behind`` originated up to now."""
        async with _session() as session:
            target = await self._high_water(session, behind, origin=behind)
            while True:
                if await self._high_water(session, name, origin=behind) >= target:
                    return
                await asyncio.sleep(SETTLE_POLL_SECONDS)

    async def _last_high_water(self, name: str, *, origin: str) -> Position:
        """What ``name`` has of ``origin``, which is down, once that no longer moves."""
        async with _session() as session:
            before = await self._high_water(session, name, origin=origin)
            for _ in range(HIGH_WATER_TRIES):
                await asyncio.sleep(HIGH_WATER_PAUSE_SECONDS)
                now = await self._high_water(session, name, origin=origin)
                if now == before:
                    break
                before = now
        return before

    async def _high_water(self, session: aiohttp.ClientSession, name: str, *, origin: str) -> Position:
        url = f"{self._urls[name]}/replication/v1/high-water"
        async with session.get(url, params={"origin": origin}) as response:
            row = (await response.json())["topics"].get(self._drill.topic)
        return Position.parse(row["position"]) if row else BEFORE_ALL

    # The end.

    async def _settle(self) -> str | None:
        """Wait until nothing is left to do anywhere; returns what was left when the time was over."""
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        async with _session() as session:
            while (left := await self._left_to_do(session)) is not None:
                if time.monotonic() > deadline:
                    return left
                await asyncio.sleep(SETTLE_POLL_SECONDS)
        return None

    async def _left_to_do(self, session: aiohttp.ClientSession) -> str | None:
        topics: dict[str, Mapping[str, Any]] = {}
        for name in self._pair:
            answer = await fetch(session, self._topology.cluster(name).address)
            if "error" in answer:
                return f"{name}: {answer['error']}"
            found = [topic for topic in answer["topics"] if topic["name"] == self._drill.topic]
            if not found:
                return f"{name} has no topic {self._drill.topic}"
            topics[name] = found[0]
        first, second = (topics[name]["high_water"] for name in self._pair)
        for origin in self._pair:
            if first.get(origin) != second.get(origin):
                return f"messages of {origin} are not all copied: {first.get(origin)} and {second.get(origin)}"
        for name, topic in topics.items():
            states = {subscription["name"]: subscription for subscription in topic["subscriptions"]}
            for subscription in self._drill.observations.subscriptions:
                state = states.get(subscription.name)
                if state is None or state["backlog_entries"] > 0:
                    backlog = "is missing" if state is None else f"has a backlog of {state['backlog_entries']} entries"
                    return f"{subscription.name} {backlog} at {name}"
        return None

    # Progress.

    async def _report_progress(self) -> None:
        while True:
            self._on_progress(self._progress())
            await asyncio.sleep(0.1)

    def _progress(self) -> Progress:
        return Progress(
            self._phase,
            self._publisher.published,
            self._publisher.confirmed,
            len(self._seen[EXCLUSIVE.name]),
            len(self._seen[SHARED.name]),
        )


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5))
