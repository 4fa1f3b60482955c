"""Gate of a cluster: whether it takes clients, and why not. A failover decides it, and the servers carry it out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Closed(Enum):
    """Reason why the gate is closed."""

    STARTING = "starting"
    """Other clusters are being asked whether one of them took over."""
    SWITCHING = "switching"
    """A planned switch is under way."""
    FENCED = "fenced"
    """Another cluster serves this one's clients."""


@dataclass(frozen=True, slots=True)
class Gate:
    """State of the gate for producers and for consumers: None if open, otherwise why it is closed. ``serving`` is the
    cluster that serves clients, or will serve them."""

    producers: Closed | None
    consumers: Closed | None
    serving: str
    epoch: int

    @property
    def rejects_all(self) -> bool:
        """Whether no client belongs here, as far as known. During a planned switch this is False: clients still find
        the cluster, and wait there for the end of the switch."""
        settled = (Closed.STARTING, Closed.FENCED)
        return self.producers in settled and self.consumers in settled
