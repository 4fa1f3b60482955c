"""Translation of a service URL, or of service URL providers, into the connector of a client.

1. ``embedded:PATH`` is an engine in this process.
2. ``pulsar://host:port`` is a worker or a broker (``pulsar+ssl://`` through TLS). The client connects when the first
   producer or consumer is made.
3. With providers, the client asks them for the URL again and again, and the connector follows it
   (:mod:`replicator.client.wire.following`). The URLs of all providers are checked before anything is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from replicator.client.authentication import NOTHING, ConnectionSecurity
from replicator.client.errors import InvalidConfiguration, InvalidUrl
from replicator.client.wire.channel import Connector
from replicator.client.wire.connector import BrokerConnector
from replicator.client.wire.embedded_channel import EmbeddedConnector
from replicator.client.wire.following import FollowingConnector

EMBEDDED: Final = "embedded:"
"""Prefix of the URL of an engine in this process; the path of its data directory follows."""


def following_connector(
    providers: str | Sequence[str],
    default_url: str | None,
    check_interval_seconds: float,
    connection_timeout_seconds: float,
    operation_timeout_seconds: float,
    showing: ConnectionSecurity = NOTHING,
) -> FollowingConnector:
    named = [providers] if isinstance(providers, str) else list(providers)
    if not named:
        raise InvalidConfiguration("service_url_provider is an empty list: name at least one URL")

    def connect(url: str) -> BrokerConnector:
        return _broker_connector(url, connection_timeout_seconds, operation_timeout_seconds, showing)

    for provider in named:
        _check_provider(provider)
    if default_url is not None:
        connect(default_url)  # refuses what is no address
    return FollowingConnector(named, connect, default_url=default_url, check_interval_seconds=check_interval_seconds)


def connector_of(
    service_url: str,
    cluster: str,
    connection_timeout_seconds: float,
    operation_timeout_seconds: float,
    showing: ConnectionSecurity = NOTHING,
) -> Connector:
    if not isinstance(service_url, str):
        raise InvalidUrl(f"service_url is {service_url!r:.80}; it must be a str")
    if service_url.startswith(EMBEDDED):
        path = service_url.removeprefix(EMBEDDED)
        if not path:
            raise InvalidUrl(f"{service_url!r}: the path of the data directory is missing; write embedded:PATH")
        return EmbeddedConnector(Path(path), cluster)
    return _broker_connector(service_url, connection_timeout_seconds, operation_timeout_seconds, showing)


def _broker_connector(
    service_url: str, connection_timeout_seconds: float, operation_timeout_seconds: float, showing: ConnectionSecurity
) -> BrokerConnector:
    return BrokerConnector(
        service_url,
        connection_timeout_seconds=connection_timeout_seconds,
        operation_timeout_seconds=operation_timeout_seconds,
        showing=showing,
    )


def _check_provider(url: str) -> None:
    if not isinstance(url, str):
        raise InvalidUrl(f"service_url_provider is {url!r:.80}; it must be a str, or a list of them")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise InvalidUrl(f"{url!r}: {error}") from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise InvalidUrl(f"{url!r}: a service_url_provider is http://host:port/path")
