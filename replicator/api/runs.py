"""HTTP routes and state of runs: a run is one start of a worker on its store; its links lead to this cluster.

If two runs of one store are alive at the same time, somebody copied the data directory. Such runs are called twins:
this worker takes data from one of them only. :class:`replicator.links.served_runs.ServedRuns` decides which run is
served. :class:`SourceRuns` carries out the decisions. It sends questions to a run over its open streams, cuts the
streams of a run that has ended, and stores twins and operators' decisions.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import structlog
from aiohttp import web

from replicator.api.audit import OPERATOR, Audit
from replicator.api.errors import BadRequest
from replicator.api.guarding import ROLE
from replicator.api.linked_sources import LinkedSources
from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError, NotAllowedError
from replicator.links.served_runs import OLDER, RunUnknown, ServedRuns, StoredRuns, Verdict
from replicator.peering.runs import QUESTION, RUNS_ROUTE, STAYS_ROUTE, Run, RunAnnouncement, RunAnswer, RunVerdict

KEPT: Final = "source_runs"
"""Key of the row in the table ``meta`` that has twins and decisions."""

log = structlog.get_logger(__name__)


class RunNotServed(EngineError):
    """Error for a request of a run that is not served: another run of the same store is served here, or the run did not
    announce itself. The link announces its run again, and then retries."""

    status = 409


class NoSuchRun(EngineError):
    """Error for the id of a run that an operator wants to keep, if this worker knows no such run with a twin."""

    status = 404


class QuestionStream(Protocol):
    """Interface of an open stream from another cluster's worker: over it, that worker can be asked a question."""

    def tell(self, answer: dict[str, Any]) -> None:
        """Send ``answer``, a message that answers no frame. Return at once; the message is lost if the stream has
        ended."""


@dataclass(slots=True)
class _Streams:
    """The open streams of one run: all requests, and the streams over which the run's worker can be asked a
    question."""

    requests: dict[int, web.Request] = field(default_factory=dict)
    """Open requests by the number of their stream."""
    asked: set[QuestionStream] = field(default_factory=set)


