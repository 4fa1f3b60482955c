"""Addresses at which clients reach the clusters, for lookups and the admin paths."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import web


@dataclass(frozen=True, slots=True)
class ClusterAddress:
    """Addresses at which clients reach one cluster."""

    http_url: str
    """``http://host:port``."""
    pulsar_url: str
    """``pulsar://host:port``."""
    pulsar_tls_url: str | None = None


Addresses = Callable[[], Mapping[str, ClusterAddress]]
"""Function that returns the addresses of the running topology's clusters by name, this cluster among them."""

ADDRESSES: Final[web.AppKey[Addresses]] = web.AppKey("cluster_addresses")


def addresses_of(request: web.Request) -> Mapping[str, ClusterAddress]:
    """Return the clients' addresses of each cluster by its name; empty without a topology."""
    return request.app[ADDRESSES]()


def own_address(request: web.Request, cluster: str) -> ClusterAddress:
    """Return the clients' address of this cluster; without a topology, the host that the request was sent to."""
    found = addresses_of(request).get(cluster)
    return found or ClusterAddress(f"http://{request.host}", f"pulsar://{request.host}")
