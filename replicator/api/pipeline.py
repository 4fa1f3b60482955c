"""Routes by which carriers ask the links that leave this cluster for plans and next segments, and report to them.

A carrier is a driver of the pipeline, or one of its tasks. A request for something to copy waits until there is
something, for a limited time. The forms are in docs/live-copy.md; their meaning is in
:mod:`replicator.links.planner`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from aiohttp import web

from replicator.api.data_plane import ENGINE
from replicator.api.errors import BadRequest
from replicator.api.json_in_slices import json_in_slices
from replicator.api.link_routes import LinkNotFound
from replicator.running.pacing import Pace

BODY_BYTES_MAX: Final = 8 * 1024 * 1024
"""Reports of a batch: a hundred bytes for each topic of its segments."""
CARRIER_CHARS_MAX: Final = 200
ERROR_CHARS_MAX: Final = 2_000
REPORTS_MAX: Final = 10_000
"""Limit of reports in one request. A lane reports one or two at once; a batch reports what its lanes did not."""


class PlannerControl(Protocol):
    """The plans of a link; see :class:`replicator.links.planner.Planner`."""

    async def plan(
        self,
        carrier: str,
        kind: str,
        *,
        lanes: int,
        bytes_max: int,
        wait_ms: int,
        topics: Sequence[str],
        after: tuple[str, int] | None,
    ) -> dict[str, Any]: ...
    def plan_again(self, session: str, number: int) -> dict[str, Any]: ...
    async def next(
        self,
        session: str,
        number: int,
        lane: int,
        *,
        done: Sequence[Mapping[str, Any]],
        holding: Sequence[int],
        bytes_max: int,
        wait_ms: int,
        leaves: bool,
    ) -> dict[str, Any]: ...
    def done(self, session: str, number: int, done: Sequence[Mapping[str, Any]]) -> None: ...
    def failed(self, session: str, number: int, error: str) -> None: ...
    def release(self, carrier: str) -> None: ...
    def stop(self) -> None: ...


class PlannedLink(Protocol):
    """The part of a link that carriers use."""

    @property
    def key(self) -> str: ...
    @property
    def planner(self) -> PlannerControl: ...


class PipelineSource(Protocol):
    """Source of the links that leave this cluster, and of the way in which they are carried."""

    def pipeline(self) -> dict[str, Any]:
        """Return the settings that a driver needs, among them the links that it carries for."""

    def links(self) -> Iterable[PlannedLink]:
        """Return all links that run now, also those that do not need carriers."""


SOURCE: Final[web.AppKey[PipelineSource]] = web.AppKey("pipeline_source")


def add_pipeline(app: web.Application, source: PipelineSource) -> None:
    app[SOURCE] = source
    app.on_shutdown.append(_end_polls)
    app.add_routes(
        [
            web.get("/pipeline/v1/links", list_links),
            web.get("/pipeline/v1/links/{key}/plan", plan_again),
            web.post("/pipeline/v1/links/{key}/plan", plan),
            web.post("/pipeline/v1/links/{key}/next", following),
            web.post("/pipeline/v1/links/{key}/done", done),
            web.post("/pipeline/v1/links/{key}/failed", failed),
            web.post("/pipeline/v1/links/{key}/release", release),
        ]
    )


async def _end_polls(app: web.Application) -> None:
    """End the requests that wait for something to copy: the server would wait for them when it stops."""
    for link in app[SOURCE].links():
        link.planner.stop()


async def list_links(request: web.Request) -> web.Response:
    return web.json_response(request.app[SOURCE].pipeline())


async def plan(request: web.Request) -> web.Response:
    body = await _body(request)
    topics = body.get("topics", [])
    if not isinstance(topics, list) or not all(isinstance(each, str) for each in topics):
        raise BadRequest("field topics must be a list of patterns of topics")
    after = body.get("after")
    if after is not None and not isinstance(after, dict):
        raise BadRequest("field after must be an object with session and plan, as an earlier plan has them")
    return web.json_response(
        await _planner(request).plan(
            _text(body, "carrier", CARRIER_CHARS_MAX),
            _text(body, "kind", CARRIER_CHARS_MAX) if "kind" in body else "live",
            lanes=_number(body, "lanes"),
            bytes_max=_number(body, "bytes_max"),
            wait_ms=_number(body, "wait_ms", 0),
            topics=topics,
            after=None if after is None else _plan_of(after),
        )
    )


async def plan_again(request: web.Request) -> web.Response:
    number = request.query.get("plan", "")
    if not number.isdecimal() or len(number) > 18:
        raise BadRequest("parameter plan must be the number of a plan")
    return web.json_response(_planner(request).plan_again(request.query.get("session", ""), int(number)))


async def following(request: web.Request) -> web.Response:
    body = await _body(request)
    holding = body.get("holding", [])
    if not isinstance(holding, list) or not all(type(each) is int for each in holding) or len(holding) > REPORTS_MAX:
        raise BadRequest(f"field holding must be a list of at most {REPORTS_MAX} numbers of segments")
    return web.json_response(
        await _planner(request).next(
            *_plan_of(body),
            _number(body, "lane"),
            done=_reports(body),
            holding=holding,
            bytes_max=_number(body, "bytes_max"),
            wait_ms=_number(body, "wait_ms", 0),
            leaves=body.get("leaves") is True,
        )
    )


async def done(request: web.Request) -> web.Response:
    body = await _body(request)
    _planner(request).done(*_plan_of(body), _reports(body))
    return web.json_response({})


async def failed(request: web.Request) -> web.Response:
    body = await _body(request)
    error = body.get("error")
    if not isinstance(error, str):
        raise BadRequest("error must be text")
    _planner(request).failed(*_plan_of(body), error[:ERROR_CHARS_MAX])
    return web.json_response({})


async def release(request: web.Request) -> web.Response:
    _planner(request).release(_text(await _body(request), "carrier", CARRIER_CHARS_MAX))
    return web.json_response({})


def _planner(request: web.Request) -> PlannerControl:
    key = request.match_info["key"]
    for link in request.app[SOURCE].links():
        if link.key == key:
            return link.planner
    raise LinkNotFound(f"no link {key[:200]!r} leaves this cluster; `replicator links list` shows those there are")


async def _body(request: web.Request) -> dict[str, Any]:
    raw = bytearray()
    async for piece in request.content.iter_any():
        raw += piece
        if len(raw) > BODY_BYTES_MAX:
            raise BadRequest(f"the body is larger than {BODY_BYTES_MAX} bytes: send fewer reports at once")
    try:
        body = await json_in_slices(raw, Pace(request.app[ENGINE].turns))
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is not JSON that can be read: {error}") from None
    if not isinstance(body, dict):
        raise BadRequest("the body is not an object in JSON")
    return body


def _plan_of(body: Mapping[str, Any]) -> tuple[str, int]:
    session = body.get("session")
    if not isinstance(session, str):
        raise BadRequest("session must be text")
    return session, _number(body, "plan")


def _reports(body: Mapping[str, Any]) -> list[Any]:
    reports = body.get("done", [])
    if not isinstance(reports, list) or len(reports) > REPORTS_MAX:
        raise BadRequest(f"field done must be a list of at most {REPORTS_MAX} reports")
    return reports


def _text(body: Mapping[str, Any], field: str, chars_max: int) -> str:
    value = body.get(field)
    if not isinstance(value, str) or not 0 < len(value) <= chars_max:
        raise BadRequest(f"{field} must be text of 1 to {chars_max} characters")
    return value


def _number(body: Mapping[str, Any], field: str, default: int | None = None) -> int:
    value = body.get(field, default)
    if type(value) is not int or not 0 <= value < 2**53:
        raise BadRequest(f"field {field} must be a whole number from 0 to {2**53 - 1}")
    return value