class SourceRuns:
    """Runs of all source clusters. A source is keyed by its name and by the role that its worker authenticated as.

    Two roles that announce the same source have separate runs, so neither can cut the other's streams. ``clock``
    returns seconds and never goes back.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._runs: dict[tuple[str, str], ServedRuns] = {}
        self._streams: dict[tuple[str, str, str], _Streams] = {}
        self._opened = 0
        """Number of streams that were opened since the worker started."""
        self._written: dict[str, Any] = engine.store.meta(KEPT) or {}
        for key, row in self._written.items():
            source, _, role = key.partition(" ")
            self._runs[source, role] = ServedRuns(_new_question, clock(), StoredRuns.of_json(row))

    async def told(self, source: str, role: str, told: RunAnnouncement) -> RunAnswer:
        """Record that a worker announced its run, and return whether that run is served."""
        runs, now = self._of(source, role), self._clock()
        if told.answering:
            runs.answered(told.run.id, told.answering, now)
        verdict = runs.arrives(told.run, now)
        await self._carry_out(source, role, verdict)
        served, twins = runs.served, runs.twins(now)
        reason = _reason(self._engine.cluster, source, verdict.standing, told.run, served)
        return RunAnswer(verdict.standing, served, twins, reason)

    async def check(self, source: str, role: str, run_id: str) -> None:
        """Raise :class:`RunNotServed` if ``run_id`` is not the run of ``source`` that is served.

        A worker of a version without runs sends no id. All such workers count as the run :data:`OLDER`.
        """
        runs = self._of(source, role)
        if run_id == OLDER.id:
            verdict = runs.arrives(OLDER, self._clock())
            await self._carry_out(source, role, verdict)
            if verdict.standing is not RunVerdict.SERVED:
                raise RunNotServed(_reason(self._engine.cluster, source, verdict.standing, OLDER, runs.served))
        elif not runs.serves(run_id):
            raise RunNotServed(
                f"{self._engine.cluster} takes nothing from run {run_id[:80]!r} (one start of a worker) of {source}'s "
                "store: the link announces the run, and tries again; if this stays, see `replicator links twins`"
            )

    @contextmanager
    def stream(self, request: web.Request, source: str, run_id: str) -> Iterator[None]:
        """Keep a stream of run ``run_id`` in the table of open streams until the context ends, so that it can be cut.

        Raises :class:`RunNotServed` if this cluster serves another run of ``source`` by now.
        """
        role = request.get(ROLE, "")
        key = (source, role, run_id)
        if not self._of(source, role).serves(run_id):  # it may have changed since :func:`check_stream`
            raise RunNotServed(
                f"{self._engine.cluster} serves another run of {source}'s store by now: the link tries again; if this "
                "stays, two copies of the store are live, see `replicator links twins`"
            )
        streams = self._streams.setdefault(key, _Streams())
        self._opened += 1
        number = self._opened
        streams.requests[number] = request
        try:
            yield
        finally:
            del streams.requests[number]
            if not streams.requests:
                self._streams.pop(key, None)

    @contextmanager
    def question_stream(self, request: web.Request, source: str, run_id: str, asked: QuestionStream) -> Iterator[None]:
        """Let questions to the run's worker go over ``asked`` until the context ends. :meth:`stream` must keep the
        stream."""
        role = request.get(ROLE, "")
        runs, streams = self._of(source, role), self._streams[source, role, run_id]
        streams.asked.add(asked)
        runs.connected(run_id)
        try:
            yield
        finally:
            streams.asked.discard(asked)
            runs.disconnected(run_id, self._clock())

    async def stays(self, source: str, run_id: str) -> None:
        """Record an operator's decision to keep the run ``run_id``, and cut the streams of the run that was served
        before.

        Raises :class:`NoSuchRun` if this worker does not know ``run_id`` as one of several runs of a store of
        ``source``.
        """
        for (each, role), runs in self._runs.items():
            if each != source:
                continue
            with suppress(RunUnknown):
                ended = runs.stays(run_id, self._clock())
                self._cut(source, role, ended)
                self._ask(source, role, _new_question())  # the worker of the served run asks at once how it is treated
                await self._write()
                log.warning("an operator said which run stays", source=source, run=run_id)
                return
        known = ", ".join(sorted({each.id for each in self._known(source)})) or "none"
        raise NoSuchRun(
            f"{self._engine.cluster} knows no run (start of a worker) {run_id[:80]!r} of {source} on one of several "
            f"live copies of its store; it knows: {known}; `replicator links twins` shows them"
        )

    def as_json(self) -> list[dict[str, Any]]:
        """Return, for each source and role, the served run, its twins, and the runs that operators decided against."""
        now, rows = self._clock(), []
        for (source, role), runs in self._runs.items():
            served = runs.served
            if served is not None and served.id != OLDER.id:
                rows.append(
                    {
                        "cluster": source,
                        "role": role,
                        "served": served.as_json(),
                        "connected": (source, role, served.id) in self._streams,
                        "twins": [each.as_json() for each in runs.twins(now)],
                        "dismissed": [each.as_json() for each in runs.decisions.gone],
                    }
                )
        return rows

    def _known(self, source: str) -> Iterator[Run]:
        for (each, _), runs in self._runs.items():
            if each == source:
                yield from (*runs.twins(self._clock()), *runs.decisions.gone)
                if runs.served is not None:
                    yield runs.served

    def _of(self, source: str, role: str) -> ServedRuns:
        if (source, role) not in self._runs:
            self._runs[source, role] = ServedRuns(_new_question, self._clock())
        return self._runs[source, role]

    async def _carry_out(self, source: str, role: str, verdict: Verdict) -> None:
        self._cut(source, role, verdict.ended)
        if verdict.question is not None:
            self._ask(source, role, verdict.question)
        if await self._write():  # twins were found, or the last one is gone: the served run is to learn it at once
            self._ask(source, role, _new_question())

    def _ask(self, source: str, role: str, question: str) -> None:
        served = self._of(source, role).served
        if served is not None and (streams := self._streams.get((source, role, served.id))) is not None:
            for each in streams.asked:
                each.tell({QUESTION: question})

    def _cut(self, source: str, role: str, run_id: str | None) -> None:
        if run_id is None or (streams := self._streams.get((source, role, run_id))) is None:
            return
        for request in list(streams.requests.values()):
            if request.transport is not None:
                request.transport.abort()

    async def _write(self) -> bool:
        """Store twins and decisions if they differ from the stored ones; return whether they differ."""
        kept = {
            f"{source} {role}": state.as_json()
            for (source, role), runs in self._runs.items()
            if (state := runs.kept()) is not None
        }
        if kept == self._written:
            return False
        before, self._written = self._written, kept
        for key, row in kept.items():
            if row["twins"]:
                named = {"first": row["served"]["id"], "twins": [each["id"] for each in row["twins"]]}
                log.error("two live copies of one store", source=key.partition(" ")[0], **named)
        try:
            await self._engine.remember(KEPT, kept)
        except BaseException:
            if self._written is kept:  # else a later state was stored meanwhile
                self._written = before
            raise
        return True


def _new_question() -> str:
    return uuid.uuid4().hex


def _reason(here: str, source: str, standing: RunVerdict, run: Run, served: Run | None) -> str:
    """Return why ``run`` is not served, and what an operator can do; empty if it is served."""
    other = "another run" if served is None or served.id == OLDER.id else f"run {served.id} on {served.host or '?'}"
    if standing is RunVerdict.ASKING:
        return f"{here} is asking {other} of {source} whether it has ended; if it does not answer, this run is served"
    if standing is RunVerdict.TWIN:
        return (
            f"two live copies of {source}'s store: {here} serves {other} and takes nothing from this one, run "
            f"{run.id}. Say which one stays: `replicator links stays --cluster {source} --run RUN`. Then stop the "
            "other, and take over what only it has: `replicator backup reclaim --from-directory DIR`"
        )
    if standing is RunVerdict.DISMISSED:
        return (
            f"an operator said at {here} that another run of {source}'s store stays: stop this worker, run {run.id}. "
            f"If it is to stay instead: `replicator links stays --cluster {source} --run {run.id}`"
        )
    return ""


RUNS: Final = web.AppKey("source_runs", SourceRuns)
AUDIT: Final[web.AppKey[Audit]] = web.AppKey("runs_audit")
RUN_SOURCES: Final = web.AppKey("run_sources", LinkedSources)


def add_runs(app: web.Application, engine: Engine, sources: LinkedSources, audit: Audit | None = None) -> None:
    """Add the routes of runs to ``app``. ``sources`` are the clusters with links to here; ``audit`` logs operators'
    decisions."""
    app[RUNS] = SourceRuns(engine)
    if audit is not None:
        app[AUDIT] = audit
    app[RUN_SOURCES] = sources
    app.add_routes(
        [
            web.post(RUNS_ROUTE, take_run),
            web.get(RUNS_ROUTE, list_runs),
            web.post(STAYS_ROUTE, keep_run),
        ]
    )


async def take_run(request: web.Request) -> web.Response:
    """Record the run that a worker announces before its link copies, and answer whether that run is served."""
    source = request.query.get("from", "")
    if source not in request.app[RUN_SOURCES]:
        raise NotAllowedError(
            f"the topology has no link from {source[:80]!r}; give all workers the same topology file, and run "
            "`replicator apply`"
        )
    try:
        told = RunAnnouncement.of_json(await request.json())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest(
            f"the body does not describe a run, one start of a worker, in JSON: {error!r:.100}; run the same version "
            "at both ends of the link"
        ) from None
    if not told.run.id:
        raise BadRequest("the body lacks the id of a run")
    answer = await request.app[RUNS].told(source, request.get(ROLE, ""), told)
    return web.json_response(answer.as_json())


async def list_runs(request: web.Request) -> web.Response:
    """Answer with the served run of each source, its twins, and the runs that operators decided against."""
    return web.json_response({"runs": request.app[RUNS].as_json()})


async def keep_run(request: web.Request) -> web.Response:
    """Keep one of two live copies of a store, as an operator decided; the worker of the other copy is refused from now
    on."""
    try:
        run_id = (await request.json())["run"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadRequest("the body must be a JSON object with the field run") from None
    if not isinstance(run_id, str) or not run_id:
        raise BadRequest("field run must be the id of a run, as `replicator links twins` shows it")
    source = request.match_info["cluster"]
    await request.app[RUNS].stays(source, run_id)
    if (audit := request.app.get(AUDIT)) is not None:
        audit(OPERATOR, "stays", f"store of {source}", {"run": run_id})
    return await list_runs(request)


async def check_run(request: web.Request, source: str) -> None:
    """Raise :class:`RunNotServed` if the request's parameter ``run`` names a run of ``source`` that is not served.

    A link of an earlier version sends no parameter ``run``. Its single requests pass; :func:`check_stream` checks its
    stream.
    """
    run_id = request.query.get("run", "")
    if run_id and RUNS in request.app:
        await request.app[RUNS].check(source, request.get(ROLE, ""), run_id)


async def check_stream(request: web.Request, source: str) -> None:
    """Raise :class:`RunNotServed` if a stream's parameter ``run`` names a run of ``source`` that is not served. A
    stream without the parameter counts as the run :data:`OLDER`."""
    if RUNS in request.app:
        await request.app[RUNS].check(source, request.get(ROLE, ""), request.query.get("run", ""))


def kept_stream(request: web.Request, source: str) -> AbstractContextManager[None]:
    """Return a context that keeps a stream while it is open, so that it can be cut when another run gets served."""
    if RUNS not in request.app:
        return nullcontext()
    return request.app[RUNS].stream(request, source, request.query.get("run", ""))


def question_stream(request: web.Request, source: str, asked: QuestionStream) -> AbstractContextManager[None]:
    """Return a context in which questions to the source's worker go over ``asked``. It does nothing for a stream with a
    name: such a stream comes from a Spark task, which cannot answer for the worker."""
    if RUNS not in request.app or request.query.get("stream"):
        return nullcontext()
    return request.app[RUNS].question_stream(request, source, request.query.get("run", ""), asked)
