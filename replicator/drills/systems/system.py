"""What a drill needs of a system: clusters with links between them, clients for them, and somebody who kills one.

There is one implementation a system: the replicator (:mod:`replicator.drills.systems.own`), Apache Pulsar's own
geo-replication (:mod:`replicator.drills.systems.pulsar_geo`), and Kafka's MirrorMaker 2
(:mod:`replicator.drills.systems.mirrormaker2`). All else, the traffic, the steps, what is recorded, the measures and
the verdict, is the same for each.
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
"""Kills a cluster's worker and removes its data directory."""
TakenBack = Callable[[str], Awaitable[Sequence[Position]]]
"""Returns for each topic the last message of its own that a cluster has."""
Failover = Callable[[str, str, bool, bool], Awaitable[dict[str, Any]]]
"""Of the clients, from one cluster to another; planned or not, back or not. Returns what it reports."""


class StepTimedOut(Exception):
    """What a step waits for did not happen; the text says what."""


@dataclass(frozen=True, slots=True)
class Tools:
    """What some scenarios need beyond killing a cluster. A system that has none of it is not asked for them."""

    failover: Failover | None = None
    faults: LinkFaults | None = None
    databases: OwnDatabases | None = None
    lose_disk: LoseDisk | None = None
    taken_back: TakenBack | None = None


@dataclass(frozen=True, slots=True)
class Findings:
    """What a system itself says at the end of a run. None is what it does not have; 0 would say that it has none of
    them."""

    system: str
    engine: str
    """What copies messages."""
    sync: str
    """What travels of subscriptions."""
    lacks: tuple[str, ...] = ()
    """Fields of the report for which the system has nothing."""
    verify: Mapping[str, Any] | None = None
    snapshot_mappings: int | None = None
    subscription_updates: int | None = None
    stores: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By cluster, fields about the start of its worker: ``state``, ``named_losses``, ``reclaimed_messages``."""
    configuration: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Of each part: what differs from how it comes, and the versions."""
    more: Mapping[str, Any] = field(default_factory=dict)
    """Fields that only this system has in its report."""


class System(Protocol):
    """A system whose clusters run."""

    cast: Cast
    topics: tuple[str, ...]
    """With traffic. Systems of others have one."""
    clusters: tuple[str, ...]
    links: tuple[tuple[str, str], ...]
    """Directed: source and destination."""
    running: Mapping[str, asyncio.Event]
    """Set while that cluster should answer."""
    tools: Tools
    first_messages: int
    """So many are published first, and the rest when :meth:`left_to_begin` says that nothing is; 0: all at once."""

    def clients(self, active: ActiveCluster) -> DrillClients:
        """For the drill's producers and consumers."""

    def watchers(self, drill: Drill) -> Sequence[Coroutine[Any, Any, None]]:
        """What records copies as they arrive, and acknowledgements as they settle; they end when the drill does."""

    def chores(self) -> Iterable[tuple[str, Coroutine[Any, Any, None]]]:
        """What has to run beside the traffic, with names; they are cancelled when the drill is over."""

    async def kill(self, name: str) -> None:
        """As ``kill -9``."""

    async def start_again(self, name: str) -> None:
        """Returns when it takes traffic. Raises :class:`StepTimedOut`."""

    async def high_waters(self, drill: Drill, name: str, *, origin: str) -> Sequence[Position]:
        """Return for each topic the last message of ``origin`` that cluster ``name`` has, in positions of it."""

    async def last_high_waters(self, drill: Drill, name: str, *, origin: str) -> Sequence[Position]:
        """The same when nothing of ``origin`` reaches it any more, once it no longer moves."""

    async def counters(self, name: str) -> Mapping[str, int]:
        """What it counts of its own work."""

    async def left_to_begin(self, drill: Drill) -> str | None:
        """What is not as it has to be before anything is measured, in words, or None."""

    async def left_to_do(self, drill: Drill) -> str | None:
        """What has not settled yet, in words, or None."""

    async def findings(self) -> Findings:
        """Asked while the clusters still run."""


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
        """In whose first cluster's database the run is kept, unless ``--store`` says otherwise."""

    @property
    def digest(self) -> str:
        """Tells runs apart that cannot be compared."""

    def prepare(self) -> None:
        """Make the directory, and remove what an earlier drill left; raises :class:`DrillError`."""

    def clear(self) -> None:
        """Remove the data of clusters that the drill made."""

    def opened(self) -> AbstractAsyncContextManager[System]:
        """The system, with its clusters started; they are ended on leaving."""
