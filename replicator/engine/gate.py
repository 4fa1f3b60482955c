"""Whether a cluster takes clients, and why not. A failover decides it; what they are connected to carries it out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Closed(Enum):
    """Why the gate is closed."""

    STARTING = "starting"
    """The others are being asked whether somebody took over."""
    SWITCHING = "switching"
    """A planned switch is on its way."""
    FENCED = "fenced"
    """Another cluster serves our clients."""


@dataclass(frozen=True, slots=True)
class Gate:
    """Who is taken: None for open, else why not. ``serving`` is where clients belong, or will belong."""

    producers: Closed | None
    consumers: Closed | None
    serving: str
    epoch: int

    @property
    def turns_everybody_away(self) -> bool:
        """Whether no client belongs here, as far as is known. One that is being switched goes on being found: its
        clients wait there for the end of the switch."""
        settled = (Closed.STARTING, Closed.FENCED)
        return self.producers in settled and self.consumers in settled
