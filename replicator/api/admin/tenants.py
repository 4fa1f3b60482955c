"""Tenants: ``/admin/v2/tenants``. They hold namespaces, and nothing else in this version: there is no authorization."""

from __future__ import annotations

from aiohttp import web

from replicator.api.admin.clusters import cluster_names
from replicator.api.admin.errors import NotSupported, PreconditionFailed
from replicator.api.admin.requests import ENGINE, no_content, object_field, read_json, tenant_name, texts_field
from replicator.engine.engine import Engine
from replicator.engine.errors import TenantNotFound

TENANT_FIELDS = ("adminRoles", "allowedClusters")


def routes() -> list[web.RouteDef]:
    """The routes of tenants."""
    return [
        web.get("/admin/v2/tenants", list_tenants),
        web.get("/admin/v2/tenants/{tenant}", show),
        web.put("/admin/v2/tenants/{tenant}", create),
        web.post("/admin/v2/tenants/{tenant}", update),
        web.delete("/admin/v2/tenants/{tenant}", delete),
    ]


async def list_tenants(request: web.Request) -> web.Response:
    return web.json_response(request.app[ENGINE].catalog.visible_tenants())


async def show(request: web.Request) -> web.Response:
    engine = request.app[ENGINE]
    check_there(engine, tenant_name(request))
    return web.json_response({"adminRoles": [], "allowedClusters": sorted(cluster_names(request))})


async def create(request: web.Request) -> web.Response:
    engine, tenant = request.app[ENGINE], tenant_name(request)
    _check_fields(engine, await read_json(request))
    await engine.catalog.create_tenant(tenant)
    return no_content()


async def update(request: web.Request) -> web.Response:
    """Nothing can be changed: the same again is fine."""
    engine = request.app[ENGINE]
    _check_fields(engine, await read_json(request))
    check_there(engine, tenant_name(request))
    return no_content()


async def delete(request: web.Request) -> web.Response:
    await request.app[ENGINE].catalog.delete_tenant(tenant_name(request))
    return no_content()


def check_there(engine: Engine, tenant: str) -> None:
    """Raises :class:`TenantNotFound`."""
    if tenant not in engine.catalog.tenants():
        raise TenantNotFound(f"cluster {engine.cluster!r} has no tenant {tenant!r}")


def _check_fields(engine: Engine, body: object) -> None:
    if body is None:
        return
    fields = object_field(body, "tenant", TENANT_FIELDS)
    if texts_field(fields.get("adminRoles") or [], "tenant.adminRoles"):
        raise NotSupported("tenant.adminRoles: there are no roles in this version; leave it empty")
    clusters = texts_field(fields.get("allowedClusters") or [], "tenant.allowedClusters")
    if clusters and engine.cluster not in clusters:
        raise PreconditionFailed(f"tenant.allowedClusters must hold this cluster, {engine.cluster!r}")
