"""Decisions that bring a subscription at a broker and in the engine into agreement. Pure.

Invariants (DESIGN §3): 5, an entry is acknowledged on one side only if it was acknowledged on the other, and a start
acknowledges nothing; 6, within a generation both sides only gain acknowledgements, and a seek on either side starts the
next generation, which wins.

All positions in this module are those of the broker. Only entries that both sides have are compared. Another entry is
compared later: the engine has not read it yet, or the bridge has not published it yet.

1. When a cursor is seen for the first time, its position becomes the start. The start is stored before anything else.
   Then the engine gets the subscription with that start, or merges it into the subscription that it has.
2. If one side lacks the subscription and never had it, the subscription is created there. If that side had it, it was
   deleted there, and is deleted on the other side too.
3. If the engine is in a higher generation than at the last comparison, another cluster moved the subscription. The
   broker's cursor is reset to the first unacknowledged message.
4. If the broker's cursor lacks acknowledgements that it had at the last comparison, an application or an operator moved
   it back. The engine starts a new generation from the broker's state. There is one exception: the broker has loaded
   the topic again meanwhile. A broker that was killed has lost its last acknowledgements, and gets them again.
5. If the broker's cursor has passed messages that nobody acknowledged, these messages lay before its start, and the
   subscription has an earlier start in another cluster. The broker's cursor is moved back to these messages once, and
   gets its acknowledgements again. The intention is stored first, so that a cursor moved back before a crash is not
   taken for a seek (step 4).
6. Otherwise each side gets the acknowledgements of the other. Messages before the broker's start, and messages that the
   worker passed over because of a start, are not acknowledged.

A cursor that is moved *forward* after it was seen looks as if everything before it had been acknowledged, and the
engine records that (invariant 5 allows it).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from replicator.apache.broker_cursor import BrokerCursor
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import Start

NOT_TOLD: Final = 0
"""Value of :attr:`SyncState.generation` until the start at the broker is merged into the engine's subscription."""


@dataclass(frozen=True, slots=True)
class SyncState:
    """State of one subscription, in the engine and at the broker, at their last comparison."""

    generation: int
    broker: BrokerCursor
    load: str = ""
    """Name of the broker's loading of the topic in which the state was read."""
    start: Position = BEFORE_ALL
    """The broker's cursor passed all entries up to this position without an acknowledgement. Either it was created at
    this position, or the worker moved it there."""
    starts: Mapping[str, Start] = field(default_factory=dict)
    """Starts by origin that the broker's cursor follows: the worker passed over the entries before them."""
    returning: Position | None = None
    """Entry to which the worker was moving the broker's cursor back when this state was stored; None if it was not."""

    def passes_over(self) -> tuple[Position, Mapping[str, Start], Position | None]:
        """Return ``start``, ``starts`` and ``returning``. If they change, they are stored before any acknowledgement at
        the broker."""
        return self.start, self.starts, self.returning

    def put_back(self, after: Position) -> SyncState:
        """Return this state without entries behind ``after``: the brokers were put back to there, and have other
        entries behind it."""
        beyond = self.broker.beyond.copy()
        beyond.discard_after(after)
        returning = None if self.returning is not None and self.returning > after else self.returning
        cursor = BrokerCursor(min(self.broker.mark_delete, after), beyond)
        return replace(self, broker=cursor, start=min(self.start, after), returning=returning)


@dataclass(frozen=True, slots=True)
class InEngine:
    """State of the engine's subscription, restricted to entries that the broker has too, in positions of the broker."""

    generation: int
    acknowledged: PositionSet
    """Entries that are acknowledged, or that lie before the start."""
    open: PositionSet
    uncovered: PositionSet = field(default_factory=PositionSet)
    """Open entries that lay before :attr:`SyncState.starts`. The broker's cursor may have passed them without an
    acknowledgement."""


@dataclass(frozen=True, slots=True)
class NoteStart:
    """Decision for a broker's subscription that is seen for the first time: store where its cursor starts."""


@dataclass(frozen=True, slots=True)
class CreateInEngine:
    """Decision: create the subscription in the engine with the stored start, and with nothing acknowledged."""


@dataclass(frozen=True, slots=True)
class StartInEngine:
    """Decision: merge the stored start into the engine's subscription, which came from another cluster."""


@dataclass(frozen=True, slots=True)
class CreateAtBroker:
    """Decision: create the subscription at the broker, at the first message that is open in the engine."""


@dataclass(frozen=True, slots=True)
class DeleteInEngine:
    """Decision: delete the subscription in the engine, because it was deleted at the broker."""


@dataclass(frozen=True, slots=True)
class DeleteAtBroker:
    """Decision: delete the subscription at the broker, because it was deleted in another cluster."""


