"""Interface of the system under a drill: linked clusters, clients for them, and a way to kill one.

Each system has one implementation: the replicator (:mod:`replicator.drills.systems.own`), Apache Pulsar's own
geo-replication (:mod:`replicator.drills.systems.pulsar_geo`), and Kafka's MirrorMaker 2
(:mod:`replicator.drills.systems.mirrormaker2`). The traffic, the steps, the records, the measures and the verdict are
the same for all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from replicator.drills.faults import LinkFaults
from replicator.drills.own_databases import OwnDatabases
from replicator.drills.scenarios.cast import Cast
from replicator.drills.scenarios.catalog import Scenario
from replicator.drills.subscriptions import TestedSubscription
from replicator.drills.traffic.active import ActiveCluster, Drill
from replicator.drills.traffic.clients import DrillClients
from replicator.topology import Topology
from snapshots.position import Position

LoseDisk = Callable[[str], Awaitable[None]]
"""Function that kills a cluster's worker and removes its data directory."""
TakenBack = Callable[[str], Awaitable[Sequence[Position]]]
"""Function that returns for each topic the last message that a cluster took back after it lost its disk. By its status,
all messages of its own after that one are lost."""
Failover = Callable[[str, str, bool, bool], Awaitable[dict[str, Any]]]
"""Function that moves clients from one cluster to another; planned or not, back or not. It returns its report."""


class StepTimedOut(Exception):
    """Error of a step that waited too long. The text names the event that did not happen."""


@dataclass(frozen=True, slots=True)
class Tools:
    """Tools that some scenarios need beyond killing a cluster. A system without them does not run these scenarios."""

    failover: Failover | None = None
    faults: LinkFaults | None = None
    databases: OwnDatabases | None = None
    lose_disk: LoseDisk | None = None
    taken_back: TakenBack | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """Figures that a system itself reports at the end of a run.

    None means that the system has no such figure; 0 is a count.
    """

    system: str
    engine: str
    """Name of the program that copies messages."""
    sync: str
    """Name of the form in which subscriptions travel."""
    lacks: tuple[str, ...] = ()
    """Fields of the report for which the system has nothing."""
    verify: Mapping[str, Any] | None = None
    snapshot_mappings: int | None = None
    subscription_updates: int | None = None
    stores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """For each cluster, fields about the start of its worker: ``state``, ``named_losses``, ``nobody_had`` and
    ``reclaimed_messages``."""
    configuration: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """For each part, its version and the settings that differ from the defaults."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Fields that only this system has in its report."""


class System(Protocol):
    """System under test. Its clusters run."""

    cast: Cast
    topics: tuple[str, ...]
    """Topics with traffic. Systems of other projects have one."""
    clusters: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    """Directed links, each with source and destination."""
    running: Mapping[str, asyncio.Event]
    """For each cluster, an event that is set while the cluster should answer."""
    tools: Tools
    first_messages: int
    """Number of messages to publish first. The rest follows when :meth:`unmet_start_condition` returns None. 0
    publishes all at once."""

    def clients(self, active: ActiveCluster) -> DrillClients:
        """Return the clients for the drill's producers and consumers."""

    def watchers(self, drill: Drill) -> Sequence[Coroutine[Any, Any, None]]:
        """Return coroutines that record arriving copies and settled acknowledgements. They end when the drill does."""

    def background_work(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        """Return named coroutines that must run beside the traffic. They are cancelled when the drill is over."""

    async def kill(self, name: str) -> None:
        """Kill the cluster ``name``, as ``kill -9`` does."""

    async def start_again(self, name: str) -> None:
        """Start a killed cluster again, and return when it takes traffic. Raise :class:`StepTimedOut` if it does
        not."""

    async def high_waters(self, drill: Drill, name: str, *, origin: str) -> Sequence[Position]:
        """Return for each topic the last message of ``origin`` that cluster ``name`` has, in positions of it."""

    async def last_high_waters(self, drill: Drill, name: str, *, origin: str) -> Sequence[Position]:
        """Return the same positions as :meth:`high_waters`, for a cluster that gets no more messages of ``origin``.

        Wait until they no longer move.
        """

    async def counters(self, name: str) -> Mapping[str, int]:
        """Return the counters that a cluster keeps of its own work."""

    async def unmet_start_condition(self, drill: Drill) -> str | None:
        """Return in words which condition for the first measurement is not met yet, or None."""

    async def unsettled_work(self, drill: Drill) -> str | None:
        """Return in words what has not settled yet, or None."""

    async def findings(self) -> Findings:
        """Return the findings. Call this while the clusters still run."""


class Job(Protocol):
    """One run of one scenario on one system, with all that can be checked before it starts."""

    @property
    def scenario(self) -> Scenario: ...

    @property
    def out_dir(self) -> Path: ...

    @property
    def subscriptions(self) -> tuple[TestedSubscription, ...]: ...

    @property
    def client(self) -> str: ...

    @property
    def topology(self) -> Topology | None:
        """Topology whose first cluster's database keeps the run, unless ``--store`` says otherwise."""

    @property
    def digest(self) -> str:
        """Return a digest. Runs can be compared only if their digests are equal."""

    def prepare(self) -> None:
        """Make the directory, and remove what an earlier drill left. Raise :class:`DrillError` if that fails."""

    def clear(self) -> None:
        """Remove the data of clusters that the drill made."""

    def opened(self) -> AbstractAsyncContextManager[System]:
        """Return a context with the system and its running clusters. Leaving it ends the clusters."""
