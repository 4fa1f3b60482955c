"""The audit log over HTTP: what operators change is noted, and all that is noted can be listed.

A change is noted when it has succeeded. A change by ``/admin/v2`` is noted with what the same path shows before it and
after it, where it shows anything. Each other route that takes a body is in one of three tables: :data:`NOTED`,
:data:`NOTED_ELSEWHERE` and :data:`NOT_NOTED`. A test holds the tables to the routes of a running worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from replicator.api.errors import BadRequest, DatabaseDown
from replicator.api.guarding import canonical
from replicator.engine.errors import EngineError
from replicator.running.asking import ASKED_FROM
from snapshots.errors import SnapshotsError

OPERATOR: Final = "operator"
SHOWN_CHARS_MAX: Final = 4_000
"""Limit of characters that are noted of a value before or after a change. Of a longer value, only the length is noted.
"""
ACTION_CHARS_MAX: Final = 64
LISTED_MAX: Final = 10_000
LISTED: Final = 100
PREFIX: Final = "/admin/v2/"
READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
NOTED: Final[Mapping[str, str]] = {
    "/replication/v1/mend": "mend",
    "/replication/v1/mapping/rebuild": "rebuild mapping",
    "/replication/v1/ack-vectors/tell": "tell states",
    "/replication/v1/left-out": "leave out at brokers",
}
"""Actions of operators that the middleware notes, by route."""
NOTED_ELSEWHERE: Final[Mapping[str, str]] = {
    "/replication/v1/partitions": "its handler, if the number of partitions changes",
    "/replication/v1/schemas": "its handler, if a schema is new",
    "/replication/v1/delete-copy": "its handler",
    "/replication/v1/keep-both": "its handler",
    "/replication/v1/earlier-lives": "its handler, if it records anything",
    "/replication/v1/links/{key}/pause": "the link",
    "/replication/v1/links/{key}/resume": "the link",
    "/replication/v1/links/{key}/resolve": "the link",
    "/replication/v1/clients/close": "its handler",
    "/replication/v1/bridge/renew": "its handler",
    "/replication/v1/bridge/acknowledge-missing": "its handler",
    "/replication/v1/runs/{cluster}/stays": "its handler",
    "/replication/v1/backup": "its handler",
    "/replication/v1/topology/reload": "the worker",
    "/failover/v1/hold": "the failover",
    "/failover/v1/release": "the failover",
    "/failover/v1/propose": "the failover",
    "/failover/v1/epochs": "the failover",
}
"""Routes whose changes are noted by the code that carries them out."""
_ASKS: Final = "it asks, in a body because there may be many names"
_MESSAGES: Final = "it brings messages; a topic that they make is made by use, as a producer makes it"
_TELLS: Final = "workers tell each other; the change itself is noted where it is made"
_LINK: Final = "the carrier of a link takes its work and reports it"
_REFUSED: Final = "it is refused: nothing is changed"
NOT_NOTED: Final[Mapping[str, str]] = {
    "/admin/v3/{part}": _REFUSED,
    "/admin/v3/{part}/{rest}": _REFUSED,
    "/replication/v1/append": _MESSAGES,
    "/replication/v1/blocks": _ASKS,
    "/replication/v1/measure": _ASKS,
    "/replication/v1/positions-at": _ASKS,
    "/replication/v1/topic-states": _ASKS,
    "/replication/v1/topic-digests": _ASKS,
    "/replication/v1/subscription-use": _ASKS,
    "/failover/v1/topics": _ASKS,
    "/failover/v1/missing": _ASKS,
    "/failover/v1/renew": "a failover goes on that was noted when it began",
    "/replication/v1/lineage": _TELLS,
    "/replication/v1/runs": _TELLS,
    "/replication/v1/settings": _TELLS,
    "/replication/v1/store-of": _TELLS,
    "/topics/{domain}/{tenant}/{namespace}/{topic}": _MESSAGES,
    "/topics/{domain}/{tenant}/{namespace}/{topic}/partitions/{partition}": _MESSAGES,
    "/pipeline/v1/links/{key}/plan": _LINK,
    "/pipeline/v1/links/{key}/next": _LINK,
    "/pipeline/v1/links/{key}/done": _LINK,
    "/pipeline/v1/links/{key}/failed": _LINK,
    "/pipeline/v1/links/{key}/release": _LINK,
    "/pipeline/v1/links/{key}/progress": _LINK,
}
"""Routes that take a body, and the reason why nothing is noted. Those of staging and of the dashboard are left out:
the former bring messages, and the latter ask the routes above in the name of their user."""

Audit = Callable[[str, str, str, Mapping[str, Any] | None], None]
"""Actor, action, subject, and what else is known."""


class Entry(Protocol):
    """See :class:`snapshots.repository.AuditEntry`."""

    @property
    def at(self) -> datetime: ...
    @property
    def actor(self) -> str: ...
    @property
    def action(self) -> str: ...
    @property
    def subject(self) -> str: ...
    @property
    def detail(self) -> Mapping[str, Any] | None: ...


class AuditLog(Protocol):
    """The part of the index that the routes use."""

    async def audit_log(self, *, since: datetime | None, newest: int) -> Sequence[Entry]: ...


def note_changes(audit: Audit) -> Middleware:
    """Return the middleware that notes changes, and remembers where each request comes from."""

    @web.middleware
    async def noted(request: web.Request, handler: Handler) -> web.StreamResponse:
        ASKED_FROM.set(request.remote or "")
        if request.method in READING:
            return await handler(request)
        if (action := NOTED.get(canonical(request))) is not None:
            asked = await _asked_for(request)  # before: a body that cannot be read is refused before anything changes
            response = await handler(request)
            if response.status < 400:
                audit(OPERATOR, action, request.query.get("topic") or "worker", asked)
            return response
        if not request.path.startswith(PREFIX):
            return await handler(request)
        before = await _shown(request)
        response = await handler(request)
        if response.status < 400:
            values = {"before": before, "after": await _shown(request)}
            detail = {name: value for name, value in values.items() if value is not None}
            audit(OPERATOR, _action(request), request.path.removeprefix(PREFIX), detail or None)
        return response

    return noted


async def _asked_for(request: web.Request) -> dict[str, Any] | None:
    """Return the body of a request for the audit log, if it is short and JSON. Raise an HTTP error if it is too
    large."""
    body = await request.read()
    if not body:
        return None
    if len(body) > SHOWN_CHARS_MAX:
        return {"asked": {"left out": f"{len(body)} bytes"}}
    try:
        return {"asked": json.loads(body)}
    except (ValueError, RecursionError):
        return {"asked": {"left out": f"{len(body)} bytes that are no JSON"}}


def _action(request: web.Request) -> str:
    """Return the method and those parts of the path that are not names, such as ``PUT persistent/subscription``."""
    parts = canonical(request).removeprefix(PREFIX).split("/")
    return f"{request.method} {'/'.join(part for part in parts if not part.startswith('{'))}"[:ACTION_CHARS_MAX]


async def _shown(request: web.Request) -> Any:
    """Return the JSON that a GET of the path answers; None if the path has no GET, or the GET is refused."""
    wanted = _read_at(canonical(request))
    for resource in request.app.router.resources():
        if resource.canonical != wanted:
            continue
        for route in resource:
            if route.method == "GET":
                return await _asked(route.handler, request)
    return None


def _read_at(changed: str) -> str:
    """Return the path that reads the value changed at ``changed``: the same path, except that all permissions are read
    together.
    """
    place, permissions, of = changed.partition("/permissions/")
    if not permissions:
        return changed
    return f"{place}/permissions/subscription" if "subscription" in of else f"{place}/permissions"


async def _asked(get: Any, request: web.Request) -> Any:
    try:
        response = await get(request)
    except (EngineError, SnapshotsError, web.HTTPException):  # it is not there
        return None
    text = response.text if isinstance(response, web.Response) else None
    if not text:
        return None
    if len(text) > SHOWN_CHARS_MAX:
        return {"left out": f"{len(text)} characters"}
    try:
        return json.loads(text)
    except ValueError:
        return text


def add_audit(app: web.Application, audit_log: AuditLog) -> None:
    """Add the route that lists."""

    async def listed(request: web.Request) -> web.Response:
        """Answer with the newest entries first: ``?since_ms=&newest=``."""
        since_ms = _number(request, "since_ms", None)
        newest = _number(request, "newest", LISTED) or LISTED
        try:
            entries = await audit_log.audit_log(
                since=None if since_ms is None else datetime.fromtimestamp(since_ms / 1000, UTC),
                newest=min(newest, LISTED_MAX),
            )
        except SnapshotsError as error:
            raise DatabaseDown(
                f"the audit log is in Postgres, which this worker cannot reach: {error}; try again when the worker "
                "reaches its database"
            ) from None
        return web.json_response({"entries": [_as_json(entry) for entry in entries]})

    app.router.add_get("/replication/v1/audit", listed)


def _as_json(entry: Entry) -> dict[str, Any]:
    return {
        "at_ms": round(entry.at.timestamp() * 1000),
        "actor": entry.actor,
        "action": entry.action,
        "subject": entry.subject,
        "detail": entry.detail,
    }


def _number(request: web.Request, name: str, default: int | None) -> int | None:
    text = request.query.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 14):
        raise BadRequest(f"parameter {name}: {text[:40]!r} is not a whole number of at most 14 digits")
    return int(text)
