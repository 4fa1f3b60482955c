"""Entries that brokers refuse, and that an operator passes over. Pure.

Invariant (DESIGN §3): 2, an entry is left out only if an operator names it, and it is recorded.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from replicator.apache.stamps import Identity
from replicator.topology.apache import BROKER_SUFFIX
from snapshots.position import Position


class RefusedEntry(NamedTuple):
    """An entry that the brokers refuse. ``at_ms`` is the time when an operator passed over it; 0 if nobody did."""

    identity: Identity
    bytes: int
    reason: str
    at_ms: int = 0

    def is_named(self, cluster: str, position: Position) -> bool:
        """Return whether this is the entry at ``position`` of ``cluster``, or of its brokers."""
        return self.identity.origin.removesuffix(BROKER_SUFFIX) == cluster and self.identity.position == position

    def shown(self) -> dict[str, Any]:
        """Return the entry as the status shows it."""
        origin, _, position = self.identity
        shown: dict[str, Any] = {"origin": origin, "entry": str(position), "bytes": self.bytes, "reason": self.reason}
        return {**shown, "left_out_at_ms": self.at_ms} if self.at_ms else shown
