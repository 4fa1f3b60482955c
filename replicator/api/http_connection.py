"""HTTP connections of a worker: those of aiohttp, but nothing that a client sent comes back in an answer or a log.

aiohttp answers a request that it cannot parse with a piece of it, and logs the piece with a traceback. The piece may be
a token: a carriage return at the end of a token file is enough. Here the answer is a fixed text for each kind of fault,
and the log gets one line, which is limited for each source (:mod:`replicator.running.limited_log`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

import structlog
from aiohttp import http_exceptions, web
from aiohttp.web_protocol import RequestHandler
from aiohttp.web_request import BaseRequest

from replicator.api.errors import MALFORMED, error_response, where
from replicator.running.connecting import plain_host
from replicator.running.limited_log import LIMITED

FAULTS: Final[tuple[tuple[type[Exception], str], ...]] = (
    (http_exceptions.LineTooLong, "its first line or a header is too long"),
    (http_exceptions.BadHttpMethod, "its method is none of HTTP's"),
    (http_exceptions.InvalidURLError, "its target is not a URL"),
    (http_exceptions.TransferEncodingError, "its body is not in chunks as it says"),
    (http_exceptions.ContentLengthError, "its body is not as long as it says"),
)
"""Texts for what cannot be parsed, by aiohttp's errors."""
OTHER_FAULT: Final = (
    "a header is malformed; look for control characters, such as a carriage return at the end of a token"
)

log = structlog.get_logger(__name__)


class HttpConnection(RequestHandler):
    """One HTTP connection."""

    __slots__ = ()

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except Exception as error:  # noqa: BLE001 - the event loop would log it with its text
            self.log_exception("", exc_info=error)
            self.force_close()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to a request that cannot be parsed, or whose handler failed, and log one line."""
        if request.writer.output_size > 0:
            self._say(log.warning, "an answer broke off", exc)
            raise ConnectionError("an answer has begun")
        if status < 500:
            reason = next((text for kind, text in FAULTS if isinstance(exc, kind)), OTHER_FAULT)
            LIMITED.say(log.info, "malformed HTTP request", self._host, peer=self._host, reason=reason)
            response = error_response(MALFORMED, f"the request is malformed: {reason}", status)
        else:
            self._say(log.error, "request failed", exc)
            response = error_response("InternalError", "the worker failed on this request; its log says where", status)
        response.force_close()
        return response

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the answer. One that aiohttp made by itself may quote the request, so its text is replaced."""
        if isinstance(resp, web.HTTPException) and resp.status >= 400:
            resp = error_response(MALFORMED, f"the request is refused: {resp.reason}", resp.status)
        return await super().finish_response(request, resp, start_time)

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log that the connection failed; the arguments are those of a logger."""
        self._say(log.error, "an HTTP connection failed", kw.get("exc_info"))

    def log_debug(self, *args: Any, **kw: Any) -> None:
        """Log nothing."""

    @property
    def _host(self) -> str:
        peer = self.peername
        return plain_host(str(peer[0])) if isinstance(peer, tuple) else ""

    def _say(self, write: Callable[..., Any], event: str, error: object) -> None:
        kind = type(error).__name__ if isinstance(error, BaseException) else ""
        at = where(error) if isinstance(error, BaseException) else ""
        LIMITED.say(write, event, self._host, peer=self._host, error=kind, where=at)


def http_connections(runner: web.AppRunner, **options: Any) -> Callable[[], asyncio.Protocol]:
    """Return the factory of connections to the application of ``runner``, which was set up.

    ``options`` are those of :class:`aiohttp.web_protocol.RequestHandler`.
    """
    server, loop = runner.server, asyncio.get_running_loop()
    if server is None:
        raise ValueError("the runner of the HTTP application is not set up: await runner.setup() first")
    return lambda: HttpConnection(server, loop=loop, access_log=None, **options)  # type: ignore[arg-type]
