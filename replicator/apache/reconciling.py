"""What is to be done so that a subscription at a broker and the same one in the engine say the same. Pure.

Invariants (DESIGN §3): 5, nothing is acknowledged on one side that was not on the other; 6, within a generation both
sides only grow, and a seek on either side starts the next one, which wins over what the other side still has.

All positions here are those of the broker. What the broker alone has (entries that the engine has not read yet) and
what the engine alone has (entries that are not published yet) is in neither set, and waits until it is in both.

1. A side that lacks the subscription gets it, if it never had it. If it had it, it was deleted there, and is deleted on
   the other side too.
2. The engine is in a higher generation than the one that was last in step: another cluster put the subscription
   elsewhere. The broker's is reset, to the first message that is not acknowledged.
3. The broker's cursor lacks what was seen in it before: an application, or an operator, put it back. The engine starts
   a new generation with what the broker has. Not so if the topic was loaded anew meanwhile: a broker that was killed
   has lost its last acknowledgements, and gets them again.
4. Else each side gets what the other one has.

A cursor that was put *forward* looks as if all before had been acknowledged, and is told so (invariant 5 allows it).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from replicator.apache.broker_cursor import BrokerCursor
from snapshots.position_set import PositionSet


@dataclass(frozen=True, slots=True)
class Seen:
    """Both sides as they were when they were last compared."""

    generation: int
    broker: BrokerCursor
    load: str = ""
    """Which loading of the topic at a broker that was."""


@dataclass(frozen=True, slots=True)
class InEngine:
    """The engine's subscription, of messages that the broker has as well."""

    generation: int
    acknowledged: PositionSet
    open: PositionSet


@dataclass(frozen=True, slots=True)
class CreateInEngine:
    """Make it in the engine, with nothing acknowledged."""


@dataclass(frozen=True, slots=True)
class CreateAtBroker:
    """Make it at the broker, so that the first message that is not acknowledged comes first."""


@dataclass(frozen=True, slots=True)
class DeleteInEngine:
    """It was deleted at the broker."""


@dataclass(frozen=True, slots=True)
class DeleteAtBroker:
    """It was deleted in another cluster."""


@dataclass(frozen=True, slots=True)
class ResetAtBroker:
    """It was put elsewhere in another cluster."""


@dataclass(frozen=True, slots=True)
class ResetInEngine:
    """It was put back at the broker: begin a generation in which the broker's state is all that is acknowledged."""


@dataclass(frozen=True, slots=True)
class Forget:
    """It is gone on both sides."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Acknowledge on each side what the other one has."""

    in_engine: PositionSet = field(default_factory=PositionSet)
    at_broker: PositionSet = field(default_factory=PositionSet)


Decision = (
    CreateInEngine | CreateAtBroker | DeleteInEngine | DeleteAtBroker | ResetAtBroker | ResetInEngine | Forget | Merge
)


def reconcile(seen: Seen | None, broker: BrokerCursor | None, engine: InEngine | None, *, load: str = "") -> Decision:
    """What to do about one subscription; ``load`` names the present loading of the topic at a broker."""
    if broker is None:
        if engine is None:
            return Forget()
        return CreateAtBroker() if seen is None else DeleteInEngine()
    if engine is None:
        return CreateInEngine() if seen is None else DeleteAtBroker()
    if seen is not None:
        if engine.generation > seen.generation:
            return ResetAtBroker()
        if broker.lacks(seen.broker) and load == seen.load:
            return ResetInEngine()
    return Merge(broker.among(engine.open), broker.not_among(engine.acknowledged))
