"""Clusters: ``/admin/v2/clusters``. They are those of the topology file, and are changed there."""

from __future__ import annotations

from typing import Any, Final

from aiohttp import web

from replicator.api.addresses import ClusterAddress, addresses_of, own_address
from replicator.api.admin.errors import AlreadyThere, NotSupported, NotThere
from replicator.api.admin.requests import ENGINE, no_content, read_json

CLUSTER: Final = "/admin/v2/clusters/{cluster}"


def routes() -> list[web.RouteDef]:
    """Return the routes of clusters."""
    return [
        web.get("/admin/v2/clusters", list_clusters),
        web.get(CLUSTER, show),
        web.put(CLUSTER, create),
        web.post(CLUSTER, change),
        web.delete(CLUSTER, change),
        web.get(f"{CLUSTER}/peers", no_peers),
        web.post(f"{CLUSTER}/peers", set_peers),
        web.get(f"{CLUSTER}/failureDomains", no_domains),
        web.get(f"{CLUSTER}/failureDomains/{{domain}}", no_domain),
        web.get(f"{CLUSTER}/namespaceIsolationPolicies", no_isolation),
    ]


async def list_clusters(request: web.Request) -> web.Response:
    return web.json_response(sorted(cluster_names(request)))


async def show(request: web.Request) -> web.Response:
    """Answer with the addresses at which clients reach a cluster."""
    return web.json_response(_shown(_address(request)))


async def create(request: web.Request) -> web.Response:
    """Refuse to make a cluster: clusters are those of the topology file."""
    name = request.match_info["cluster"]
    if name in cluster_names(request):
        raise AlreadyThere(f"there is a cluster {name!r} already")
    raise NotSupported("clusters are those of the topology file: add the cluster there, and run `replicator apply`")


async def change(request: web.Request) -> web.Response:
    """Refuse to change a cluster: clusters are changed in the topology file."""
    _address(request)
    raise NotSupported("clusters are those of the topology file: change the cluster there, and run `replicator apply`")


async def no_peers(request: web.Request) -> web.Response:
    _address(request)
    return no_content()


async def set_peers(request: web.Request) -> web.Response:
    """Refuse to set peer clusters, because links are those of the topology file; an empty list is accepted."""
    _address(request)
    if await read_json(request):
        raise NotSupported(
            "peer clusters cannot be set in this version: declare links in the topology file, and send an empty list"
        )
    return no_content()


async def no_domains(request: web.Request) -> web.Response:
    _address(request)
    return web.json_response({})


async def no_domain(request: web.Request) -> web.Response:
    _address(request)
    raise NotThere("this version has no failure domains, because a cluster is one worker: do without them")


async def no_isolation(request: web.Request) -> web.Response:
    _address(request)
    raise NotThere("this version has no isolation policies, because a cluster is one worker: do without them")


def cluster_names(request: web.Request) -> set[str]:
    """Return the names of the topology's clusters and, in any case, of this one."""
    return {request.app[ENGINE].cluster, *addresses_of(request)}


def _address(request: web.Request) -> ClusterAddress:
    name = request.match_info["cluster"]
    if name == request.app[ENGINE].cluster:
        return own_address(request, name)
    if name not in (addresses := addresses_of(request)):
        raise NotThere(f"there is no cluster {name[:40]!r}; `GET /admin/v2/clusters` lists those there are")
    return addresses[name]


def _shown(address: ClusterAddress) -> dict[str, Any]:
    shown: dict[str, Any] = {"serviceUrl": address.http_url, "brokerServiceUrl": address.pulsar_url}
    if address.pulsar_tls_url is not None:
        shown["brokerServiceUrlTls"] = address.pulsar_tls_url
    return {
        **shown,
        "brokerClientTlsEnabled": False,
        "tlsAllowInsecureConnection": False,
        "brokerClientTlsEnabledWithKeyStore": False,
    }
