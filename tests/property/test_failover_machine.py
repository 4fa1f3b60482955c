"""Failover cores under any interleaving: epochs go up, all come to one assignment, no write where it could be known.

A model of workers whose messages are lost, doubled and reordered, that crash at every step, and of coordinators that
switch at the same time. Invariants of :mod:`replicator.failover.core`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from examples import examples
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replicator.engine.gate import Closed
from replicator.failover.core import Action, Announce, AskOthers, FailoverCore, Save, SetGate
from replicator.failover.epochs import FIRST, is_fenced, precedence, served_homes, serving, switched
from replicator.failover.errors import EpochConflict, SwitchImpossible
from snapshots.markers import FailoverEpoch

CLUSTERS = ("A", "B", "C", "D")
clusters = st.sampled_from(CLUSTERS)


@dataclass
class Worker:
    """A worker process: its core, what is durable, and what it has to do."""

    name: str
    core: FailoverCore
    stored: FailoverEpoch | None = None
    logged: list[FailoverEpoch] = field(default_factory=list)
    todo: list[Action] = field(default_factory=list)
    up: bool = True
    asking: bool = False
    proposed: FailoverEpoch | None = None
    """The switch to this worker that is being saved."""
    highest: FailoverEpoch = FIRST
    """The greatest record that this process has known; a restart begins from what is stored."""

    def take(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, SetGate):
                assert action.gate == self.core.gate, "the gate that is set is not the one that follows from the state"
        self.todo += [action for action in actions if not isinstance(action, SetGate)]


class FailoverMachine(RuleBasedStateMachine):
    @initialize(count=st.integers(2, 4), asked=st.booleans())
    def begin(self, count: int, asked: bool) -> None:
        """``asked``: the workers have run for a while."""
        self.names = CLUSTERS[:count]
        self.workers = {name: Worker(name, FailoverCore(name)) for name in self.names}
        self.sent: list[FailoverEpoch] = []
        self.saved: list[FailoverEpoch] = []
        self.serial = 0
        self.now_ms = 0
        for worker in self.workers.values():
            worker.take(worker.core.start(None, []))
            if asked:
                worker.todo.clear()
                worker.take(worker.core.on_answers([]))

    def worker(self, name: str) -> Worker:
        return self.workers[self.names[CLUSTERS.index(name) % len(self.names)]]

    # What happens.

    @rule(name=clusters)
    def work(self, name: str) -> None:
        """Let a worker carry out the first thing that it has to do."""
        worker = self.worker(name)
        if not worker.up or not worker.todo:
            return
        action = worker.todo.pop(0)
        match action:
            case Save(record):
                self.save(worker, record)
            case Announce(record):
                assert any(record == each for each in self.saved), "announced before it was durable"
                worker.logged.append(record)
                self.sent.append(record)
            case AskOthers():
                worker.asking = True

    def save(self, worker: Worker, record: FailoverEpoch) -> None:
        """Store a record as a worker's shell does: never one below the record that is known."""
        worker.stored = max(record, worker.core.record, key=precedence)
        self.saved.append(worker.stored)

    @rule(name=clusters, reached=st.sets(clusters))
    def answers(self, name: str, reached: set[str]) -> None:
        """Let the reachable others answer; the rest had their time."""
        worker = self.worker(name)
        if not worker.up or not worker.asking:
            return
        worker.asking = False
        others = [each for each in self.workers.values() if each is not worker and each.up and each.name in reached]
        known = [each.core.record for each in others]
        worker.take(worker.core.on_answers(known))
        if any(
            is_fenced(record, worker.name) and precedence(record) == max(map(precedence, known)) for record in known
        ):
            top = max(known, key=precedence)
            if precedence(worker.core.record) == precedence(top):
                assert worker.core.gate.producers is Closed.FENCED, "it could have known, and takes writes"

    @precondition(lambda self: self.sent)
    @rule(name=clusters, data=st.data())
    def hears(self, name: str, data: st.DataObject) -> None:
        """Deliver a record, any number of times and in any order; many never come."""
        worker = self.worker(name)
        record = data.draw(st.sampled_from(self.sent))
        if worker.up:
            worker.take(worker.core.on_record(record))

    @rule(to=clusters, home=clusters, base=clusters, keep=st.booleans())
    def switch(self, to: str, home: str, base: str, keep: bool) -> None:
        """Ask ``target`` to take over, as a coordinator that knows what ``base`` knew."""
        worker, known = self.worker(to), self.worker(base).core.record
        if not worker.up or worker.proposed is not None:
            return
        self.serial += 1
        try:
            record = switched(
                worker.core.record,
                kind="promote",
                homes=[self.worker(home).name],
                target=worker.name,
                record_id=str(self.serial),
                at_ms=0,
                keep_consumers=keep,
            )
            actions = worker.core.propose(record, precedence(known))
        except (EpochConflict, SwitchImpossible):
            return
        assert actions == [Save(record)]
        worker.proposed = record

    @rule(name=clusters)
    def proposal_is_saved(self, name: str) -> None:
        """Let what a worker proposed become durable; another record may have come since."""
        worker = self.worker(name)
        if worker.proposed is None:
            return
        record, worker.proposed = worker.proposed, None
        self.save(worker, record)
        try:
            worker.take(worker.core.on_saved(record))
        except EpochConflict:
            assert precedence(worker.core.record) > precedence(record)
        else:
            assert worker.core.record == record, "another record won, and the coordinator is told that this one did"

    @rule(source=clusters, to=clusters, keep=st.booleans())
    def hold(self, source: str, to: str, keep: bool) -> None:
        worker = self.worker(source)
        if not worker.up:
            return
        self.serial += 1
        try:
            expected = precedence(worker.core.record)
            worker.take(worker.core.hold_clients(str(self.serial), to, expected, self.now_ms + 10, keep_consumers=keep))
        except EpochConflict:
            return
        assert worker.core.gate.producers is not None, "held, and takes writes"

    @rule(name=clusters, passed=st.integers(1, 20))
    def tick(self, name: str, passed: int) -> None:
        self.now_ms += passed
        worker = self.worker(name)
        if worker.up:
            held = worker.core.hold is not None
            worker.take(worker.core.on_tick(self.now_ms))
            assert not held or worker.core.gate.producers is not None, "free before the others were asked"

    @rule(name=clusters)
    def crash(self, name: str) -> None:
        worker = self.worker(name)
        worker.up, worker.todo, worker.asking, worker.proposed = False, [], False, None

    @rule(name=clusters)
    def restart(self, name: str) -> None:
        worker = self.worker(name)
        if worker.up:
            return
        worker.up, worker.core, worker.highest = True, FailoverCore(worker.name), FIRST
        worker.take(worker.core.start(worker.stored, worker.logged))
        assert worker.core.gate.producers is not None, "it takes writes before it has asked"

    # What always holds.

    @invariant()
    def epochs_only_go_up(self) -> None:
        for worker in getattr(self, "workers", {}).values():
            if worker.up:
                assert precedence(worker.core.record) >= precedence(worker.highest)
                worker.highest = worker.core.record

    @invariant()
    def what_is_known_is_stored_once_nothing_waits_for_the_store(self) -> None:
        for worker in getattr(self, "workers", {}).values():
            if worker.up and not any(isinstance(action, Save) for action in worker.todo):
                assert (worker.stored or FIRST) == worker.core.record

    @invariant()
    def the_gate_follows_the_record(self) -> None:
        for worker in getattr(self, "workers", {}).values():
            gate = worker.core.gate
            if is_fenced(worker.core.record, worker.name):
                assert gate.producers is Closed.FENCED
                assert gate.serving == serving(worker.core.record, worker.name) != worker.name
                assert (gate.consumers is None) is (worker.name in worker.core.record.consumers_kept)

    def teardown(self) -> None:
        """Start all and let them hear of each other: they agree, and every home is served by one that takes writes."""
        if not hasattr(self, "workers"):
            return
        for worker in self.workers.values():
            self.restart(worker.name)
            worker.core.hold = None
        records = [worker.core.record for worker in self.workers.values()]
        for worker in self.workers.values():
            worker.take(worker.core.on_answers(records))
        agreed = max(records, key=precedence)
        for worker in self.workers.values():
            assert worker.core.record == agreed, "two assignments are left"
        for home in self.names:
            by = self.workers[serving(agreed, home)]
            assert by.core.gate.producers is None, f"{home} is served by {by.name}, which takes nobody"
            assert home in served_homes(agreed, by.name)


TestFailoverMachine = FailoverMachine.TestCase
TestFailoverMachine.settings = settings(
    max_examples=examples(75), stateful_step_count=40, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
