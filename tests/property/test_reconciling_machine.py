"""A subscription at a broker and in the engine, compared again and again while both sides are used.

The machine knows what was acknowledged by whom. Invariant 5: neither side ever treats an entry as consumed that nobody
acknowledged since the last seek. Invariant 6: without a seek nothing that was acknowledged is open again, and both
sides say the same after a comparison.
"""

from __future__ import annotations

from collections.abc import Iterable

from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replicator.apache.broker_cursor import BrokerCursor
from replicator.apache.reconciling import (
    CreateAtBroker,
    CreateInEngine,
    DeleteAtBroker,
    DeleteInEngine,
    Forget,
    InEngine,
    Merge,
    ResetAtBroker,
    ResetInEngine,
    Seen,
    reconcile,
)
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet

ENTRIES = 12
LEDGER = 7

entries = st.sets(st.integers(0, ENTRIES - 1), max_size=4)


def positions(numbers: Iterable[int]) -> PositionSet:
    return PositionSet(Position(LEDGER, number) for number in numbers)


def numbers(found: PositionSet) -> set[int]:
    return {position.entry for position in found}


class Reconciling(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.both: set[int] = set()
        """The entries that lie on both sides."""
        self.broker: set[int] | None = set()
        """What is acknowledged there; None if there is no such subscription."""
        self.durable: set[int] = set()
        self.engine: set[int] | None = None
        self.generation = 0
        self.buried = 0
        self.load = 0
        self.seen: Seen | None = None
        self.acknowledged: set[int] = set()
        """By anybody, since the last seek."""
        self.settled = False
        self.sought = False
        """Since the last comparison: what the other side acknowledges then is of an earlier generation, and is lost."""

    # What others do.

    @rule(found=entries)
    def more_entries_are_on_both_sides(self, found: set[int]) -> None:
        self.both |= found
        self.settled = False

    @precondition(lambda self: self.broker is not None and not self.sought)
    @rule(found=entries)
    def consumers_at_the_broker_acknowledge(self, found: set[int]) -> None:
        assert self.broker is not None
        self.broker |= found
        self.acknowledged |= found
        self.settled = False

    @precondition(lambda self: self.engine is not None and not self.sought)
    @rule(found=entries)
    def consumers_elsewhere_acknowledge(self, found: set[int]) -> None:
        assert self.engine is not None
        self.engine |= found
        self.acknowledged |= found
        self.settled = False

    @precondition(lambda self: self.broker is not None)
    @rule()
    def the_broker_writes_its_cursor(self) -> None:
        assert self.broker is not None
        self.durable = set(self.broker)

    @precondition(lambda self: self.settled and self.broker is not None)
    @rule()
    def the_broker_is_killed(self) -> None:
        """Settled before: what a seek and a kill between two comparisons leave cannot be told from a kill alone."""
        assert self.broker is not None
        lost = self.broker - self.durable
        self.broker = self.durable & self.broker
        self.acknowledged -= lost - (self.engine or set())  # of entries that the bridge had not read: nobody else knows
        self.load += 1
        self.settled = False

    @precondition(lambda self: self.settled and self.broker is not None)
    @rule(first=st.integers(0, ENTRIES - 1))
    def an_application_seeks_back(self, first: int) -> None:
        assert self.broker is not None
        kept = set(range(first))
        if not kept < self.broker:
            return  # that is forward, which counts as an acknowledgement of all before; or it changes nothing
        self.broker = self.durable = kept
        self.acknowledged = set(kept)
        self.settled, self.sought = False, True

    @precondition(lambda self: self.settled and self.engine is not None and (self.broker or set()) <= self.both)
    @rule(first=st.integers(0, ENTRIES - 1))
    def another_cluster_seeks(self, first: int) -> None:
        """The bridge has read what is acknowledged at the broker; what it has not, the seek knows nothing of."""
        assert self.engine is not None
        self.engine = {number for number in self.engine if number < first}
        self.generation += 1
        self.acknowledged = set(self.engine)
        self.settled, self.sought = False, True

    @precondition(lambda self: self.broker is not None and self.engine is not None)
    @rule(at_broker=st.booleans())
    def it_is_deleted_on_one_side(self, at_broker: bool) -> None:
        """Also right after the other side got it."""
        if at_broker:
            self.broker = None
        else:
            self.engine = None
        self.acknowledged = set()
        self.settled = False
        self.compare()
        assert self.broker is None
        assert self.engine is None

    @precondition(lambda self: self.broker is None and self.engine is None)
    @rule(at_broker=st.booleans(), found=entries)
    def it_is_made_anew(self, at_broker: bool, found: set[int]) -> None:
        self.generation += 1
        self.durable = set()
        if at_broker:
            self.broker = set(found)
        else:
            self.engine = set(found)
        self.acknowledged = set(found)
        self.settled = False

    # The bridge.

    @rule()
    def compare(self) -> None:
        for _ in range(4):
            self._compare_once()
        self.settled, self.sought = True, False

    @rule()
    def compare_once(self) -> None:
        self.settled = False
        self._compare_once()

    def _cursor(self) -> BrokerCursor | None:
        if self.broker is None:
            return None
        reached = -1
        while reached + 1 in self.broker:
            reached += 1
        return BrokerCursor(Position(LEDGER, reached), positions(each for each in self.broker if each > reached))

    def _compare_once(self) -> None:
        broker = self._cursor()
        engine = None
        if self.engine is not None:
            engine = InEngine(self.generation, positions(self.both & self.engine), positions(self.both - self.engine))
        match reconcile(self.seen, broker, engine, load=str(self.load)):
            case Forget():
                self.seen = None
            case CreateInEngine():
                self.engine = set()
                self.generation += 1
                assert broker is not None
                self.seen = Seen(self.generation, broker, str(self.load))
            case CreateAtBroker():
                assert self.engine is not None
                first = min(self.both - self.engine, default=0)
                self.broker = {number for number in range(first) if number in self.acknowledged}
                self.seen = Seen(self.generation, BrokerCursor(BEFORE_ALL), str(self.load))
            case DeleteInEngine():
                self.engine, self.seen = None, None
            case DeleteAtBroker():
                self.broker, self.seen = None, None
            case ResetAtBroker():
                assert self.engine is not None
                assert broker is not None
                left = self.both - self.engine
                if left:
                    self.broker = self.durable = set(range(min(left))) & (self.broker or set())
                    broker = self._cursor()
                assert broker is not None
                self.seen = Seen(self.generation, broker, str(self.load))
            case ResetInEngine():
                assert self.broker is not None
                assert broker is not None
                self.engine = self.broker & self.both
                self.generation += 1
                self.seen = Seen(self.generation, broker, str(self.load))
            case Merge(in_engine, at_broker):
                assert self.engine is not None
                assert self.broker is not None
                assert not numbers(in_engine) & self.engine
                assert not numbers(at_broker) & self.broker
                self.engine |= numbers(in_engine)
                self.broker |= numbers(at_broker)
                after = self._cursor()
                assert after is not None
                self.seen = Seen(self.generation, after, str(self.load))

    @invariant()
    def invariants_5_and_6_hold_where_both_sides_were_compared(self) -> None:
        if not self.settled or self.broker is None or self.engine is None:
            return
        assert self.broker & self.both == self.engine & self.both == self.acknowledged & self.both
        assert self.broker <= self.acknowledged
        assert self.engine <= self.acknowledged


Reconciling.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestReconciling = Reconciling.TestCase
