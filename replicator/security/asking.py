"""HTTP sessions to workers: each request shows what :mod:`replicator.security.access` says."""

from __future__ import annotations

from typing import Any, Final

import aiohttp

from replicator.security.access import access

_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


def worker_session(*, at_once_max: int = 100, **options: Any) -> aiohttp.ClientSession:
    """Return a session for asking workers; ``options`` are those of aiohttp. Use it on the event loop, and close it.
    Raise :class:`SecurityError` for files that cannot be used.
    """
    uses = access()
    context = uses.ssl_context()
    connector = aiohttp.TCPConnector(limit=at_once_max, ssl=True if context is None else context)

    async def show(request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
        authorization = uses.authorization()
        if authorization is not None:
            request.headers["Authorization"] = authorization
        response = await send(request)
        if response.status in _REDIRECTS:  # what is shown here is for nobody else
            response.close()
            raise aiohttp.ClientError(
                f"{request.url.origin()} answered with a redirect, which no worker does: see that the address is that "
                "of a worker, and not of a proxy that redirects"
            )
        return response

    return aiohttp.ClientSession(connector=connector, middlewares=(show,), **options)


def worker_url(address: str) -> str:
    """Return the base URL of the worker at ``HOST:PORT``."""
    return access().url(address)
