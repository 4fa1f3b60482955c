"""Runs of workers whose links lead here: which run of each source is served, and what operators decide about twins.

The shell around :class:`replicator.links.served_runs.ServedRuns`. It keeps the streams of each run, puts questions to
them, cuts them when their run has ended, and remembers twins and decisions in the store.
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
from replicator.links.served_runs import OLDER, Kept, RunUnknown, ServedRuns, Verdict
from replicator.peering.runs import QUESTION, RUNS_ROUTE, STAYS_ROUTE, Run, RunAnswer, RunTold, Standing

KEPT: Final = "source_runs"
"""Under this name in the table ``meta``."""

log = structlog.get_logger(__name__)


class RunNotServed(EngineError):
    """Another run of the same store is served here; a link tells its run and then tries again."""

    status = 409


class NoSuchRun(EngineError):
    """The run that is to stay is not one of several that this worker knows."""

    status = 404


class AskedStream(Protocol):
    """A stream that leads to a worker, so that the worker can be asked something."""

    def tell(self, answer: dict[str, Any]) -> None:
        """Send what belongs to no frame; never wait."""


@dataclass(slots=True)
class _Streams:
    """The streams of one run: the requests that are open, and those over which its worker can be asked."""

    requests: dict[int, web.Request] = field(default_factory=dict)
    """By the number of the stream."""
    asked: set[AskedStream] = field(default_factory=set)


class SourceRuns:
    """The runs of all sources. Sources with different roles are told apart: none cuts another's streams.

    ``clock`` gives seconds that never go back.
    """

    def __init__(self, engine: Engine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._runs: dict[tuple[str, str], ServedRuns] = {}
        self._streams: dict[tuple[str, str, str], _Streams] = {}
        self._opened = 0
        """Streams since the start."""
        self._written: dict[str, Any] = engine.store.meta(KEPT) or {}
        for key, row in self._written.items():
            source, _, role = key.partition(" ")
            self._runs[source, role] = ServedRuns(_new_question, clock(), Kept.of_json(row))

    async def told(self, source: str, role: str, told: RunTold) -> RunAnswer:
        """Take note of a run, and return how it is treated."""
        runs, now = self._of(source, role), self._clock()
        if told.answering:
            runs.answered(told.run.id, told.answering, now)
        verdict = runs.arrives(told.run, now)
        await self._carry_out(source, role, verdict)
        served, twins = runs.served, runs.twins(now)
        reason = _reason(self._engine.cluster, source, verdict.standing, told.run, served)
        return RunAnswer(verdict.standing, served, twins, reason)

    async def check(self, source: str, role: str, run_id: str) -> None:
        """Raise :class:`RunNotServed` unless that run is served; one without id is of an earlier version."""
        runs = self._of(source, role)
        if run_id == OLDER.id:
            verdict = runs.arrives(OLDER, self._clock())
            await self._carry_out(source, role, verdict)
            if verdict.standing is not Standing.SERVED:
                raise RunNotServed(_reason(self._engine.cluster, source, verdict.standing, OLDER, runs.served))
        elif not runs.serves(run_id):
            raise RunNotServed(f"{self._engine.cluster} does not serve run {run_id[:80]!r} of {source}: tell it first")

    @contextmanager
    def stream(self, request: web.Request, source: str, run_id: str) -> Iterator[None]:
        """Keep a stream of a run while it is open, so that it can be cut. Raise :class:`RunNotServed`."""
        role = request.get(ROLE, "")
        key = (source, role, run_id)
        if not self._of(source, role).serves(run_id):  # it was, but something was awaited since
            raise RunNotServed(f"{self._engine.cluster} serves another run of {source} by now")
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
    def asked_over(self, request: web.Request, source: str, run_id: str, asked: AskedStream) -> Iterator[None]:
        """Ask the run's worker over ``asked`` while its stream, which :meth:`stream` keeps, is open."""
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
        """Decide that a run stays, and cut the streams of the one that was served instead.

        Raises :class:`NoSuchRun`.
        """
        for (each, role), runs in self._runs.items():
            if each != source:
                continue
            with suppress(RunUnknown):
                ended = runs.stays(run_id, self._clock())
                self._cut(source, role, ended)
                self._ask(source, role, _new_question())  # its worker looks at once
                await self._write()
                log.warning("an operator said which run stays", source=source, run=run_id)
                return
        known = ", ".join(sorted({each.id for each in self._known(source)})) or "none"
        raise NoSuchRun(
            f"{self._engine.cluster} knows no run {run_id[:80]!r} of {source} that has a twin; there are: {known}"
        )

    def as_json(self) -> list[dict[str, Any]]:
        """Return, for each source, the run that is served, its twins, and those that operators dismissed."""
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
        if await self._write():  # there are twins, or none any more: the first is to learn of it at once
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
        """Write down twins and decisions if they have changed; return whether they have."""
        kept = {
            f"{source} {role}": state.as_json()
            for (source, role), runs in self._runs.items()
            if (state := runs.kept()) is not None
        }
        if kept == self._written:
            return False
        self._written = kept
        for key, row in kept.items():
            if row["twins"]:
                named = {"first": row["served"]["id"], "twins": [each["id"] for each in row["twins"]]}
                log.error("two live copies of one store", source=key.partition(" ")[0], **named)
        await self._engine.remember(KEPT, kept)
        return True


