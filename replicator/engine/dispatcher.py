"""Which consumer gets which entry, for Exclusive and Shared subscriptions. Pure; no clock, no I/O.

The dispatcher holds what was sent and is not yet acknowledged (`pending`, by consumer), what is to be sent
again (`replay`), and how far the log was read. The shell around it asks what to read (:meth:`next_read`), reads it, and
hands it in (:meth:`assign`).

1. Replays go before the tail of the log, lowest position first: so an Exclusive consumer sees positions in order again.
2. Shared: consumers take turns; each turn is up to :data:`TURN_MESSAGES_MAX` messages, and no more than it has permits.
3. An entry is with at most one consumer. When that one leaves, its pending entries are replayed.

Permits are messages, not entries; a batch is not split, so the last one may overdraw them (as upstream).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from replicator.engine.errors import ConsumerBusy
from replicator.engine.position_set import PositionSet
from replicator.engine.types import SubscriptionType
from snapshots.position import BEFORE_ALL, Position

TURN_MESSAGES_MAX: Final = 100
"""How many messages a Shared consumer gets before it is the next one's turn: small, so that load spreads evenly."""


class Candidate(NamedTuple):
    """An entry that may be sent. ``wanted`` is False for markers and what is consumed: it is passed over."""

    position: Position
    messages: int
    wanted: bool


class ReadPlan(NamedTuple):
    """Read entries p with ``after < p <= upto``; no ``upto`` means to the end of the log."""

    after: Position
    upto: Position | None


class Assignment(NamedTuple):
    """The candidate at index ``candidate`` goes to ``consumer_id``."""

    consumer_id: int
    candidate: int
    redelivery_count: int


@dataclass(slots=True)
class ConsumerState:
    """One connected consumer, as the dispatcher sees it."""

    permits: int = 0
    pending: PositionSet = field(default_factory=PositionSet)


class Dispatcher:
    """The dispatch state of one subscription that has consumers, all of one type."""

    def __init__(self, subscription_type: SubscriptionType, read_position: Position = BEFORE_ALL) -> None:
        self.type = subscription_type
        self.consumers: dict[int, ConsumerState] = {}
        self.replay = PositionSet()
        self.read_position = read_position
        self._redeliveries: dict[Position, int] = {}
        self._turn = 0

    def add_consumer(self, consumer_id: int, subscription_type: SubscriptionType) -> None:
        """Raises :class:`ConsumerBusy` if the consumers that are here do not admit it; nothing is changed then."""
        if self.consumers and subscription_type is not self.type:
            raise ConsumerBusy(
                f"the subscription is {self.type.value} while its consumers are connected, "
                f"not {subscription_type.value}: disconnect them to change its type"
            )
        if self.consumers and self.type is SubscriptionType.EXCLUSIVE:
            raise ConsumerBusy("the subscription is Exclusive and has a consumer: disconnect that one, or use Shared")
        self.type = subscription_type
        self.consumers[consumer_id] = ConsumerState()

    def remove_consumer(self, consumer_id: int) -> None:
        """The consumer is gone; what it had not acknowledged is sent again."""
        state = self.consumers.pop(consumer_id)
        self._replay(state.pending)

    def flow(self, consumer_id: int, permits: int) -> None:
        assert permits > 0
        self.consumers[consumer_id].permits += permits

    @property
    def permits(self) -> int:
        """Messages that may be sent now, to all consumers together."""
        return sum(state.permits for state in self.consumers.values() if state.permits > 0)

    def next_read(self) -> ReadPlan | None:
        """What to read next; None while no consumer has a permit."""
        if not any(state.permits > 0 for state in self.consumers.values()):
            return None
        first = self.replay.first()
        if first is not None:
            return ReadPlan(Position(first.ledger, first.entry - 1), self.replay.run_end(first))
        return ReadPlan(self.read_position, None)

    def assign(self, plan: ReadPlan, candidates: Sequence[Candidate]) -> list[Assignment]:
        """Give out the candidates, in order, as far as permits go. The rest will be asked for again."""
        assignments: list[Assignment] = []
        replaying = plan.upto is not None
        consumer_id, left = self._next_turn()
        for index, (position, messages, wanted) in enumerate(candidates):
            if wanted:
                if consumer_id is None:
                    break
                state = self.consumers[consumer_id]
                state.permits -= messages
                state.pending.add(position)
                assignments.append(Assignment(consumer_id, index, self._redeliveries.get(position, 0)))
                left -= messages
            if replaying:
                self.replay.discard(position)
            else:
                self.read_position = position
            if consumer_id is not None and (left <= 0 or self.consumers[consumer_id].permits <= 0):
                consumer_id, left = self._next_turn()
        return assignments

    def acknowledged(self, position: Position) -> None:
        """The whole entry is consumed: nobody holds it any more."""
        for state in self.consumers.values():
            state.pending.discard(position)
        self.replay.discard(position)
        self._redeliveries.pop(position, None)

    def acknowledged_through(self, position: Position) -> None:
        """All up to ``position`` is consumed."""
        for state in self.consumers.values():
            state.pending.discard_through(position)
        self.replay.discard_through(position)
        self.read_position = max(self.read_position, position)
        if self._redeliveries:
            self._redeliveries = {p: n for p, n in self._redeliveries.items() if p > position}

    def redeliver(self, consumer_id: int, positions: Iterable[Position] | None) -> None:
        """Send again what the consumer holds: all of it (None), or on Shared those of ``positions`` that it holds.

        An Exclusive consumer always gets all of it again, so that order is kept.
        """
        state = self.consumers[consumer_id]
        if positions is None or self.type is SubscriptionType.EXCLUSIVE:
            held, state.pending = state.pending, PositionSet()
        else:
            held = PositionSet(position for position in positions if position in state.pending)
            for position in held:
                state.pending.discard(position)
        self._replay(held)

    def restart(self, position: Position) -> None:
        """Read again from after ``position`` (seek, reset): nothing is pending any more."""
        self.read_position = position
        self.replay = PositionSet()
        self._redeliveries.clear()
        for state in self.consumers.values():
            state.pending = PositionSet()

    def _replay(self, positions: PositionSet) -> None:
        for position in positions:
            self._redeliveries[position] = self._redeliveries.get(position, 0) + 1
        self.replay.update(positions)

    def _next_turn(self) -> tuple[int | None, int]:
        """The next consumer with permits, and how many messages it may get before it is another's turn."""
        ids = list(self.consumers)
        for step in range(len(ids)):
            consumer_id = ids[(self._turn + step) % len(ids)]
            if (permits := self.consumers[consumer_id].permits) > 0:
                self._turn = (self._turn + step + 1) % len(ids)
                return consumer_id, min(permits, TURN_MESSAGES_MAX)
        return None, 0
