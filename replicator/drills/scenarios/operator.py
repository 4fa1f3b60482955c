"""The operator of a drill: takes the steps of a scenario, one after the other, and records when each was taken.

The shell around :mod:`replicator.drills.scenarios.steps`; one method for each kind of step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import aiohttp

from replicator.drills.faults import LinkFaults
from replicator.drills.observations import FailoverKind
from replicator.drills.own_databases import OwnDatabases
from replicator.drills.scenarios.cast import Cast
from replicator.drills.scenarios.steps import (
    CaughtUp,
    Confirmed,
    Disturb,
    FailOver,
    Kill,
    Move,
    Pause,
    Phase,
    Start,
    StartDatabases,
    Step,
    StopDatabases,
)
from replicator.drills.traffic.active import Drill
from replicator.drills.traffic.publisher import Publisher
from replicator.drills.workers import RunningWorkers
from replicator.operating.status import fetch
from replicator.running.short_tasks import awaited
from replicator.security.asking import worker_session
from replicator.topology import Topology
from snapshots.position import BEFORE_ALL, Position

POLL_SECONDS: Final = 0.1
HIGH_WATER_TRIES: Final = 20
"""Frames that left before the cut are still being read; the mark is taken when it no longer moves."""
CATCH_UP_SECONDS_MAX: Final = 60.0
COUNTED: Final = ("mappings", "updates_sent", "updates_applied")

Failover = Callable[[str, str, bool, bool], Awaitable[dict[str, Any]]]
"""Of the clients, from one cluster to another; planned or not, back or not. Returns what it reports."""


class StepTimedOut(Exception):
    """What a step waits for did not happen; the text says what."""


class Operator:
    """Takes steps in a drill that is under way."""

    def __init__(
        self,
        topology: Topology,
        cast: Cast,
        drill: Drill,
        publisher: Publisher,
        workers: RunningWorkers,
        *,
        count: int,
        failover: Failover,
        faults: LinkFaults | None = None,
        databases: OwnDatabases | None = None,
    ) -> None:
        self._topology = topology
        self._cast = cast
        self._drill = drill
        self._publisher = publisher
        self._workers = workers
        self._messages = count
        self._failover = failover
        self._faults = faults
        self._databases = databases
        self._cut_s: dict[str, float] = {}
        """Since when what happens at a cluster cannot be relied on to reach the others."""
        self._broken: set[tuple[str, str]] = set()
        self._counting: list[asyncio.Future[None]] = []
        self.phase = "starting workers"
        """What is going on, for people."""
        self.failovers: list[dict[str, Any]] = []
        """What each ``replicator failover`` reported."""

    async def take(self, step: Step) -> None:
        """Take one step; returns when it is done."""
        match step:
            case Phase(name):
                self._begin_phase(name)
            case Confirmed(share):
                await self._publisher.wait_until_confirmed(min(int(share * self._messages), self._messages))
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case CaughtUp(role, behind):
                await self._caught_up(self._cast.name(role), behind=self._cast.name(behind))
            case Kill(role):
                await self._kill(self._cast.name(role))
            case Start(role):
                await self._start_again(self._cast.name(role))
            case Disturb(source, destination, _):
                await self._disturb(self._cast.name(source), self._cast.name(destination), step)
            case Move(to, kind):
                await self._move(self._cast.name(to), kind)
            case FailOver(to, planned, back):
                await self._fail_over(self._cast.name(to), planned=planned, back=back)
            case StopDatabases():
                assert self._databases is not None
                await self._databases.stop()
                self.phase = f"no database, traffic at {self._drill.active.name}"
            case StartDatabases():
                assert self._databases is not None
                await self._databases.start()
                self.phase = f"databases back, traffic at {self._drill.active.name}"

    def count(self, now: float) -> None:
        """Record what the workers that run have counted by ``now``, without waiting for their answers."""
        self._counting.append(awaited(self._count(now)))

    async def counted(self) -> None:
        """Wait for all answers to :meth:`count`."""
        await asyncio.gather(*self._counting)

    async def _count(self, now: float) -> None:
        async with _session() as session:
            for cluster in self._topology.clusters:
                if not self._workers.running[cluster.name].is_set():
                    continue
                counters = (await fetch(session, cluster.address)).get("counters", {})
                for name in COUNTED:
                    if name in counters:
                        self._drill.observations.counted(name, cluster.name, counters[name], now)

    # Steps.

    def _begin_phase(self, name: str) -> None:
        now = time.monotonic()
        self.count(now)  # of one moment: it ends one phase and begins the other
        self._drill.observations.phase(name, now)
        self.phase = f"{name}: traffic at {self._drill.active.name}"

    async def _kill(self, name: str) -> None:
        self._cut_s[name] = time.monotonic()
        for pair in self._pairs_of(name):
            self._break(*pair)
        await self._workers.kill(name)
        self.phase = f"{name} killed"

    async def _start_again(self, name: str) -> None:
        await self._workers.start_again(name)
        for pair in self._pairs_of(name):
            self._repair(*pair)
        self.phase = f"{name} back, traffic at {self._drill.active.name}"

    async def _disturb(self, source: str, destination: str, step: Disturb) -> None:
        assert self._faults is not None
        if (source, destination) not in self._faults.pairs:
            return  # links that go one way only are disturbed that way
        if step.fault.breaks:
            self._cut_s.setdefault(source, time.monotonic())
            self._break(source, destination)
        await self._faults.set(source, destination, step.fault)
        if not step.fault.breaks:
            self._repair(source, destination)
            self.phase = f"link {source} → {destination} is there, traffic at {self._drill.active.name}"
        else:
            self.phase = f"link {source} → {destination} is broken, traffic at {self._drill.active.name}"

    async def _move(self, to: str, kind: FailoverKind) -> None:
        left = self._drill.active.name
        is_whole = (left, to) not in self._broken and self._workers.running[left].is_set()
        self._drill.watching_sync = False
        high_water = await self._high_water(to, origin=left) if is_whole else None
        now = time.monotonic()
        cut_s = now if is_whole else self._cut_s[left]
        number = self._drill.observations.failed_over(
            kind, left, to, cut_s, cut_s if kind is FailoverKind.KILL else now
        )
        await self._drill.active.move(to)
        self.phase = f"clients moved to {to}"
        if high_water is None:
            high_water = await self._last_high_water(to, origin=left)
        self._drill.observations.high_water(number, to, high_water)
        if is_whole:
            await self._publisher.wait_until_at(to)
            await self._caught_up(to, behind=left)
            self._drill.observations.returned(left, time.monotonic())

    async def _fail_over(self, to: str, *, planned: bool, back: bool) -> None:
        left = self._drill.active.name
        self._drill.watching_sync = False
        began_s = time.monotonic()
        kind = FailoverKind.PLANNED if planned else FailoverKind.KILL
        cut_s = began_s if planned else self._cut_s[left]
        self.phase = f"{'planned ' if planned else ''}{'failback' if back else 'failover'} to {to}"
        number = self._drill.observations.failed_over(kind, left, to, cut_s, cut_s)
        self.failovers.append(await self._failover(left, to, planned, back))
        await self._drill.active.move(to)
        self.phase = f"clients moved to {to}"
        self._drill.observations.high_water(number, to, await self._last_high_water(to, origin=left))
        if planned:
            self._drill.observations.returned(left, time.monotonic())

    # What they are made of.

    def _pairs_of(self, name: str) -> list[tuple[str, str]]:
        """The directed pairs of clusters that are broken while the worker of ``name`` is down."""
        pairs = dict.fromkeys((link.source, link.destination) for link in self._topology.links)
        return [pair for pair in pairs if name in pair]

    def _break(self, source: str, destination: str) -> None:
        if (source, destination) not in self._broken:
            self._broken.add((source, destination))
            self._drill.observations.link_broke(source, destination, time.monotonic())

    def _repair(self, source: str, destination: str) -> None:
        if (source, destination) in self._broken:
            self._broken.discard((source, destination))
            now = time.monotonic()
            self._drill.observations.link_repaired(source, destination, now)
            if not any(pair[0] == source for pair in self._broken):
                self._cut_s.pop(source, None)
                self._drill.observations.returned(source, now)

    async def _caught_up(self, name: str, *, behind: str) -> None:
        target = await self._high_water(behind, origin=behind)
        deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
        while await self._high_water(name, origin=behind) < target:
            if time.monotonic() > deadline:
                raise StepTimedOut(f"{name} had not caught up with {behind} in {CATCH_UP_SECONDS_MAX:.0f} s")
            await asyncio.sleep(POLL_SECONDS)

    async def _last_high_water(self, name: str, *, origin: str) -> Position:
        """What ``name`` has of ``origin``, which does not reach it, once that no longer moves."""
        before = await self._high_water(name, origin=origin)
        for _ in range(HIGH_WATER_TRIES):
            await asyncio.sleep(POLL_SECONDS)
            now = await self._high_water(name, origin=origin)
            if now == before:
                break
            before = now
        return before

    async def _high_water(self, name: str, *, origin: str) -> Position:
        url = f"{self._topology.cluster(name).url}/replication/v1/high-water"
        async with (
            _session() as session,
            session.get(url, params={"origin": origin, "topic": self._drill.topic}) as response,
        ):
            row: Mapping[str, Any] | None = (await response.json())["topics"].get(self._drill.topic)
        return Position.parse(row["position"]) if row else BEFORE_ALL


def _session() -> aiohttp.ClientSession:
    return worker_session(timeout=aiohttp.ClientTimeout(total=5))
