"""How the HTTP API reports errors: always ``{"error": code, "message": text}``, never a stack trace.

Under ``/admin/v2``, ``/lookup/v2`` and ``/topics`` the text stands in ``reason`` as well, and some statuses are
others: Pulsar's tools look there.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from replicator.engine.errors import EngineError
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
"""What is too much for now ends as soon as others have been served."""

log = structlog.get_logger(__name__)

_CODES: Final = {400: "BadRequest", 404: "NotFound", 405: "MethodNotAllowed", 413: "TooLarge", 426: "UpgradeRequired"}


class BadRequest(EngineError):
    """A parameter or body that cannot be used; the message names it."""


class UpgradeRequired(EngineError):
    """The request is for another protocol on its connection, which it has to ask for."""

    status = 426


class DatabaseDown(EngineError):
    """What was asked for is kept in Postgres, which is away."""

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
    except (ConnectionError, TimeoutError):
        return _answer(request, "ClientGone", "the connection broke", 408)  # nobody reads it; raising would be logged
    except Exception:
        log.exception("request failed", method=request.method, path=request.path)
        return _answer(request, "InternalError", "the worker failed on this request; its log says why", 500)


def _answer(request: web.Request, code: str, message: str, status: int) -> web.Response:
    if not request.path.startswith(ADMIN_PREFIXES):
        return error_response(code, message, status)
    body = {"error": code, "message": message, "reason": message}
    status = ADMIN_STATUSES.get(code, status)
    return web.json_response(body, status=status, headers=_headers(status))
