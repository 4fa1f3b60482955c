"""How the HTTP API reports errors: always ``{"error": code, "message": text}``, never a stack trace."""

from __future__ import annotations

from typing import Final

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from replicator.engine.errors import EngineError
from snapshots.errors import InvalidPosition

log = structlog.get_logger(__name__)

_CODES: Final = {400: "BadRequest", 404: "NotFound", 405: "MethodNotAllowed", 413: "TooLarge", 426: "UpgradeRequired"}


class BadRequest(EngineError):
    """A parameter or body that cannot be used; the message names it."""


class DatabaseDown(EngineError):
    """What was asked for is kept in Postgres, which is away."""

    status = 503


def error_response(code: str, message: str, status: int) -> web.Response:
    return web.json_response({"error": code, "message": message}, status=status)


@web.middleware
async def report_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turn what handlers raise into the API's form of an error."""
    try:
        return await handler(request)
    except EngineError as error:
        return error_response(error.code, str(error), error.status)
    except InvalidPosition as error:
        return error_response("InvalidPosition", str(error), 400)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        message = f"{request.method} {request.path}: {error.reason}"
        return error_response(_CODES.get(error.status, error.reason.replace(" ", "")), message, error.status)
    except (ConnectionError, TimeoutError):
        return error_response("ClientGone", "the connection broke", 408)  # nobody reads it; raising would be logged
    except Exception:
        log.exception("request failed", method=request.method, path=request.path)
        return error_response("InternalError", "the worker failed on this request; its log says why", 500)
