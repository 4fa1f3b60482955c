"""Which cluster a client talks to, and how: from a service URL, or from providers of one, to a connector.

1. ``embedded:PATH`` is an engine in this process.
2. ``http(s)://host:port`` is a worker. It is not called before the first producer or consumer is made.
3. With providers the URL is asked for, again and again, and the connector follows it
   (:mod:`replicator.client.wire.following`). Every URL is checked before anything is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from replicator.client.errors import InvalidConfiguration, InvalidUrl
from replicator.client.wire.channel import Connector
from replicator.client.wire.embedded_channel import EmbeddedConnector
from replicator.client.wire.following import FollowingConnector
from replicator.client.wire.socket_channel import SocketConnector

EMBEDDED: Final = "embedded:"
"""How the URL of an engine in this process begins; the path of its data directory follows."""


def following_connector(
    providers: str | Sequence[str],
    default_url: str | None,
    check_interval_seconds: float,
    connection_timeout_seconds: float,
    operation_timeout_seconds: float,
) -> FollowingConnector:
    named = [providers] if isinstance(providers, str) else list(providers)
    if not named:
        raise InvalidConfiguration("service_url_provider is an empty list")

    def connect(url: str) -> SocketConnector:
        return _socket_connector(url, connection_timeout_seconds, operation_timeout_seconds)

    for url in (*named, *([] if default_url is None else [default_url])):
        connect(url)  # refuses what is no address
    return FollowingConnector(named, connect, default_url=default_url, check_interval_seconds=check_interval_seconds)


def connector_of(
    service_url: str, cluster: str, connection_timeout_seconds: float, operation_timeout_seconds: float
) -> Connector:
    if not isinstance(service_url, str):
        raise InvalidUrl(f"{service_url!r:.80} is not a str")
    if service_url.startswith(EMBEDDED):
        path = service_url.removeprefix(EMBEDDED)
        if not path:
            raise InvalidUrl(f"{service_url!r}: the path of the data directory is missing")
        return EmbeddedConnector(Path(path), cluster)
    return _socket_connector(service_url, connection_timeout_seconds, operation_timeout_seconds)


def _socket_connector(
    service_url: str, connection_timeout_seconds: float, operation_timeout_seconds: float
) -> SocketConnector:
    if not isinstance(service_url, str):
        raise InvalidUrl(f"{service_url!r:.80} is not a str")
    if "," in service_url:
        raise InvalidUrl(f"{service_url!r}: give one address; a list of addresses is not a failover")
    try:
        parts = urlsplit(service_url)
        port = parts.port
    except ValueError as error:
        raise InvalidUrl(f"{service_url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidUrl(f"{service_url!r}: expected http://host:port, https://host:port or embedded:PATH")
    return SocketConnector(
        service_url,
        connection_timeout_seconds=connection_timeout_seconds,
        operation_timeout_seconds=operation_timeout_seconds,
    )
