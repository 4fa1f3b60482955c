"""How the HTTP API reports errors: always ``{"error": code, "message": text}``, never a stack trace.

Under ``/admin/v2``, ``/lookup/v2`` and ``/topics`` the text stands in ``reason`` as well, and some statuses are
others: Pulsar's tools look there.
"""

from __future__ import annotations

import traceback
from http import HTTPStatus
from pathlib import Path
from typing import Final

import structlog
from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from aiohttp.web_protocol import RequestPayloadError

from replicator.engine.errors import EngineError
from replicator.running.limited_log import LIMITED
from snapshots.errors import InvalidPosition

ADMIN_PREFIXES: Final = ("/admin/", "/lookup/", "/topics/")
ADMIN_STATUSES: Final = {
    "InvalidTopicName": 412,
    "NotPersistent": 412,
    "UnsupportedTopicName": 412,
    "InvalidSubscriptionName": 412,
    "InvalidPolicies": 412,
    "InvalidPartitions": 406,
    "InvalidSeek": 412,
    "EntryCorrupt": 500,
    "BlockCorrupt": 500,
}
"""By code, where Pulsar's REST API gives another status than the rest of ours."""
RETRY_AFTER_SECONDS: Final = "1"
"""Seconds after which a client may retry. An overload ends as soon as other requests have been served."""
MALFORMED: Final = "BadRequest"
"""Code of requests that are not HTTP."""
FRAMES_MAX: Final = 12
"""Places in the code that a line of the log names for one failure."""

log = structlog.get_logger(__name__)

_CODES: Final = {400: "BadRequest", 404: "NotFound", 405: "MethodNotAllowed", 413: "TooLarge", 426: "UpgradeRequired"}


class BadRequest(EngineError):
    """A parameter or body that cannot be used; the message names it."""


class UpgradeRequired(EngineError):
    """The request is for another protocol on its connection, which it has to ask for."""

    status = 426


class DatabaseDown(EngineError):
    """The answer needs Postgres, which cannot be reached."""

    status = 503


def error_response(code: str, message: str, status: int) -> web.Response:
    return web.json_response({"error": code, "message": message}, status=status, headers=_headers(status))


def _headers(status: int) -> dict[str, str]:
    return {"Retry-After": RETRY_AFTER_SECONDS} if status == HTTPStatus.TOO_MANY_REQUESTS else {}


@web.middleware
async def report_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what handlers raise into the API's form of an error."""
    try:
        return await handler(request)
    except EngineError as error:
        return _answer(request, error.code, str(error), error.status)
    except InvalidPosition as error:
        return _answer(request, "InvalidPosition", str(error), 400)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        message = f"{request.method} {request.path}: {error.reason}"
        return _answer(request, _CODES.get(error.status, error.reason.replace(" ", "")), message, error.status)
    except (RequestPayloadError, HttpProcessingError):
        return _answer(
            request, MALFORMED, "the body is malformed: it is not in chunks, or not as long, as it says", 400
        )
    except (ConnectionError, TimeoutError):
        return _answer(request, "ClientGone", "the connection broke", 408)  # nobody reads it; raising would be logged
    except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer and the log a line
        # The text of the error may hold what the client sent, such as a token: the log gets its kind and its place.
        peer, route = request.remote or "", _route(request)
        kind = type(error).__name__
        LIMITED.say(log.error, "request failed", peer, peer=peer, route=route, error=kind, where=where(error))
        return _answer(request, "InternalError", "the worker failed on this request; its log says where", 500)


def where(error: BaseException) -> str:
    """Return the places in the code that ``error`` and its causes came through, without anything of their texts."""
    places: list[str] = []
    each: BaseException | None = error
    while each is not None and len(places) < FRAMES_MAX:
        if each is not error:
            places.append(f"after {type(each).__name__}")
        frames = traceback.extract_tb(each.__traceback__)
        places += [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in reversed(frames)]
        each = each.__cause__ or (None if each.__suppress_context__ else each.__context__)
    return ", ".join(places[:FRAMES_MAX])


def _route(request: web.Request) -> str:
    resource = request.match_info.route.resource
    return f"{request.method} {'' if resource is None else resource.canonical}"


def _answer(request: web.Request, code: str, message: str, status: int) -> web.Response:
    if not request.path.startswith(ADMIN_PREFIXES):
        return error_response(code, message, status)
    body = {"error": code, "message": message, "reason": message}
    status = ADMIN_STATUSES.get(code, status)
    return web.json_response(body, status=status, headers=_headers(status))
