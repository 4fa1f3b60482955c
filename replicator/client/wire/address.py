"""Addresses of the brokers of one cluster: ``pulsar://host:port``, or ``pulsar://host:port,host:port``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from replicator.client.errors import InvalidUrl

PLAIN: Final = "pulsar"
TLS: Final = "pulsar+ssl"
ADDRESSES_MAX: Final = 32
"""Limit of addresses in one URL. They are tried one after the other."""
_PORTS: Final = {PLAIN: 6650, TLS: 6651}


@dataclass(frozen=True, slots=True)
class Address:
    """Address of one broker."""

    host: str
    port: int
    tls: bool
    proxy_to: str = ""
    """Broker that a proxy at this address connects to, as ``host:port``."""

    @classmethod
    def parse(cls, url: str) -> Address:
        """Parse ``pulsar://host:port`` or ``pulsar+ssl://host:port``. Raises :class:`InvalidUrl`."""
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError as error:
            raise InvalidUrl(f"{url!r}: {error}") from None
        if parts.scheme in ("http", "https") and parts.hostname and port != 0:
            scheme = PLAIN if parts.scheme == "http" else TLS
            raise InvalidUrl(f"{url!r}: this client speaks Pulsar's binary protocol; use {scheme}://{parts.netloc}")
        if parts.scheme not in _PORTS or not parts.hostname or port == 0:
            raise InvalidUrl(f"{url!r}: expected pulsar://host:port, pulsar+ssl://host:port or embedded:PATH")
        return cls(parts.hostname, port or _PORTS[parts.scheme], parts.scheme == TLS)

    @property
    def host_and_port(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def __str__(self) -> str:
        return f"{TLS if self.tls else PLAIN}://{self.host_and_port}"


def parse_addresses(url: str) -> tuple[Address, ...]:
    """Return the addresses in a URL, each once. Raises :class:`InvalidUrl`."""
    if not isinstance(url, str):
        raise InvalidUrl(f"the service URL is {url!r:.80}; it must be a str")
    scheme, separator, places = url.partition("://")
    named = places.split(",") if separator else [""]
    if len(named) == 1:
        return (Address.parse(url),)
    if len(named) > ADDRESSES_MAX:
        raise InvalidUrl(f"{url[:80]!r}… names {len(named)} addresses; {ADDRESSES_MAX} at most")
    if any("/" in place for place in named):
        raise InvalidUrl(f"{url[:80]!r}: expected {scheme}://host:port,host:port")
    return tuple(dict.fromkeys(Address.parse(f"{scheme}://{place.strip()}") for place in named))


def written(addresses: Sequence[Address]) -> str:
    """Return the addresses as one URL."""
    first, *others = addresses
    return ",".join((str(first), *(each.host_and_port for each in others)))
