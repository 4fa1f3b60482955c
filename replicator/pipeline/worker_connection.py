"""Blocking HTTP connection to one worker, for Spark's Python processes."""

from __future__ import annotations

import http.client
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

from replicator.security.access import access

TIMEOUT_S: Final = 60
"""Time limit of an answer: longer than the slowest of a busy worker. A dead one refuses the connection at once."""


def read_whole(response: http.client.HTTPResponse, bytes_max: int) -> bytes:
    """Return the body of an answer. If it is longer than ``bytes_max``, return one byte more than that.

    Raises :class:`http.client.IncompleteRead` if the body ends before the announced length.
    :meth:`~http.client.HTTPResponse.read` with a number of bytes would return such a body without an error.
    """
    body = response.read(bytes_max + 1)
    if len(body) <= bytes_max and response.length:
        raise http.client.IncompleteRead(body, response.length)
    return body


class WorkerConnection:
    """Connection to the worker at the base URL ``url``. It connects at the first request, and again after it was
    closed.

    Use it as a context manager, or close it."""

    def __init__(self, url: str, timeout_seconds: float = TIMEOUT_S) -> None:
        self.url = url
        parts = urlsplit(url)
        self._base_path = parts.path
        self._access = access()
        host = parts.hostname or ""
        self._connection: http.client.HTTPConnection
        if parts.scheme == "https":
            context = self._access.make_ssl_context()
            self._connection = http.client.HTTPSConnection(host, parts.port, timeout=timeout_seconds, context=context)
        else:
            self._connection = http.client.HTTPConnection(host, parts.port, timeout=timeout_seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def shown(self) -> dict[str, str]:
        """Return the headers that identify the client."""
        authorization = self._access.authorization()
        return {} if authorization is None else {"Authorization": authorization}

    def close(self) -> None:
        self._connection.close()
