"""Decision which run of a source's store a destination serves, if several runs announce themselves. Pure.

A run is one start of a worker on its store. Two live runs of one store mean that somebody copied the data directory;
such runs are twins. Callers report events and pass the time.

Invariants: a destination serves one run of a store at a time; two runs count as twins only after both answered; a
worker that was restarted is served in the end (DESIGN §3, 12).

1. A run that announces itself while no other run is connected is served.
2. A run that announces itself while another run is connected has to wait. The connected run is asked over its stream.
   If it does not answer within :data:`ANSWER_SECONDS`, it has ended: after a restart, on a dead host, or with a
   half-open connection. Then the next run that announces itself is served.
3. If the connected run answers, and the waiting run announces itself again, both are alive: they are twins. The
   connected run stays served, and the waiting run is refused.
4. While a served run has twins, its place is kept for :data:`TWIN_SECONDS` after it was last heard of. Within that time
   only a later start of its worker takes the place: a run that names the served run as an earlier run, and no twin
   after it. Otherwise a restart of the worker would hand the place to the twin.
5. A run that was not heard of for :data:`TWIN_SECONDS` is no twin any more.
6. An operator decides which run stays. The other run, and every later start on its store, is refused until the operator
   decides otherwise. A run names the earlier runs of its store. A copied store also names the runs of its original, so
   the newest run that any decision names counts.

A worker of an earlier version announces no run. It counts as a run without id (:data:`OLDER`). It cannot be asked, so
any other run takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from replicator.peering.runs import Run, RunVerdict

ANSWER_SECONDS: Final = 5.0
"""Time in which the served run must answer. A restarted worker waits as long if its old connection is half-open."""
TWIN_SECONDS: Final = 60.0
"""Time without news after which a twin no longer counts, and the served run's place is free. A restart is faster."""
FRESH_SECONDS: Final = 10.0
"""Time for which an answer of the served run proves that it is alive. Links announce their run every few seconds."""
OTHERS_MAX: Final = 8
"""Most twins of one store that are remembered; the twin that was silent for longest is forgotten first."""
DECIDED_MAX: Final = 64
"""Most runs of one store that operators' decisions name; the oldest are forgotten first."""

OLDER: Final = Run("")
"""Run that stands for a worker of an earlier version, which announces no run."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Decision about a run that announced itself.

    If ``question`` is not None, the caller asks the served run that question. If ``ended`` is not None, the caller cuts
    the streams of the run with that id.
    """

    standing: RunVerdict
    question: str | None = None
    ended: str | None = None


@dataclass(frozen=True, slots=True)
class Decisions:
    """Operators' decisions about the runs of one store: ``stay`` are kept, ``gone`` are refused; both newest first."""

    stay: tuple[str, ...] = ()
    gone: tuple[Run, ...] = ()

    def refuses(self, run: Run) -> bool:
        """Return whether ``run``, or the newest of its earlier runs that a decision names, is refused."""
        gone = {each.id for each in self.gone}
        return next((known in gone for known in run.line if known in gone or known in self.stay), False)

    def refused(self, run: Run) -> Decisions:
        """Return the decisions with ``run``, which they refuse, among those that do not stay: a run names only some of
        the runs before it, and the next start of its store is to be known by this one."""
        if any(each.id == run.id for each in self.gone):
            return self
        known = [each.id for each in self.gone if each.id in run.line]  # of which the oldest is enough
        kept = (each for each in self.gone if each.id not in known[:-1])
        return Decisions(self.stay, (run, *kept)[:DECIDED_MAX])

    def stays(self, run: Run, others: Sequence[Run]) -> Decisions:
        """Return the decisions with a new one: ``run`` is kept, and ``others`` are refused."""
        dismissed = {each.id for each in others}
        stay = (run.id, *(each for each in self.stay if each not in dismissed and each != run.id))
        kept = (each for each in self.gone if each.id not in dismissed and each.id not in run.line)
        return Decisions(stay[:DECIDED_MAX], (*others, *kept)[:DECIDED_MAX])


@dataclass(frozen=True, slots=True)
class StoredRuns:
    """State that the destination stores, so that a restart does not lose it: the served run, its twins, and
    decisions."""

    served: Run | None = None
    twins: tuple[Run, ...] = ()
    decisions: Decisions = Decisions()

    @classmethod
    def of_json(cls, row: Mapping[str, Any]) -> Self:
        return cls(
            None if row["served"] is None else Run.of_json(row["served"]),
            tuple(map(Run.of_json, row["twins"])),
            Decisions(tuple(map(str, row["stay"])), tuple(map(Run.of_json, row["gone"]))),
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "served": None if self.served is None else self.served.as_json(),
            "twins": [each.as_json() for each in self.twins],
            "stay": list(self.decisions.stay),
            "gone": [each.as_json() for each in self.decisions.gone],
        }


class RunUnknown(Exception):
    """Error for a run that an operator wants to keep, if it is not one of several known runs of its store."""


@dataclass(slots=True)
class _OtherRun:
    run: Run
    heard_at: float


@dataclass(slots=True)
class _Asked:
    question: str
    at: float
    came: set[str] = field(default_factory=set)
    """Runs that announced themselves while the question was not answered yet."""
    answered_at: float | None = None


