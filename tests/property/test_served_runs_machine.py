"""Choice of the run of a store to serve: random starts, copies, ends, half-open connections and lost answers."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from examples import examples
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replicator.links.served_runs import ANSWER_SECONDS, TWIN_SECONDS, ServedRuns
from replicator.peering.runs import Run, RunVerdict

RETRY_SECONDS = 1.0


@dataclass
class Worker:
    """A process, and what it has of the destination. ``questions`` are on their way to it."""

    run: Run
    alive: bool = True
    connected: bool = False
    """The destination holds a connection for it, be it half open."""
    questions: tuple[str, ...] = ()
    first_told_at: float | None = None
    answered_at: float | None = None
    told: int = 0


class ServedRunsMachine(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.now = 0.0
        self.numbers = count(1)
        self.questions = count(1)
        self.asked_before: set[str] = set()
        self.workers: dict[str, Worker] = {}
        self.runs = ServedRuns(self.new_question, self.now)
        self.start_on(())

    def new_question(self) -> str:
        return f"q{next(self.questions)}"

    def start_on(self, earlier: tuple[str, ...]) -> Worker:
        run = Run(f"r{next(self.numbers)}", earlier)
        self.workers[run.id] = worker = Worker(run)
        return worker

    def alive(self) -> list[Worker]:
        return [each for each in self.workers.values() if each.alive]

    def cut(self, run_id: str | None) -> None:
        if run_id is not None and run_id in self.workers and self.workers[run_id].connected:
            self.workers[run_id].connected = False
            self.runs.disconnected(run_id, self.now)

    def tell(self, worker: Worker) -> RunVerdict:
        worker.told += 1
        if worker.first_told_at is None:
            worker.first_told_at = self.now
        before = {each.id for each in self.runs.twins(self.now)}
        verdict = self.runs.arrives(worker.run, self.now)
        self.cut(verdict.ended)
        if verdict.question is not None:
            assert verdict.question not in self.asked_before
            self.asked_before.add(verdict.question)
            served = self.workers[self.runs.served.id]
            if served.connected and served.alive:
                served.questions += (verdict.question,)
        if verdict.standing is RunVerdict.SERVED and not worker.connected:
            worker.connected = True
            self.runs.connected(worker.run.id)
        new = {each.id for each in self.runs.twins(self.now)} - before
        for each in new:
            self.check_twin(self.workers[each], known_before=bool(before))
        return verdict.standing

    def check_twin(self, twin: Worker, *, known_before: bool) -> None:
        """Both answered: the first a question, the second by coming again; or the place of a first is being kept."""
        assert twin.alive
        served = self.workers[self.runs.served.id]
        answered = served.answered_at is not None and served.answered_at >= twin.first_told_at and twin.told > 1
        assert answered or (known_before and not served.connected)

    @rule(data=st.data())
    def a_worker_tells_its_run(self, data: st.DataObject) -> None:
        if alive := self.alive():
            self.tell(data.draw(st.sampled_from(alive)))

    @rule(data=st.data(), lost=st.booleans())
    def a_worker_answers(self, data: st.DataObject, lost: bool) -> None:
        if asked := [each for each in self.alive() if each.questions]:
            worker = data.draw(st.sampled_from(asked))
            question, *rest = worker.questions
            worker.questions = tuple(rest)
            if not lost:
                self.runs.answered(worker.run.id, question, self.now)
                worker.answered_at = self.now
                self.tell(worker)

    @rule(data=st.data(), half_open=st.booleans(), again=st.booleans())
    def a_worker_ends(self, data: st.DataObject, half_open: bool, again: bool) -> None:
        if alive := self.alive():
            worker = data.draw(st.sampled_from(alive))
            worker.alive = False
            if not half_open:
                self.cut(worker.run.id)
            if again:
                self.start_on(worker.run.line)

    @precondition(lambda self: len(self.alive()) < 4)
    @rule(data=st.data())
    def a_store_is_copied_and_started(self, data: st.DataObject) -> None:
        self.start_on(data.draw(st.sampled_from(list(self.workers.values()))).run.line)

    @rule(data=st.data())
    def a_connection_is_noticed_to_have_ended(self, data: st.DataObject) -> None:
        if connected := [each for each in self.workers.values() if each.connected]:
            self.cut(data.draw(st.sampled_from(connected)).run.id)

    @rule(seconds=st.sampled_from((0.5, 1.0, ANSWER_SECONDS, TWIN_SECONDS)))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def the_destination_is_restarted(self) -> None:
        kept = self.runs.kept()
        for each in self.workers.values():
            each.connected, each.questions = False, ()
        self.runs = ServedRuns(self.new_question, self.now, kept)

    @rule(data=st.data())
    def an_operator_says_which_stays(self, data: st.DataObject) -> None:
        twins = self.runs.twins(self.now)
        if twins and self.runs.served is not None:
            stays = data.draw(st.sampled_from([self.runs.served, *twins])).id
            self.cut(self.runs.stays(stays, self.now))
            assert self.runs.serves(stays)

    @invariant()
    def never_two_runs_are_served_at_once(self) -> None:
        connected = [each.run.id for each in self.workers.values() if each.connected]
        assert len(connected) <= 1
        assert all(map(self.runs.serves, connected))

    def teardown(self) -> None:
        """Check that a worker that is left alone, or started again, is served in the end."""
        if not hasattr(self, "workers") or not self.workers:
            return
        for each in self.alive():
            each.alive = False  # its connection stays half open
        last = self.start_on(list(self.workers.values())[-1].run.line)
        deadline = self.now + 2 * ANSWER_SECONDS + TWIN_SECONDS + 5 * RETRY_SECONDS
        alone = not self.runs.twins(self.now)
        if alone:
            deadline = self.now + ANSWER_SECONDS + 12 * RETRY_SECONDS
        while (standing := self.tell(last)) is not RunVerdict.SERVED and self.now < deadline:
            self.now += RETRY_SECONDS
        assert standing is RunVerdict.SERVED or self.runs.decisions.refuses(last.run)


ServedRunsMachine.TestCase.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)
TestServedRuns = ServedRunsMachine.TestCase
