"""A budget of bytes keeps its limits and serves every claim in the end, however bytes are claimed and given back."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from replicator.running.byte_budget import HELD_SECONDS_MAX, PATIENCE_SECONDS, ByteBudget, Claim

BYTES_MAX = 100
SHARE = 25


class BudgetMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.budget = ByteBudget(BYTES_MAX)
        self.waiting: list[Claim] = []
        self.granted: list[Claim] = []
        self.now = 0.0

    def _note(self, granted: list[Claim]) -> None:
        for claim in granted:
            self.waiting.remove(claim)
            self.granted.append(claim)

    @rule(holder=st.integers(0, 6), size=st.one_of(st.integers(0, 30), st.integers(90, 400)))
    def ask(self, holder: int, size: int) -> None:
        claim = Claim(holder, size, lambda: None)
        self.waiting.append(claim)
        self._note(self.budget.ask(claim, self.now))

    @precondition(lambda self: self.granted)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        claim = self.granted.pop(data.draw(st.integers(0, len(self.granted) - 1)))
        self._note(self.budget.give_back(claim, self.now))
        self._note(self.budget.give_back(claim, self.now))  # the second time it does nothing

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        claim = self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1)))
        self._note(self.budget.give_back(claim, self.now))

    @rule(seconds=st.sampled_from([1.0, PATIENCE_SECONDS, HELD_SECONDS_MAX]))
    def cut_off(self, seconds: float) -> None:
        self.now += seconds
        claim = self.budget.overdue(self.now)
        if claim is not None:
            assert claim in self.granted
            assert self.waiting
            assert claim.granted_at is not None
            assert self.now - claim.granted_at >= HELD_SECONDS_MAX

    @invariant()
    def limits_are_kept(self) -> None:
        assert self.budget.used_bytes == sum(claim.size_bytes for claim in self.granted)
        assert self.budget.waiting == len(self.waiting)
        large = [claim for claim in self.granted if claim.size_bytes > SHARE]
        assert len(large) <= 1
        assert self.budget.used_bytes <= max([BYTES_MAX, *(claim.size_bytes for claim in large)])
        for holder in {claim.holder for claim in self.granted} - {claim.holder for claim in large}:
            assert sum(claim.size_bytes for claim in self.granted if claim.holder == holder) <= SHARE

    @invariant()
    def nothing_waits_for_nothing(self) -> None:
        if not self.budget.used_bytes:
            assert not self.waiting

    def teardown(self) -> None:
        """Check that each waiting claim is granted once the others have been given back."""
        while self.granted:
            self._note(self.budget.give_back(self.granted.pop(0), self.now))
        assert not self.waiting


TestByteBudget = BudgetMachine.TestCase
