"""One blocking HTTP connection to one worker, as Spark's Python processes need it."""

from __future__ import annotations

import http.client
from types import TracebackType
from typing import Final, Self
from urllib.parse import urlsplit

TIMEOUT_S: Final = 60
"""Longer than the slowest answer of a busy worker; a dead one refuses the connection at once."""


class WorkerConnection:
    """Connects when it is first asked something, and again after it was closed. Use it as a context manager, or close
    it. ``url`` is a worker's base URL."""

    def __init__(self, url: str) -> None:
        self.url = url
        parts = urlsplit(url)
        self._base_path = parts.path
        connection = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = connection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._connection.close()
