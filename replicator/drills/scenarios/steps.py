"""The steps that scenarios are made of. Values only: what each does is in the operator's method for it.

Clusters are named by their part in the drill, moments by the share of the messages that is confirmed, so that the same
steps fit any topology and any number of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from replicator.drills.link_fault import LinkFault
from replicator.drills.observations import FailoverKind


class Role(Enum):
    """A cluster's part in a drill."""

    PRIMARY = "primary"
    """Where clients are at first."""
    SECONDARY = "secondary"
    """Where they go."""
    BYSTANDER = "bystander"
    """A third one, linked with both, where no client ever is."""


@dataclass(frozen=True, slots=True)
class Phase:
    """From here on things are different; what is measured before and after is shown side by side."""

    name: str


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Wait until this share of the messages is confirmed."""

    share: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Wait until ``role`` has all that ``behind`` had published when the step began."""

    role: Role
    behind: Role


@dataclass(frozen=True, slots=True)
class Kill:
    """SIGKILL for the worker."""

    role: Role


@dataclass(frozen=True, slots=True)
class LoseDisk:
    """Kill the worker with SIGKILL, and remove its data directory, with its database if that lies in it."""

    role: Role


@dataclass(frozen=True, slots=True)
class Start:
    """The killed worker is started again, and takes traffic."""

    role: Role


@dataclass(frozen=True, slots=True)
class Disturb:
    """The directed link fares like that from now on; :data:`~replicator.drills.link_fault.HEALTHY` repairs it."""

    source: Role
    destination: Role
    fault: LinkFault


@dataclass(frozen=True, slots=True)
class Move:
    """All clients leave the cluster where they are and go to ``to`` at once; no cluster is told."""

    to: Role
    kind: FailoverKind


@dataclass(frozen=True, slots=True)
class FailOver:
    """``replicator failover`` or ``failback`` from where clients are to ``to``, and then they move."""

    to: Role
    planned: bool
    back: bool = False


@dataclass(frozen=True, slots=True)
class StopDatabases:
    """Every worker's Postgres is stopped."""


@dataclass(frozen=True, slots=True)
class StartDatabases:
    """… and started again."""


Step = (
    Phase
    | Confirmed
    | Pause
    | CaughtUp
    | Kill
    | LoseDisk
    | Start
    | Disturb
    | Move
    | FailOver
    | StopDatabases
    | StartDatabases
)


def room_before(steps: Sequence[Step]) -> list[float]:
    """For each step, the share of the messages that may be published until it is done.

    Up to what the next :class:`Confirmed` waits for, and half of the rest where there is none any more. So a scenario
    has the same shape on a slow machine and with few messages: traffic goes on after its last step.
    """
    shares: list[float] = []
    last = max((step.share for step in steps if isinstance(step, Confirmed)), default=0.0)
    room = (1.0 + last) / 2
    for step in reversed(steps):
        if isinstance(step, Confirmed):
            room = step.share
        shares.append(room)
    return shares[::-1]
