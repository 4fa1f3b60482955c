"""The operator of a drill: takes the steps of a scenario, one after the other, and records when each was taken.

The shell around :mod:`replicator.drills.scenarios.steps`; one method for each kind of step.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final

from replicator.drills.observations import FailoverKind
from replicator.drills.scenarios.steps import (
    CaughtUp,
    Confirmed,
    Disturb,
    FailOver,
    KeepUp,
    Kill,
    LoseDisk,
    Move,
    Pause,
    Phase,
    Start,
    StartDatabases,
    Step,
    StopDatabases,
)
from replicator.drills.systems.system import StepTimedOut, System
from replicator.drills.traffic.active import Drill
from replicator.drills.traffic.publisher import Publishers
from replicator.running.short_tasks import awaited
from snapshots.position import Position

POLL_SECONDS: Final = 0.1
CATCH_UP_SECONDS_MAX: Final = 60.0
KEPT_UP_LAG_SECONDS_MAX: Final = 0.5
"""Lag with which a cluster still keeps up: it has everything that the other cluster had this long ago."""
KEPT_UP_SECONDS: Final = 1.5
"""Time for which a cluster must have kept up: acknowledgements are told within a second."""


class Operator:
    """Takes steps in a drill that is under way."""

    def __init__(self, system: System, drill: Drill, publisher: Publishers, *, count: int) -> None:
        self._system = system
        self._cast = system.cast
        self._drill = drill
        self._publisher = publisher
        self._messages = count
        self._cut_s: dict[str, float] = {}
        """For each lost cluster, the time from which its events are not sure to reach the others."""
        self._broken: set[tuple[str, str]] = set()
        self._counting: list[asyncio.Future[None]] = []
        self.phase = "starting workers"
        """Text that says what the drill does now."""
        self.failovers: list[dict[str, Any]] = []
        """Reports of all ``replicator failover`` runs."""
        self._disks_lost_s: dict[str, float] = {}
        """For each cluster that lost its disk and did not start again yet, the time of the loss."""
        self.lost_disks: list[dict[str, Any]] = []
        """Clusters that lost their disks and serve again, each with the time that its start took."""

    async def take(self, step: Step) -> None:
        """Take one step; return when it is done."""
        match step:
            case Phase(name):
                self._begin_phase(name)
            case Confirmed(share):
                await self._publisher.wait_until_confirmed(min(int(share * self._messages), self._messages))
            case Pause(seconds):
                await asyncio.sleep(seconds)
            case CaughtUp(role, behind):
                await self._caught_up(self._cast.name(role), behind=self._cast.name(behind))
            case KeepUp(role, behind, _):
                await self._keep_up(self._cast.name(role), behind=self._cast.name(behind))
            case Kill(role):
                await self._kill(self._cast.name(role))
            case LoseDisk(role):
                await self._lose_disk(self._cast.name(role))
            case Start(role):
                await self._start_again(self._cast.name(role))
            case Disturb(source, destination, _):
                await self._disturb(self._cast.name(source), self._cast.name(destination), step)
            case Move(to, kind):
                await self._move(self._cast.name(to), kind)
            case FailOver(to, planned, back):
                await self._fail_over(self._cast.name(to), planned=planned, back=back)
            case StopDatabases():
                assert self._system.tools.databases is not None
                await self._system.tools.databases.stop()
                self.phase = f"no database, traffic at {self._drill.active.name}"
            case StartDatabases():
                assert self._system.tools.databases is not None
                await self._system.tools.databases.start()
                self.phase = f"databases back, traffic at {self._drill.active.name}"

    def count(self, now: float) -> None:
        """Record what the clusters that run have counted by ``now``, without waiting for their answers."""
        self._counting.append(awaited(self._count(now)))

    async def counted(self) -> None:
        """Wait for all answers to :meth:`count`."""
        await asyncio.gather(*self._counting)

    async def _count(self, now: float) -> None:
        for name in self._system.clusters:
            if self._system.running[name].is_set():
                for counter, value in (await self._system.counters(name)).items():
                    self._drill.observations.counted(counter, name, value, now)

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
        await self._system.kill(name)
        self.phase = f"{name} killed"

    async def _lose_disk(self, name: str) -> None:
        assert self._system.tools.lose_disk is not None
        self._cut_s[name] = self._disks_lost_s[name] = time.monotonic()
        for pair in self._pairs_of(name):
            self._break(*pair)
        await self._system.tools.lose_disk(name)
        self.phase = f"{name} lost its disk"

    async def _start_again(self, name: str) -> None:
        started_s = time.monotonic()
        await self._system.start_again(name)
        if (lost_s := self._disks_lost_s.pop(name, None)) is not None:
            assert self._system.tools.taken_back is not None
            served_s = time.monotonic()
            for topic, position in enumerate(await self._system.tools.taken_back(name)):
                self._drill.observations.took_back(name, position, topic, lost_s, served_s)
            self.lost_disks.append(
                {
                    "cluster": name,
                    "start_seconds": round(served_s - started_s, 3),
                    "seconds": round(served_s - lost_s, 3),
                }
            )
        for pair in self._pairs_of(name):
            self._repair(*pair)
        self.phase = f"{name} back, traffic at {self._drill.active.name}"

    async def _disturb(self, source: str, destination: str, step: Disturb) -> None:
        faults = self._system.tools.faults
        assert faults is not None
        if (source, destination) not in faults.pairs:
            return  # links that go one way only are disturbed that way
        if step.fault.breaks:
            self._cut_s.setdefault(source, time.monotonic())
            self._break(source, destination)
        await faults.set(source, destination, step.fault)
        if not step.fault.breaks:
            self._repair(source, destination)
            self.phase = f"link {source} → {destination} is there, traffic at {self._drill.active.name}"
        else:
            self.phase = f"link {source} → {destination} is broken, traffic at {self._drill.active.name}"

    async def _move(self, to: str, kind: FailoverKind) -> None:
        left = self._drill.active.name
        is_whole = (left, to) not in self._broken and self._system.running[left].is_set()
        self._drill.watching_sync = False
        high_waters = await self._system.high_waters(self._drill, to, origin=left) if is_whole else None
        now = time.monotonic()
        cut_s = now if is_whole else self._cut_s[left]
        number = self._drill.observations.failed_over(
            kind, left, to, cut_s, cut_s if kind is FailoverKind.KILL else now
        )
        await self._drill.active.move(to)
        self.phase = f"clients moved to {to}"
        if high_waters is None:
            high_waters = await self._system.last_high_waters(self._drill, to, origin=left)
        self._record(number, to, high_waters)
        if is_whole:
            await self._publisher.wait_until_at(to)
            await self._caught_up(to, behind=left)
            self._drill.observations.returned(left, time.monotonic())

    async def _fail_over(self, to: str, *, planned: bool, back: bool) -> None:
        assert self._system.tools.failover is not None
        left = self._drill.active.name
        self._drill.watching_sync = False
        began_s = time.monotonic()
        kind = FailoverKind.PLANNED if planned else FailoverKind.KILL
        cut_s = began_s if planned else self._cut_s[left]
        self.phase = f"{'planned ' if planned else ''}{'failback' if back else 'failover'} to {to}"
        number = self._drill.observations.failed_over(kind, left, to, cut_s, cut_s)
        self.failovers.append(await self._system.tools.failover(left, to, planned, back))
        await self._drill.active.move(to)
        self.phase = f"clients moved to {to}"
        self._record(number, to, await self._system.last_high_waters(self._drill, to, origin=left))
        if planned:
            self._drill.observations.returned(left, time.monotonic())

    # What they are made of.

    def _record(self, failover: int, cluster: str, high_waters: Sequence[Position]) -> None:
        for topic, position in enumerate(high_waters):
            self._drill.observations.high_water(failover, cluster, position, topic)

    def _pairs_of(self, name: str) -> list[tuple[str, str]]:
        """Return the directed pairs of clusters that are broken while ``name`` is down."""
        return [pair for pair in self._system.links if name in pair]

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
        targets = await self._system.high_waters(self._drill, behind, origin=behind)
        deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
        while True:
            there = await self._system.high_waters(self._drill, name, origin=behind)
            if all(has >= target for has, target in zip(there, targets, strict=True)):
                return
            if time.monotonic() > deadline:
                raise StepTimedOut(
                    f"cluster {name} had not caught up with cluster {behind} in {CATCH_UP_SECONDS_MAX:.0f} s; see the "
                    "workers' logs in the drill's directory"
                )
            await asyncio.sleep(POLL_SECONDS)

    async def _keep_up(self, name: str, *, behind: str) -> None:
        """Wait until ``name`` has kept up with ``behind`` for :data:`KEPT_UP_SECONDS`."""
        deadline = time.monotonic() + CATCH_UP_SECONDS_MAX
        keeping = KeepingUp()
        while True:
            now = time.monotonic()
            published = await self._system.high_waters(self._drill, behind, origin=behind)
            there = await self._system.high_waters(self._drill, name, origin=behind)
            if keeping.look(now, published, there) >= KEPT_UP_SECONDS:
                return
            if now > deadline:
                raise StepTimedOut(
                    f"cluster {name} did not keep up with cluster {behind} in {CATCH_UP_SECONDS_MAX:.0f} s; see the "
                    "workers' logs in the drill's directory"
                )
            await asyncio.sleep(POLL_SECONDS)


class KeepingUp:
    """Tells how long a cluster has kept up with another one. Sans-IO."""

    def __init__(self) -> None:
        self._published: deque[tuple[float, Sequence[Position]]] = deque()
        """By time, the last positions that the other cluster had published; the first is the newest that is due."""
        self._since: float | None = None

    def look(self, now: float, published: Sequence[Position], there: Sequence[Position]) -> float:
        """Return for how many seconds the cluster has had all that is due.

        ``published`` has the last position of each topic at the other cluster, and ``there`` those that the cluster
        has now. What was published :data:`KEPT_UP_LAG_SECONDS_MAX` ago is due.
        """
        self._published.append((now, published))
        while len(self._published) > 1 and self._published[1][0] <= now - KEPT_UP_LAG_SECONDS_MAX:
            self._published.popleft()
        asked, due = self._published[0]
        if now - asked < KEPT_UP_LAG_SECONDS_MAX or any(has < needs for has, needs in zip(there, due, strict=True)):
            self._since = None
            return 0.0
        if self._since is None:
            self._since = now
        return now - self._since