class ServedRuns:
    """Runs of one source's store, as one destination knows them. ``new_question`` returns a text that was never
    used."""

    def __init__(self, new_question: Callable[[], str], now: float, kept: StoredRuns | None = None) -> None:
        kept = kept or StoredRuns()
        self._new_question = new_question
        self._served = kept.served
        self._connections = 0
        self._heard_at = now
        """Time at which the served run was last known to be alive."""
        self._asked: _Asked | None = None
        self._others = {run.id: _OtherRun(run, now) for run in kept.twins}
        self._decisions = kept.decisions

    @property
    def served(self) -> Run | None:
        """The run that is served, or for which the place is kept; None if there is none."""
        return self._served

    @property
    def decisions(self) -> Decisions:
        return self._decisions

    def twins(self, now: float) -> list[Run]:
        """Return the twins of the served run that were heard of within :data:`TWIN_SECONDS`."""
        self._forget(now)
        return [each.run for each in self._others.values()]

    def kept(self) -> StoredRuns | None:
        """Return the state to store; None if there are neither twins nor decisions."""
        if not self._others and self._decisions == Decisions():
            return None
        twins = tuple(each.run for each in self._others.values())
        return StoredRuns(self._served if twins else None, twins, self._decisions)

    def serves(self, run_id: str) -> bool:
        """Return whether the destination accepts streams and requests of run ``run_id``."""
        return self._served is not None and self._served.id == run_id

    def arrives(self, run: Run, now: float) -> Verdict:
        """Record that a run announced itself, and return how it is treated."""
        if self._decisions.refuses(run):
            self._decisions = self._decisions.refused(run)
            return Verdict(RunVerdict.DISMISSED)
        self._forget(now)
        served = self._served
        if served is None or run.id == served.id:
            return self._serve(run, now)
        if served.id == OLDER.id:
            return self._serve(run, now)
        if not self._connections:
            return self._take_place(run, now)
        return self._ask(run, now)

    def answered(self, run_id: str, question: str, now: float) -> None:
        """Record that a run answered a question."""
        asked = self._asked
        if self.serves(run_id) and asked is not None and asked.question == question and asked.answered_at is None:
            asked.answered_at = self._heard_at = now

    def connected(self, run_id: str) -> None:
        """Record that a worker opened a stream."""
        if self.serves(run_id):
            self._connections += 1

    def disconnected(self, run_id: str, now: float) -> None:
        """Record that a stream of a worker has ended."""
        if self.serves(run_id) and self._connections:
            self._connections -= 1
            self._heard_at = now

    def stays(self, run_id: str, now: float) -> str | None:
        """Keep ``run_id``, as an operator decided; return the id of the run whose streams must be cut, or None.

        Raises :class:`RunUnknown` if ``run_id`` is neither served, nor a twin, nor named by an earlier decision, or if
        it is the only known run of its store.
        """
        self._forget(now)
        served = [] if self._served is None else [self._served]
        runs = {each.id: each for each in (*self._decisions.gone, *self.twins(now), *served)}
        if run_id not in runs or len(runs) == 1:
            raise RunUnknown(run_id)
        others = [each for each in runs.values() if each.id != run_id]
        self._decisions = self._decisions.stays(runs[run_id], others)
        self._others.clear()
        if self.serves(run_id):
            return None
        ended = None if self._served is None else self._served.id
        self._serve(runs[run_id], now)
        return ended

    def _ask(self, run: Run, now: float) -> Verdict:
        """Decide about a run that announced itself while another run is connected."""
        asked = self._asked
        if asked is not None and asked.answered_at is None and now - asked.at >= ANSWER_SECONDS:
            assert self._served is not None
            ended, self._connections, self._asked = self._served.id, 0, None
            return replace(self._take_place(run, now), ended=ended)
        if asked is not None and asked.answered_at is not None:
            if run.id in asked.came and now - asked.answered_at <= FRESH_SECONDS:
                return self._twin(run, now)
            asked = None
        question = None
        if asked is None:
            question = self._new_question()
            asked = self._asked = _Asked(question, now)
        asked.came.add(run.id)
        if run.id in self._others:
            return replace(self._twin(run, now), question=question)
        return Verdict(RunVerdict.ASKING, question=question)

    def _take_place(self, run: Run, now: float) -> Verdict:
        """Decide about a run that announced itself while the served run is not connected."""
        assert self._served is not None
        place_kept = self._others and now - self._heard_at <= TWIN_SECONDS
        newest = next((each for each in run.line if each == self._served.id or each in self._others), None)
        if place_kept and newest != self._served.id:
            return self._twin(run, now)
        return self._serve(run, now)

    def _serve(self, run: Run, now: float) -> Verdict:
        ended = None
        if self._served is not None and self._served.id != run.id:
            ended, self._connections = self._served.id, 0
        if ended is not None or (self._asked is not None and self._asked.answered_at is None):
            self._asked = None  # a run that announces itself without being asked need not answer older questions
        self._served, self._heard_at = run, now
        self._others.pop(run.id, None)
        return Verdict(RunVerdict.SERVED, ended=ended)

    def _twin(self, run: Run, now: float) -> Verdict:
        self._others[run.id] = _OtherRun(run, now)
        if len(self._others) > OTHERS_MAX:
            del self._others[min(self._others, key=lambda each: self._others[each].heard_at)]
        return Verdict(RunVerdict.TWIN)

    def _forget(self, now: float) -> None:
        """Forget the twins that were silent for :data:`TWIN_SECONDS`."""
        for each in [key for key, other in self._others.items() if now - other.heard_at > TWIN_SECONDS]:
            del self._others[each]
