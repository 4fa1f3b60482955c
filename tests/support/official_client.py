"""The official client, as tests use it: closed at the end, and silent but for errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pulsar

WAIT_MILLIS = 30_000


@contextmanager
def official_client(service: Any, *, seconds: int = 30) -> Iterator[Any]:
    """A client of a service URL or of a provider of URLs. Each operation may take ``seconds``."""
    logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    client = pulsar.Client(service, operation_timeout_seconds=seconds, logger=logger)
    try:
        yield client
    finally:
        client.close()


def received(consumer: Any, messages: int) -> list[int]:
    """Receive and acknowledge ``messages`` messages, and return their numbers."""
    found = []
    for _ in range(messages):
        message = consumer.receive(WAIT_MILLIS)
        consumer.acknowledge(message)
        found.append(int(message.data()))
    return found
