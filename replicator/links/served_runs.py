"""A destination's choice between several runs of one source's store. Pure: told of events and the time.

Invariants: a destination serves one run of a store at a time; two runs count as twins only after both answered; a
worker that was restarted is served in the end (DESIGN §3, 12).

1. A run that comes while no other is connected is served.
2. A run that comes while another is connected waits. The other is asked over its connection. If it does not answer
   within :data:`ANSWER_SECONDS`, it has ended: a restart, a dead host, a half-open connection. The run that comes next
   is served.
3. If it answers, and the second run comes again, both are there: they are twins. The first stays served, the second is
   refused.
4. While twins are known, the place of the first is kept for :data:`TWIN_SECONDS` after it was last heard of. Only a
   later start of the first takes it within that time, or else its restart would hand the place to the twin.
5. A twin that was not heard of for :data:`TWIN_SECONDS` is none any more.
6. An operator says which run stays. The other, and every later start of its store, is refused until the operator says
   otherwise. The newest run of a line that such a decision names counts, because a copied store names the runs of its
   original.

A worker of an earlier version names no run. It is one without id here; it cannot be asked, so any run takes its place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self

from replicator.peering.runs import Run, Standing

ANSWER_SECONDS: Final = 5.0
"""How long the served run has to answer; a restarted worker waits as long where a connection was left half open."""
TWIN_SECONDS: Final = 60.0
"""How long a twin counts, and its place is kept for the first run, without a word of it: time for a restart."""
FRESH_SECONDS: Final = 10.0
"""How long an answer counts; links tell their run again within some seconds."""
OTHERS_MAX: Final = 8
"""Twins of one store that are remembered; the one that was not heard of for longest is forgotten."""
DECIDED_MAX: Final = 64
"""Runs that operators decided about, of one store; the oldest are forgotten."""

OLDER: Final = Run("")
"""A worker of an earlier version, which names no run."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a run that came.

    ``question`` is to be put to the run that is served. The streams of ``ended`` are to be cut, if it is not None.
    """

    standing: Standing
    question: str | None = None
    ended: str | None = None


@dataclass(frozen=True, slots=True)
class Decisions:
    """Decisions of operators: the runs that stay, and those that do not, the newest first."""

    stay: tuple[str, ...] = ()
    gone: tuple[Run, ...] = ()

    def refuses(self, run: Run) -> bool:
        """Return whether ``run`` belongs to a store that is to give way."""
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
        """Return the decisions with one more: ``run`` stays, ``others`` do not."""
        dismissed = {each.id for each in others}
        stay = (run.id, *(each for each in self.stay if each not in dismissed and each != run.id))
        kept = (each for each in self.gone if each.id not in dismissed and each.id not in run.line)
        return Decisions(stay[:DECIDED_MAX], (*others, *kept)[:DECIDED_MAX])


@dataclass(frozen=True, slots=True)
class Kept:
    """Twins and decisions, which survive a restart of the destination."""

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
    """An operator named a run that is neither served nor a twin, nor was decided about."""


@dataclass(slots=True)
class _Other:
    run: Run
    heard_at: float


@dataclass(slots=True)
class _Asked:
    question: str
    at: float
    came: set[str] = field(default_factory=set)
    """The runs that came while the answer was not here yet."""
    answered_at: float | None = None


class ServedRuns:
    """The runs of one source's store, at a destination. ``new_question`` makes a text that was never used before."""

    def __init__(self, new_question: Callable[[], str], now: float, kept: Kept | None = None) -> None:
        kept = kept or Kept()
        self._new_question = new_question
        self._served = kept.served
        self._connections = 0
        self._heard_at = now
        """When the served run was there for sure."""
        self._asked: _Asked | None = None
        self._others = {run.id: _Other(run, now) for run in kept.twins}
        self._decisions = kept.decisions

    @property
    def served(self) -> Run | None:
        """The run that is served, or whose place is kept."""
        return self._served

    @property
    def decisions(self) -> Decisions:
        return self._decisions

    def twins(self, now: float) -> list[Run]:
        """Return the twins of the served run."""
        self._forget(now)
        return [each.run for each in self._others.values()]

    def kept(self) -> Kept | None:
        """Return what is to survive a restart; None if that is nothing."""
        if not self._others and self._decisions == Decisions():
            return None
        twins = tuple(each.run for each in self._others.values())
        return Kept(self._served if twins else None, twins, self._decisions)

    def serves(self, run_id: str) -> bool:
        """Return whether streams and requests of that run are taken."""
        return self._served is not None and self._served.id == run_id

    def arrives(self, run: Run, now: float) -> Verdict:
        """Take note of a run that told itself, and return what becomes of it."""
        if self._decisions.refuses(run):
            self._decisions = self._decisions.refused(run)
            return Verdict(Standing.DISMISSED)
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
        """Take note that a run answered a question."""
        asked = self._asked
        if self.serves(run_id) and asked is not None and asked.question == question and asked.answered_at is None:
            asked.answered_at = self._heard_at = now

    def connected(self, run_id: str) -> None:
        """Take note of one more stream of a worker."""
        if self.serves(run_id):
            self._connections += 1

    def disconnected(self, run_id: str, now: float) -> None:
        """Take note that a stream of a worker has ended."""
        if self.serves(run_id) and self._connections:
            self._connections -= 1
            self._heard_at = now

    def stays(self, run_id: str, now: float) -> str | None:
        """Decide that a run stays; return the run whose streams are to be cut, if any.

        Raises :class:`RunUnknown` if the run is not one of several that are known.
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
        """Treat a run that came while another is connected."""
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
        return Verdict(Standing.ASKING, question=question)

    def _take_place(self, run: Run, now: float) -> Verdict:
        """Treat a run that came while the one before it is not connected."""
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
            self._asked = None  # a run that came by itself need not answer what it was asked before
        self._served, self._heard_at = run, now
        self._others.pop(run.id, None)
        return Verdict(Standing.SERVED, ended=ended)

    def _twin(self, run: Run, now: float) -> Verdict:
        self._others[run.id] = _Other(run, now)
        if len(self._others) > OTHERS_MAX:
            del self._others[min(self._others, key=lambda each: self._others[each].heard_at)]
        return Verdict(Standing.TWIN)

    def _forget(self, now: float) -> None:
        """Forget the twins that were not heard of for long."""
        for each in [key for key, other in self._others.items() if now - other.heard_at > TWIN_SECONDS]:
            del self._others[each]
