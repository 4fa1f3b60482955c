"""Producers that come and go at random: one owner or many that share, names told apart, epochs that only grow."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from replicator.engine.errors import NotAllowedError, ProducerBusy, ProducerFenced
from replicator.engine.producing.producer_registry import Admitted, Decision, ProducerRegistry
from replicator.engine.types import AccessMode, ProducerOptions

names = st.sampled_from(["a", "b", "c", "d"])
modes = st.sampled_from(AccessMode)
epochs = st.one_of(st.none(), st.integers(0, 6))


@dataclass(frozen=True)
class Member:
    name: str
    mode: AccessMode
    epoch: int | None


class ProducerRegistryMachine(RuleBasedStateMachine):
    """Machine of the registry of producers, with a model of the producers that are connected and those that wait."""

    def __init__(self) -> None:
        super().__init__()
        self.registry = ProducerRegistry(None)
        self.durable_epoch: int | None = None
        self.sessions = count(1)
        self.connected: dict[int, Member] = {}
        self.waiting: dict[int, Member] = {}

    @rule(name=names, mode=modes, epoch=epochs)
    def connect(self, name: str, mode: AccessMode, epoch: int | None) -> None:
        session = next(self.sessions)
        before = (dict(self.registry.sessions), self.registry.epoch, len(self.registry), self.registry.waiting)
        try:
            decisions = self.registry.connect(session, name, ProducerOptions(name, mode, epoch))
        except (ProducerBusy, ProducerFenced, NotAllowedError):
            after = (dict(self.registry.sessions), self.registry.epoch, len(self.registry), self.registry.waiting)
            assert after == before
            assert self.connected or self.waiting or epoch is not None, "an empty topic takes everybody"
            return
        if mode is not AccessMode.SHARED and epoch is not None and before[1] is not None:
            assert epoch >= before[1], "an old epoch was let in"
        member = Member(name, mode, epoch)
        self.waiting[session] = member
        self.take(decisions)
        if session in self.waiting:
            assert mode is AccessMode.WAIT_FOR_EXCLUSIVE
            assert self.connected, "nobody waits for a topic that is free"

    @rule(which=st.integers(0, 10))
    def leave(self, which: int) -> None:
        sessions = [*self.connected, *self.waiting]
        if sessions:
            session = sessions[which % len(sessions)]
            self.connected.pop(session, None)
            self.waiting.pop(session, None)
            self.take(self.registry.leave(session))

    @rule()
    def restart(self) -> None:
        self.registry = ProducerRegistry(self.durable_epoch)
        self.connected.clear()
        self.waiting.clear()

    def take(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            if not isinstance(decision, Admitted):
                gone = self.connected.pop(decision.session, None) or self.waiting.pop(decision.session, None)
                assert gone is not None, "somebody was fenced who was not here"
                continue
            member = self.waiting.pop(decision.session)
            if member.mode is not AccessMode.SHARED:
                assert decision.epoch is not None
                assert self.durable_epoch is None or decision.epoch >= self.durable_epoch
                if decision.epoch == self.durable_epoch:
                    assert member.epoch == decision.epoch, "an epoch has one owner"
                assert decision.save_epoch == (decision.epoch != self.durable_epoch)
                self.durable_epoch = decision.epoch
                ahead = [session for session, other in self.waiting.items() if session < decision.session]
                assert not ahead or member.epoch is not None, "somebody was passed over"
            self.connected[decision.session] = member

    @invariant()
    def one_owner_or_many_that_share(self) -> None:
        owners = [member for member in self.connected.values() if member.mode is not AccessMode.SHARED]
        assert len(owners) <= 1
        assert not owners or len(self.connected) == 1
        assert self.registry.exclusive == bool(owners)

    @invariant()
    def names_are_told_apart(self) -> None:
        everybody = {**self.connected, **self.waiting}
        assert self.registry.sessions == {member.name: session for session, member in everybody.items()}
        assert len({member.name for member in everybody.values()}) == len(everybody)
        assert len(self.registry) == len(self.connected)
        assert self.registry.waiting == len(self.waiting)

    @invariant()
    def nobody_waits_for_a_free_topic(self) -> None:
        assert self.connected or not self.waiting


TestProducerRegistry = ProducerRegistryMachine.TestCase
TestProducerRegistry.settings = settings(max_examples=examples(100), stateful_step_count=30, deadline=None)
