"""Fence at the brokers: the clients that a worker keeps out, as the gate of a failover says. Pure.

Invariant (DESIGN §4.5): the worker keeps out the same clients that a fenced embedded cluster refuses, with two
exceptions. A worker that starts, and has not asked the other clusters yet, leaves the brokers as they are: they run all
the time, and their clients should not notice that the worker was away. In a planned switch, consumers have a moment to
acknowledge what they hold, after the producers are gone.
"""

from __future__ import annotations

from dataclasses import dataclass

from replicator.engine.gate import Closed, Gate


@dataclass(frozen=True, slots=True)
class Fence:
    """Kinds of clients that are kept out."""

    producers: bool = False
    consumers: bool = False

    def after(self, gate: Gate) -> Fence:
        """Return the fence after the gate changed to ``gate``."""
        if Closed.STARTING in (gate.producers, gate.consumers):
            return self
        switching = gate.consumers is Closed.SWITCHING
        return Fence(gate.producers is not None, self.consumers if switching else gate.consumers is not None)

    def with_consumers(self) -> Fence:
        """Return the fence after consumers had their moment in a planned switch: it keeps them out, too.

        If the switch was given up meanwhile, it keeps nobody out."""
        return Fence(self.producers, self.producers)
