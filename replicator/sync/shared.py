"""State that the syncs of all topics of one worker share: engine, routes, paces, index and counters."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from replicator.engine.engine import Engine
from replicator.engine.topic import Topic
from replicator.sync.checkpoint import checkpoint_budget
from replicator.sync.index import Index
from replicator.sync.marker_log import Counters
from replicator.sync.routes import Routes
from snapshots.actions import ControllerSettings
from snapshots.pacing import Budget, SnapshotBudget, UpdateBudget


@dataclass(slots=True)
class Shared:
    """Objects that the syncs of all topics share. ``routes`` and ``settings`` are replaced when the topology changes.

    With ``exact`` acknowledgements travel by identity, otherwise only mark-delete positions."""

    engine: Engine
    index: Index
    routes: Routes
    settings: ControllerSettings
    exact: bool
    next_id: Callable[[], str]
    """Returns the id of the next snapshot, unique among all snapshots that this cluster ever asks for."""
    counted: Counters = field(default_factory=Counters)
    budget: UpdateBudget = field(default_factory=UpdateBudget)
    kept_lives: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Topics that keep earlier lives here, each with the names of these lives in answers. It is empty with
    ``exact``."""
    snapshot_budget: SnapshotBudget = field(init=False)
    checkpoint_budget: Budget = field(default_factory=checkpoint_budget)

    def __post_init__(self) -> None:
        self.snapshot_budget = SnapshotBudget(exact=self.exact)

    def peers(self, topic: Topic) -> frozenset[str]:
        """Return the clusters that receive the markers of ``topic``. A policy of its namespace may exclude some
        peers."""
        peers = self.routes.peers(topic.name)
        clusters = topic.namespace.policies.replication_clusters
        return peers if clusters is None else peers & frozenset(clusters)


def monotonic_ms() -> int:
    """Return the reading of the clock that the cores use."""
    return time.monotonic_ns() // 1_000_000
