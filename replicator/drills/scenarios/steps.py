"""Steps of drill scenarios, as values. A method of the operator carries out each of them.

Clusters are named by their role in the drill. Moments are named by the share of the messages that is confirmed. So the
same steps fit any topology and any number of messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from replicator.drills.link_fault import LinkFault
from replicator.drills.observations import FailoverKind


class Role(Enum):
    """Role of a cluster in a drill."""

    PRIMARY = "primary"
    """Cluster to which clients are connected at first."""
    SECONDARY = "secondary"
    """Cluster to which clients move."""
    BYSTANDER = "bystander"
    """Third cluster, linked with both others. Clients never connect to it."""


@dataclass(frozen=True, slots=True)
class Phase:
    """Step that begins a new phase of the drill. The report shows the figures of the phases side by side."""

    name: str


@dataclass(frozen=True, slots=True)
class Confirmed:
    """Step that waits until this share of the messages is confirmed."""

    share: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Step that waits some seconds."""

    seconds: float


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """Step that waits until ``role`` has all that ``behind`` had published when the step began."""

    role: Role
    behind: Role


@dataclass(frozen=True, slots=True)
class KeepUp:
    """Step that waits until ``role`` keeps up with ``behind`` while messages are published.

    At most the share ``room`` of the messages is published until then.
    """

    role: Role
    behind: Role
    room: float


@dataclass(frozen=True, slots=True)
class Kill:
    """Step that kills the worker of ``role`` with SIGKILL."""

    role: Role


@dataclass(frozen=True, slots=True)
class LoseDisk:
    """Step that kills the worker with SIGKILL, and removes its data directory. A database in the directory goes with
    it."""

    role: Role


@dataclass(frozen=True, slots=True)
class Start:
    """Step that starts the killed worker of ``role`` again, so that it serves clients."""

    role: Role


@dataclass(frozen=True, slots=True)
class Disturb:
    """Step that gives the directed link a fault. :data:`~replicator.drills.link_fault.HEALTHY` repairs the link."""

    source: Role
    destination: Role
    fault: LinkFault


@dataclass(frozen=True, slots=True)
class Move:
    """Step that moves all clients to ``to`` at once. No cluster is told."""

    to: Role
    kind: FailoverKind


@dataclass(frozen=True, slots=True)
class FailOver:
    """Step that runs ``replicator failover`` or ``failback`` to ``to``, and then moves the clients."""

    to: Role
    planned: bool
    back: bool = False


@dataclass(frozen=True, slots=True)
class StopDatabases:
    """Step that stops the Postgres of every worker."""


@dataclass(frozen=True, slots=True)
class StartDatabases:
    """Step that starts the Postgres of every worker again."""


Step = (
    Phase
    | Confirmed
    | Pause
    | CaughtUp
    | KeepUp
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
    """Return, for each step, the share of the messages that may be published until the step is done.

    The share is that of the next :class:`Confirmed`, or that of a :class:`KeepUp`. After the last one, it is half of
    the rest. So a scenario has the same shape on a slow machine and with few messages: traffic goes on after its last
    step.
    """
    shares: list[float] = []
    last = max((step.share for step in steps if isinstance(step, Confirmed)), default=0.0)
    room = (1.0 + last) / 2
    for step in reversed(steps):
        if isinstance(step, Confirmed):
            room = step.share
        shares.append(step.room if isinstance(step, KeepUp) else room)
    return shares[::-1]