def _new_question() -> str:
    return uuid.uuid4().hex


def _reason(here: str, source: str, standing: Standing, run: Run, served: Run | None) -> str:
    """Return why a run is not served, and what to do; empty if it is served."""
    other = "another run" if served is None or served.id == OLDER.id else f"run {served.id} on {served.host or '?'}"
    if standing is Standing.ASKING:
        return f"{here} is asking {other} of {source} whether it has ended; if it does not answer, this run is served"
    if standing is Standing.TWIN:
        return (
            f"two live copies of {source}'s store: {here} serves {other} and takes nothing from this one, run "
            f"{run.id}. Say which one stays: `replicator links stays --cluster {source} --run RUN`. Then stop the "
            "other, and take over what only it has: `replicator backup reclaim --from-directory DIR`"
        )
    if standing is Standing.DISMISSED:
        return (
            f"an operator said at {here} that another run of {source}'s store stays: stop this worker, run {run.id}. "
            f"If it is to stay instead: `replicator links stays --cluster {source} --run {run.id}`"
        )
    return ""


RUNS: Final = web.AppKey("source_runs", SourceRuns)
AUDIT: Final[web.AppKey[Audit]] = web.AppKey("runs_audit")
RUN_SOURCES: Final = web.AppKey("run_sources", LinkedSources)


def add_runs(app: web.Application, engine: Engine, sources: LinkedSources, audit: Audit | None = None) -> None:
    """Add the routes of runs. ``sources`` are the links that lead here; ``audit`` hears what operators decide."""
    app[RUNS] = SourceRuns(engine)
    if audit is not None:
        app[AUDIT] = audit
    app[RUN_SOURCES] = sources
    app.add_routes(
        [
            web.post(RUNS_ROUTE, take_run),
            web.get(RUNS_ROUTE, list_runs),
            web.post(STAYS_ROUTE, run_stays),
        ]
    )


async def take_run(request: web.Request) -> web.Response:
    """Take note of the run of a worker whose link leads here, and answer whether it is served."""
    source = request.query.get("from", "")
    if source not in request.app[RUN_SOURCES]:
        raise NotAllowedError(f"the topology has no link from {source[:80]!r}")
    try:
        told = RunTold.of_json(await request.json())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest(f"the body is not a run in JSON: {error!r:.100}") from None
    if not told.run.id:
        raise BadRequest("the body names no run")
    answer = await request.app[RUNS].told(source, request.get(ROLE, ""), told)
    return web.json_response(answer.as_json())


async def list_runs(request: web.Request) -> web.Response:
    """The runs of the workers whose links lead here: those that are served, their twins, and dismissed ones."""
    return web.json_response({"runs": request.app[RUNS].as_json()})


async def run_stays(request: web.Request) -> web.Response:
    """Decide which of two live copies of a store stays; the other is refused from then on."""
    try:
        run_id = (await request.json())["run"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadRequest("the body is not an object with run in JSON") from None
    if not isinstance(run_id, str) or not run_id:
        raise BadRequest("run must be the id of a run")
    source = request.match_info["cluster"]
    await request.app[RUNS].stays(source, run_id)
    if (audit := request.app.get(AUDIT)) is not None:
        audit(OPERATOR, "stays", f"store of {source}", {"run": run_id})
    return await list_runs(request)


async def check_run(request: web.Request, source: str) -> None:
    """Raise :class:`RunNotServed` if the request is of a run of ``source`` that is not served.

    A request of an earlier version names no run, and is let through; its stream is looked at by :func:`check_stream`.
    """
    run_id = request.query.get("run", "")
    if run_id and RUNS in request.app:
        await request.app[RUNS].check(source, request.get(ROLE, ""), run_id)


async def check_stream(request: web.Request, source: str) -> None:
    """Raise :class:`RunNotServed` if the stream of ``source`` is of a run that is not served."""
    if RUNS in request.app:
        await request.app[RUNS].check(source, request.get(ROLE, ""), request.query.get("run", ""))


def kept_stream(request: web.Request, source: str) -> AbstractContextManager[None]:
    """Keep a stream while it is open, so that it can be cut when another run is served."""
    if RUNS not in request.app:
        return nullcontext()
    return request.app[RUNS].stream(request, source, request.query.get("run", ""))


def asked_over(request: web.Request, source: str, asked: AskedStream) -> AbstractContextManager[None]:
    """Ask the worker over its stream while it is open. A stream with a name leads to a task of Spark's instead."""
    if RUNS not in request.app or request.query.get("stream"):
        return nullcontext()
    return request.app[RUNS].asked_over(request, source, request.query.get("run", ""), asked)
