"""Holders of one topic's log besides its subscriptions: links, and compaction.

Each holder, by a name such as a link's, notes the position up to which it is done with the log. Trimming stops there
(invariant 5, DESIGN §3). A link also has a quota for the part of the log that only it holds back.
:mod:`replicator.engine.upkeep.hold_quota` has its rules, and maintenance checks it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from replicator.engine.upkeep.hold_quota import REFUSE_PRODUCERS, RELEASE, HoldQuota
from snapshots.position import Position


class Holds:
    """Holders of one topic's log. ``refuse_publishes`` is called with the name of a holder that makes publishes be
    refused, or None."""

    __slots__ = ("_refuse_publishes", "exceeded", "positions", "quotas")

    def __init__(self, refuse_publishes: Callable[[str | None], None]) -> None:
        self._refuse_publishes = refuse_publishes
        self.positions: dict[str, Position] = {}
        """Position up to which each holder, such as a link, is done with the log, by name."""
        self.quotas: dict[str, HoldQuota] = {}
        """Quota of each holder, by name."""
        self.exceeded: dict[str, str] = {}
        """Holders whose quota is exceeded, by name, with the policy that applies. Maintenance updates it."""

    def holding(self) -> list[Position]:
        """Return the positions at which holders hold the log back. Holders that are released because of their quota are
        left out."""
        return [at for name, at in self.positions.items() if self.exceeded.get(name) != RELEASE]

    def set_exceeded(self, exceeded: Mapping[str, str]) -> None:
        """Set the holders that exceed their quota, by name, with the policy of each."""
        self.exceeded = dict(exceeded)
        self._refuse_publishes(next((name for name, policy in exceeded.items() if policy == REFUSE_PRODUCERS), None))
