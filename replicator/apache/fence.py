"""Whom a worker keeps out at the brokers, as it follows from the gate of a failover. Pure.

Invariants (DESIGN §4.5): whoever is refused by an embedded cluster that is fenced is kept out here too, but for two
moments. A worker that starts, and has not asked the others yet, leaves the brokers as they are: they run all the time,
and their clients should not notice that it was away. And consumers of a planned switch have a moment to acknowledge
what they hold, after the producers are gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from replicator.engine.gate import Closed, Gate


@dataclass(frozen=True, slots=True)
class Fence:
    """Who is kept out."""

    producers: bool = False
    consumers: bool = False

    def after(self, gate: Gate) -> Fence:
        """What it is when the gate is set so."""
        if Closed.STARTING in (gate.producers, gate.consumers):
            return self
        switching = gate.consumers is Closed.SWITCHING
        return Fence(gate.producers is not None, self.consumers if switching else gate.consumers is not None)

    def with_consumers(self) -> Fence:
        """When the consumers of a planned switch have had their moment; not if it was given up meanwhile."""
        return Fence(self.producers, self.producers)
