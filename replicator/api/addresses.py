"""Where the clusters are reached, as lookups and the admin paths answer it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import web


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Where clients reach one cluster."""

    http_url: str
    """``http://host:port``."""
    pulsar_url: str
    """``pulsar://host:port``."""
    pulsar_tls_url: str | None = None


Addresses = Callable[[], Mapping[str, ClusterAddress]]
"""By name, the clusters of the topology that runs; this cluster among them."""

ADDRESSES: Final[web.AppKey[Addresses]] = web.AppKey("cluster_addresses")


def addresses_of(request: web.Request) -> Mapping[str, ClusterAddress]:
    """By name, where the clusters are reached. Without a topology, nothing."""
    return request.app[ADDRESSES]()


def own_address(request: web.Request, cluster: str) -> ClusterAddress:
    """Where this cluster is reached; without a topology, where the request came to."""
    found = addresses_of(request).get(cluster)
    return found or ClusterAddress(f"http://{request.host}", f"pulsar://{request.host}")