@dataclass(frozen=True, slots=True)
class ResetAtBroker:
    """Decision: reset the broker's cursor, because a seek or reset in another cluster moved the subscription."""


@dataclass(frozen=True, slots=True)
class ResetInEngine:
    """Decision: begin a new generation in the engine from the broker's cursor, which a seek or reset at the broker
    moved back."""


@dataclass(frozen=True, slots=True)
class PutBackAtBroker:
    """Decision: move the broker's cursor back to the entry at ``first``, because another cluster has an earlier
    start."""

    first: Position


@dataclass(frozen=True, slots=True)
class Forget:
    """Decision: drop the stored state of a subscription that neither the engine nor the broker has."""


@dataclass(frozen=True, slots=True)
class Merge:
    """Decision: acknowledge the entries ``in_engine`` in the engine, and the entries ``at_broker`` at the broker."""

    in_engine: PositionSet = field(default_factory=PositionSet)
    at_broker: PositionSet = field(default_factory=PositionSet)
    start: Position = BEFORE_ALL
    """New value of :attr:`SyncState.start`."""


Decision = (
    NoteStart
    | CreateInEngine
    | StartInEngine
    | CreateAtBroker
    | DeleteInEngine
    | DeleteAtBroker
    | ResetAtBroker
    | ResetInEngine
    | PutBackAtBroker
    | Forget
    | Merge
)


def reconcile(
    seen: SyncState | None,
    broker: BrokerCursor | None,
    engine: InEngine | None,
    *,
    load: str = "",
    gone: Position = BEFORE_ALL,
) -> Decision:
    """Decide the next step that brings one subscription in the engine and at the broker into agreement.

    ``seen`` is None if the subscription was never compared. ``broker`` or ``engine`` is None if the subscription does
    not exist there. ``load`` names the present loading of the topic at a broker. The broker has deleted all entries
    up to ``gone``.
    """
    told = seen is not None and seen.generation != NOT_TOLD
    if broker is None:
        if engine is None:
            return Forget()
        return DeleteInEngine() if told else CreateAtBroker()
    if seen is None:
        return NoteStart()
    if engine is None:
        return DeleteAtBroker() if told else CreateInEngine()
    if not told:
        return StartInEngine()
    if engine.generation > seen.generation:
        return ResetAtBroker()
    seen = with_rewind(seen, broker, load)
    if broker.lacks(seen.broker) and load == seen.load:
        return ResetInEngine()
    start = max(seen.start, min(gone, broker.mark_delete))
    if seen.broker.mark_delete == BEFORE_ALL:  # just made by the worker: the broker may have deleted entries
        seen = replace(seen, start=start)
    passed_over = broker.among(uncovered(seen, engine))
    there = passed_over.after(gone)
    if (first := there.first()) is not None:
        beyond = first > broker.mark_delete  # then no open entry before ``first`` may be passed over
        return PutBackAtBroker(broker.first_open if beyond else first)
    return Merge(
        acknowledged_at_broker(seen, broker, engine),
        broker.not_among(engine.acknowledged),
        start if passed_over else seen.start,
    )


def uncovered(seen: SyncState, engine: InEngine) -> PositionSet:
    """Return the entries that are open in the engine, and that the broker's cursor may have passed without an
    acknowledgement."""
    found = engine.open.copy()
    found.discard_after(seen.start)
    found.update(engine.uncovered)
    return found


def acknowledged_at_broker(seen: SyncState, broker: BrokerCursor, engine: InEngine) -> PositionSet:
    """Return the entries that consumers acknowledged at the broker and that are open in the engine.

    Entries that the broker's cursor may only have passed over are left out.
    """
    found = broker.among(engine.open)
    found.difference_update(uncovered(seen, engine))
    return found


def with_rewind(seen: SyncState, broker: BrokerCursor, load: str) -> SyncState:
    """Return ``seen`` with :attr:`SyncState.returning` cleared, and with the cursor moved back if the broker shows that
    it was.

    The worker may have been killed after it stored ``returning``. If the broker's cursor lies before its start, the
    worker had moved it. A seek could also have moved the cursor there, and then means the same for the messages before
    the start. If the broker has loaded the topic again since, the cursor counts as not moved: at worst messages are
    repeated.
    """
    if seen.returning is None:
        return seen
    put_at = before(seen.returning)
    if broker.lacks(seen.broker) and load == seen.load and broker.mark_delete <= max(put_at, seen.start):
        return replace(seen, broker=BrokerCursor(put_at), start=min(put_at, seen.start), returning=None)
    return replace(seen, returning=None)


def before(position: Position) -> Position:
    """Return the position one entry before ``position`` in the same ledger; its entry is -1 before the first entry."""
    return Position(position.ledger, position.entry - 1)
