"""Base of drills of other systems: their scenarios, the checks before a run, and how a run is opened."""

from __future__ import annotations

import asyncio
import hashlib
import json
import shutil
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from replicator.drills.errors import DrillError
from replicator.drills.jobs import DrillOptions
from replicator.drills.peers.jvm import PeerFailed, PeerMissing
from replicator.drills.peers.together import started_together
from replicator.drills.scenarios import catalog
from replicator.drills.scenarios.cast import Cast
from replicator.drills.scenarios.catalog import Scenario, find_scenario
from replicator.drills.stage import CLUSTERS
from replicator.drills.subscriptions import TestedSubscription, chosen, parse_subscriptions
from replicator.drills.systems.seen import Settling, high_water, last_high_water
from replicator.drills.systems.system import StepTimedOut, System, Tools
from replicator.drills.traffic.active import Drill
from replicator.topology import Topology
from snapshots.position import Position

PRIMARY: Final = CLUSTERS[0]
SECONDARY: Final = CLUSTERS[1]
SCENARIOS: Final = (catalog.DEFAULT,)
"""Scenarios for any system: one of its clusters is killed, and started again."""
LACKS: Final = ("verify", "snapshot_mappings", "subscription_updates")
"""Fields of the report that are about the replicator's own parts."""
DATA: Final = "data"


@dataclass(frozen=True, slots=True)
class PeerKind:
    """Kind of a system that is not ours, with its name for ``--system``."""

    name: str
    kinds: tuple[str, ...]
    """Kinds of ``--subscriptions`` that the system supports."""
    client: str
    """Name of the client library that the drill uses, for the report."""
    configuration: Mapping[str, Mapping[str, str]]
    both_ways: bool
    check: Callable[[], None]
    """Function that raises :class:`DrillError` or :class:`ExtraMissing` if the system cannot run here."""
    started: Callable[[PeerKind, Path], AbstractAsyncContextManager[System]]
    """Context manager that runs the system with its files in a directory. Raises :class:`PeerFailed`."""

    @property
    def cast(self) -> Cast:
        return Cast(PRIMARY, SECONDARY, None, self.both_ways)


class PeerClusters:
    """Common part of :class:`~replicator.drills.systems.system.System` for other systems. Their brokers are programs
    that block while they start and end, so threads do that.
    """

    first_messages = 0

    def __init__(
        self,
        kind: PeerKind,
        topic: str,
        *,
        start: Mapping[str, Callable[[], None]],
        kill: Mapping[str, Callable[[], None]],
    ) -> None:
        self.kind = kind
        self.cast = kind.cast
        self.topic = topic
        self.topics: tuple[str, ...] = (topic,)
        self.clusters: tuple[str, ...] = kind.cast.pair
        there, back = kind.cast.pair, kind.cast.pair[::-1]
        self.links: tuple[tuple[str, str], ...] = (there, back) if kind.both_ways else (there,)
        self.running: Mapping[str, asyncio.Event] = {name: asyncio.Event() for name in self.clusters}
        self.tools = Tools()
        self._start = start
        self._kill = kill
        self._settling = Settling()
        for running in self.running.values():
            running.set()

    def background_work(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        return ()

    async def kill(self, name: str) -> None:
        self.running[name].clear()
        await asyncio.to_thread(self._kill[name])

    async def start_again(self, name: str) -> None:
        try:
            await started_together(self._start[name])
        except PeerFailed as error:
            raise StepTimedOut(f"{name} did not start again after the drill had killed it: {error}") from error
        self.running[name].set()

    async def high_waters(self, drill: Drill, name: str, *, origin: str) -> Sequence[Position]:
        return [high_water(drill.observations, name, origin)]

    async def last_high_waters(self, drill: Drill, name: str, *, origin: str) -> Sequence[Position]:
        return [await last_high_water(drill, name, origin)]

    async def counters(self, name: str) -> Mapping[str, int]:
        return {}

    async def unmet_start_condition(self, drill: Drill) -> str | None:
        return None

    async def unsettled_work(self, drill: Drill) -> str | None:
        return self._settling.unsettled_work(drill.observations, drill.active.name, time.monotonic())


@dataclass(frozen=True, slots=True)
class PeerJob:
    """One run on another system. See :class:`~replicator.drills.systems.system.Job`."""

    kind: PeerKind
    scenario: Scenario
    out_dir: Path
    subscriptions: tuple[TestedSubscription, ...]
    keep_data: bool

    @property
    def client(self) -> str:
        return self.kind.client

    @property
    def topology(self) -> Topology | None:
        return None

    @property
    def digest(self) -> str:
        shape = {"system": self.kind.name, "configuration": self.kind.configuration}
        return hashlib.sha256(json.dumps(shape, sort_keys=True).encode()).hexdigest()[:12]

    def prepare(self) -> None:
        try:
            self.out_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DrillError(f"--out {self.out_dir} cannot be used: {error.strerror}") from None
        shutil.rmtree(self.out_dir / DATA, ignore_errors=True)

    def clear(self) -> None:
        if not self.keep_data:
            shutil.rmtree(self.out_dir / DATA, ignore_errors=True)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[System]:
        try:
            async with self.kind.started(self.kind, self.out_dir.absolute() / DATA) as system:
                yield system
        except (PeerFailed, PeerMissing) as error:
            raise DrillError(f"--system {self.kind.name} cannot be drilled: {error}") from error


def plan_peer(kind: PeerKind, options: DrillOptions) -> tuple[list[PeerJob], list[str]]:
    """Return the one run of the drill; raise :class:`DrillError` or :class:`ExtraMissing`."""
    _refuse_options_of_the_replicator(kind, options)
    name = options.scenario or catalog.DEFAULT
    if name not in SCENARIOS:
        raise DrillError(f"--system {kind.name} has no --scenario {name}; give {' or '.join(SCENARIOS)}")
    scenario = find_scenario(name)
    kind.check()
    return [PeerJob(kind, scenario, options.out_dir, _subscriptions(kind, options), options.keep_data)], []


def _refuse_options_of_the_replicator(kind: PeerKind, options: DrillOptions) -> None:
    plain = DrillOptions(options.messages)
    names = {
        "topology_file": "--topology",
        "against_file": "--against",
        "namespace": "--namespace",
        "all_clients": "--all-clients",
        "links": "--links",
        "sync": "--sync",
        "engine": "--engine",
        "client": "--client",
        "secure": "--secure",
        "kind": "--kind",
        "topics": "--topics",
    }
    given = [option for field, option in names.items() if getattr(options, field) != getattr(plain, field)]
    if given:
        raise DrillError(
            f"{given[0]} goes with --system {plain.system}, not with {kind.name}, which runs as it is; leave it out"
        )


def _subscriptions(kind: PeerKind, options: DrillOptions) -> tuple[TestedSubscription, ...]:
    """Return the subscriptions that were asked for, or all that the system supports."""
    if options.subscriptions.strip() == "all":
        return chosen(kind.kinds)
    wanted = parse_subscriptions(options.subscriptions)
    for each in wanted:
        if each.kind not in kind.kinds:
            raise DrillError(
                f"--subscriptions: {kind.name} has no {each.kind} subscription; there are: {', '.join(kind.kinds)}"
            )
    return wanted
