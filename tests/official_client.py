"""The official client, as tests use it: closed at the end, and silent but for errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pulsar


@contextmanager
def official_client(service: Any, *, seconds: int = 30) -> Iterator[Any]:
    """A client of a service URL or of a provider of URLs. Each operation may take ``seconds``."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(service, operation_timeout_seconds=seconds, logger=logger)
    try:
        yield client
    finally:
        client.close()
