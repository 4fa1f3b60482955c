"""Who holds one topic's log back besides its subscriptions: links, and compaction.

Each holder, by a name such as a link's, notes the position up to which it is done with the log; trimming stops there
(invariant 5, DESIGN §3). A link also has a quota of what it may hold back alone: what is held against it, and what
follows, is decided in :mod:`replicator.engine.upkeep.hold_quota` and found out by maintenance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from replicator.engine.upkeep.hold_quota import REFUSE_PRODUCERS, RELEASE, HoldQuota
from snapshots.position import Position


class Holds:
    """The holders of one topic's log. ``refuse_publishes`` is told which of them makes publishes be refused."""

    __slots__ = ("_refuse_publishes", "exceeded", "positions", "quotas")

    def __init__(self, refuse_publishes: Callable[[str | None], None]) -> None:
        self._refuse_publishes = refuse_publishes
        self.positions: dict[str, Position] = {}
        """By name, such as a link's, the position up to which that holder is done with the log."""
        self.quotas: dict[str, HoldQuota] = {}
        """By the same name, how much it may hold back."""
        self.exceeded: dict[str, str] = {}
        """The names whose quota is exceeded, each with the policy that says what follows; kept by maintenance."""

    def holding(self) -> list[Position]:
        """Where the log is held back, but for those whose quota is exceeded and who are to be released then."""
        return [at for name, at in self.positions.items() if self.exceeded.get(name) != RELEASE]

    def set_exceeded(self, exceeded: Mapping[str, str]) -> None:
        """Maintenance has found that these hold back more than they may: name and policy of each."""
        self.exceeded = dict(exceeded)
        self._refuse_publishes(next((name for name, policy in exceeded.items() if policy == REFUSE_PRODUCERS), None))
