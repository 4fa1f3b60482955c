"""A subscription at a broker and in the engine, compared again and again while both sides are used.

The machine knows who acknowledged what. Invariant 5: neither side ever treats an entry as consumed that nobody
acknowledged since the last seek. A start acknowledges nothing, so an earlier start opens again what lay before a later
one. Invariant 6: without a seek nothing that was acknowledged is open again, and both sides say the same after a
comparison, also where the bridge was killed in the middle of one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replicator.apache.broker_cursor import BrokerCursor
from replicator.apache.reconciling import (
    NOT_TOLD,
    CreateAtBroker,
    CreateInEngine,
    DeleteAtBroker,
    DeleteInEngine,
    Forget,
    InEngine,
    Merge,
    NoteStart,
    PutBackAtBroker,
    ResetAtBroker,
    ResetInEngine,
    StartInEngine,
    SyncState,
    acknowledged_at_broker,
    before,
    reconcile,
)
from snapshots.position import BEFORE_ALL, Position
from snapshots.position_set import PositionSet
from snapshots.starts import Start

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
        """Entries that the broker's cursor passes over; None if there is no such subscription."""
        self.durable: set[int] = set()
        self.made_at = 0
        """All before this entry was passed over when it was made there."""
        self.engine: set[int] | None = None
        """Entries acknowledged in the engine; None if there is no such subscription."""
        self.start = 0
        """All before this entry lies before the start, in the engine."""
        self.generation = 0
        self.buried = 0
        self.load = 0
        self.seen: SyncState | None = None
        self.acknowledged: set[int] = set()
        """Entries acknowledged by anybody since the last seek."""
        self.early: set[int] = set()
        """Acknowledged at the broker although it lies before the start: the broker had not heard of that yet."""
        self.settled = False
        self.sought = False
        """Since the last comparison: what the other side acknowledges then is of an earlier generation, and is lost."""
        self.cut_after: int | None = None
        """Number of the bridge's next steps after which it is killed."""

    # What others do.

    @rule(found=entries)
    def more_entries_are_on_both_sides(self, found: set[int]) -> None:
        self.both |= found
        self.settled = False

    @precondition(lambda self: self.broker is not None and not self.sought)
    @rule(found=entries)
    def consumers_at_the_broker_acknowledge(self, found: set[int]) -> None:
        """Acknowledge at the broker. It sends nothing that its cursor has passed over."""
        assert self.broker is not None
        found = found - self.broker
        self.broker |= found
        early = {number for number in found if number < self.start}
        self.early |= early
        self.acknowledged |= found - early
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
        """Kill the broker, only after both sides settled: a seek and a kill between comparisons look like a kill."""
        assert self.broker is not None
        lost = self.broker - self.durable
        self.broker = self.durable & self.broker
        self.acknowledged -= lost - (self.engine or set())  # of entries that the bridge had not read: nobody else knows
        self.broker |= set(range(self.made_at))  # a broker stores where it makes a subscription
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
        self.made_at = 0
        self.acknowledged = set(kept)
        self.settled, self.sought = False, True

    @precondition(lambda self: self.settled and self.engine is not None and (self.broker or set()) <= self.both)
    @rule(first=st.integers(0, ENTRIES - 1))
    def another_cluster_seeks(self, first: int) -> None:
        """Seek from another cluster. The bridge has read the acknowledgements at the broker; the seek knows nothing of
        others."""
        assert self.engine is not None
        self.engine = {number for number in self.engine | set(range(self.start)) if number < first}
        self.start = 0
        self.generation += 1
        self.acknowledged = set(self.engine)
        self.settled, self.sought = False, True

    @precondition(lambda self: self.broker is not None and self.engine is not None and self._is_told())
    @rule(at_broker=st.booleans())
    def it_is_deleted_on_one_side(self, at_broker: bool) -> None:
        """Delete the subscription on one side, also right after the other side got it."""
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
    @rule(at_broker=st.booleans(), start=st.integers(0, ENTRIES))
    def it_is_made_anew(self, at_broker: bool, start: int) -> None:
        self.generation += 1
        self.acknowledged = set()
        if at_broker:
            self._made_at_broker(start)
        else:
            self.engine, self.start = set(), start
        self.settled = False

    @precondition(lambda self: self.broker is None and self.engine is not None and self.seen is None)
    @rule(start=st.integers(0, ENTRIES))
    def an_application_makes_it_at_the_broker_as_well(self, start: int) -> None:
        self._made_at_broker(start)
        self.settled = False

    def _is_told(self) -> bool:
        return self.seen is not None and self.seen.generation != NOT_TOLD

    def _made_at_broker(self, start: int) -> None:
        self.made_at = start
        self.broker, self.durable = set(range(start)), set(range(start))

    @precondition(lambda self: self.engine is not None)
    @rule(start=st.integers(0, ENTRIES))
    def another_cluster_has_an_earlier_start(self, start: int) -> None:
        if start < self.start:
            self.start = start
            self.settled = False

    # The bridge.

    @rule()
    def compare(self) -> None:
        for _ in range(6):
            self._compare_once()
        self.settled, self.sought = True, False

    @rule(steps=st.integers(0, 2))
    def it_is_killed_while_it_compares(self, steps: int) -> None:
        self.settled, self.cut_after = False, steps
        self._compare_once()
        self.cut_after = None

    def _is_cut(self) -> bool:
        if self.cut_after is None:
            return False
        self.cut_after -= 1
        return self.cut_after < 0

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

    def _in_engine(self) -> InEngine | None:
        if self.engine is None:
            return None
        opened = positions(number for number in self.both - self.engine if number >= self.start)
        acknowledged = positions(self.both)
        acknowledged.difference_update(opened)
        uncovered = opened.copy()
        uncovered.discard_after(self.seen.starts["o"].position if self.seen and self.seen.starts else BEFORE_ALL)
        return InEngine(self.generation, acknowledged, opened, uncovered)

    def _starts(self) -> dict[str, Start]:
        return {"o": Start(1, Position(LEDGER, self.start - 1))}

    def _compare_once(self) -> None:
        broker, engine, seen = self._cursor(), self._in_engine(), self.seen
        match reconcile(seen, broker, engine, load=str(self.load)):
            case Forget():
                self.seen = None
            case NoteStart():
                assert broker is not None
                self.seen = SyncState(NOT_TOLD, broker, str(self.load), start=broker.mark_delete)
                # What was acknowledged before cannot be told from where it was made.
                self.acknowledged -= set(range(broker.mark_delete.entry + 1)) - (self.engine or set())
            case CreateInEngine():
                assert seen is not None
                self.engine, self.start = set(), seen.start.entry + 1
                self.generation += 1
                if not self._is_cut():
                    self.seen = replace(seen, generation=self.generation)
            case StartInEngine():
                assert seen is not None
                self.start = min(self.start, seen.start.entry + 1)
                if not self._is_cut():
                    self.seen = replace(seen, generation=self.generation)
            case CreateAtBroker():
                assert engine is not None
                first = engine.open.first()
                made_at = self.made_at = 0 if first is None else first.entry
                self.broker, self.durable = set(range(made_at)), set(range(made_at))
                start = Position(LEDGER, made_at - 1)
                self.seen = SyncState(self.generation, BrokerCursor(BEFORE_ALL), str(self.load), start, self._starts())
            case DeleteInEngine():
                self.engine, self.seen = None, None
            case DeleteAtBroker():
                self.broker, self.seen = None, None
            case ResetAtBroker():
                assert engine is not None
                assert broker is not None
                if (first := engine.open.first()) is not None:
                    self.made_at = 0
                    self.broker = self.durable = set(range(first.entry))
                    broker = self._cursor()
                if not self._is_cut():
                    assert broker is not None
                    start = broker.mark_delete
                    self.seen = SyncState(self.generation, broker, str(self.load), start, self._starts())
            case PutBackAtBroker(first):
                self._put_back(first)
            case ResetInEngine():
                assert self.broker is not None
                assert broker is not None
                self.engine, self.start = self.broker & self.both, 0
                self.generation += 1
                self.seen = SyncState(self.generation, broker, str(self.load))
            case Merge(in_engine, at_broker, start):
                assert self.engine is not None
                assert self.broker is not None
                assert seen is not None
                assert not numbers(in_engine) & self.engine
                assert not numbers(at_broker) & self.broker
                assert broker is not None
                self.seen = SyncState(self.generation, broker, str(self.load), start, self._starts())
                if self._is_cut():
                    return
                self.engine |= numbers(in_engine)
                self.broker |= numbers(at_broker)
                if self._is_cut():
                    return
                after = self._cursor()
                assert after is not None
                self.seen = replace(self.seen, broker=after)

    def _put_back(self, first: Position) -> None:
        broker, engine = self._cursor(), self._in_engine()
        assert self.seen is not None
        assert broker is not None
        assert engine is not None
        assert self.engine is not None
        assert self.broker is not None
        self.seen = seen = replace(self.seen, broker=broker, returning=first)
        if self._is_cut():
            return
        self.engine |= numbers(acknowledged_at_broker(seen, broker, engine))
        self.made_at = 0
        self.broker = self.durable = set(range(first.entry)) & self.broker
        if self._is_cut():
            return
        put = self._cursor()
        assert put is not None
        assert put.mark_delete <= before(first)
        start = min(seen.start, put.mark_delete)
        self.seen = SyncState(self.generation, put, str(self.load), start=start, starts=self._starts())

    @invariant()
    def invariants_5_and_6_hold_where_both_sides_were_compared(self) -> None:
        if self.engine is not None and not self.sought:
            assert self.engine <= self.acknowledged | self.early
        if not self.settled or self.broker is None or self.engine is None:
            return
        passed_over = self.engine | set(range(self.start))
        assert self.broker & self.both == passed_over & self.both
        assert self.acknowledged & self.both <= passed_over


Reconciling.TestCase.settings = settings(max_examples=examples(150), stateful_step_count=40, deadline=None)
TestReconciling = Reconciling.TestCase
