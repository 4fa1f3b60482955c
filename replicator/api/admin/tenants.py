"""Tenants: ``/admin/v2/tenants``. They hold namespaces, and have roles that may do everything with these."""

from __future__ import annotations

from aiohttp import web

from replicator.api.admin.clusters import cluster_names
from replicator.api.admin.errors import PreconditionFailed
from replicator.api.admin.permissions import role_field
from replicator.api.admin.requests import ENGINE, no_content, object_field, read_json, tenant_name, texts_field
from replicator.engine.engine import Engine
from replicator.engine.errors import TenantNotFound
from replicator.engine.topics.grants import Grants
from replicator.security.permissions import Action


def routes() -> list[web.RouteDef]:
    """Return the routes of tenants."""
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
    engine, tenant = request.app[ENGINE], tenant_name(request)
    check_there(engine, tenant)
    roles = engine.catalog.grants.of(tenant).roles
    admins = sorted(role for role, actions in roles.items() if Action.ADMIN in actions)
    return web.json_response({"adminRoles": admins, "allowedClusters": sorted(cluster_names(request))})


async def create(request: web.Request) -> web.Response:
    engine, tenant = request.app[ENGINE], tenant_name(request)
    admins = _admins(engine, await read_json(request))
    await engine.catalog.create_tenant(tenant)
    await _set_admins(engine, tenant, admins)
    return no_content()


async def update(request: web.Request) -> web.Response:
    """Replace the admin roles of a tenant."""
    engine, tenant = request.app[ENGINE], tenant_name(request)
    await _set_admins(engine, tenant, _admins(engine, await read_json(request)))
    return no_content()


async def delete(request: web.Request) -> web.Response:
    await request.app[ENGINE].catalog.delete_tenant(tenant_name(request))
    return no_content()


def check_there(engine: Engine, tenant: str) -> None:
    """Raise :class:`TenantNotFound` if the tenant does not exist."""
    if tenant not in engine.catalog.tenants():
        raise TenantNotFound(f"cluster {engine.cluster!r} has no tenant {tenant!r}")


def _admins(engine: Engine, body: object) -> frozenset[str]:
    """Return the admin roles that a body names."""
    if body is None:
        return frozenset()
    fields = object_field(body, "tenant")
    admins = texts_field(fields.get("adminRoles") or [], "tenant.adminRoles")
    clusters = texts_field(fields.get("allowedClusters") or [], "tenant.allowedClusters")
    if clusters and engine.cluster not in clusters:
        raise PreconditionFailed(f"tenant.allowedClusters must include this cluster, {engine.cluster!r}")
    return frozenset(role_field(role, "tenant.adminRoles") for role in admins)


async def _set_admins(engine: Engine, tenant: str, admins: frozenset[str]) -> None:
    def changed(grants: Grants) -> Grants:
        for role in {*grants.roles, *admins}:
            others = grants.roles.get(role, frozenset()) - {Action.ADMIN.value}
            grants = grants.with_role(role, others | ({Action.ADMIN.value} if role in admins else frozenset()))
        return grants

    await engine.catalog.grants.change(tenant, changed, lambda: check_there(engine, tenant))
