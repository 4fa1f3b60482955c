"""``GET /replication/v1/rules``: the rules that apply to clients of this cluster, for a comparison before a switch.

Rules are tenants, namespaces, permissions, policies, schemas, partitions and terminated topics. The answer has those
that are set. :mod:`replicator.failover.rules` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from replicator.api.slices import topics_in_slices
from replicator.engine.engine import Engine
from replicator.engine.policies_codec import overrides_to_json, policies_to_json
from replicator.engine.topics.namespace_policies import NamespacePolicies, namespace_policies_to_json
from replicator.running.pacing import Pace
from replicator.security.permissions import Permissions


def add_rules(app: web.Application, engine: Engine, permissions: Callable[[], Permissions | None]) -> None:
    """Add the route; ``permissions`` is None without authentication."""

    async def rules(request: web.Request) -> web.Response:
        return web.json_response(
            {
                "cluster": engine.cluster,
                "clients_elsewhere": engine.admission.clients_elsewhere is not None,
                **_of_permissions(engine, permissions()),
                "tenants": engine.catalog.visible_tenants(),
                "namespaces": [
                    namespace
                    for tenant in engine.catalog.visible_tenants()
                    for namespace in engine.catalog.visible_namespaces(tenant)
                ],
                "namespaces_by_use": engine.by_use.makes_namespaces,
                "defaults": policies_to_json(engine.loaded.default_policies),
                "policies": _of_namespaces(engine),
                "schemas": await _of_schemas(engine),
                "partitions": {
                    topic: number
                    for tenant in engine.catalog.visible_tenants()
                    for namespace in engine.catalog.visible_namespaces(tenant)
                    for topic, number in engine.catalog.partitioned_topics(namespace).items()
                },
                **await _of_topics(engine),
            }
        )

    app.router.add_get("/replication/v1/rules", rules)


def _of_permissions(engine: Engine, permissions: Permissions | None) -> dict[str, Any]:
    roles: dict[str, dict[str, list[str]]] = {}
    written: Mapping[str, Mapping[str, frozenset[str]]] = {} if permissions is None else permissions.written
    catalog = engine.catalog
    granted = {place: catalog.granted(place) for place in catalog.grants.all()}
    for source in ({place: grants.roles for place, grants in granted.items()}, written):
        for place, actions_of in source.items():
            for role, actions in actions_of.items():
                here = roles.setdefault(place, {})
                here[role] = sorted({*here.get(role, ()), *actions})
    return {
        "asks": permissions is not None,
        "superusers": [] if permissions is None else sorted(permissions.superusers),
        "roles": roles,
        "subscriptions": {
            place: {name: sorted(allowed) for name, allowed in grants.subscriptions.items()}
            for place, grants in granted.items()
            if grants.subscriptions
        },
        "prefixed": sorted(place for place, grants in granted.items() if grants.prefixed),
    }


def _of_namespaces(engine: Engine) -> dict[str, Any]:
    default = namespace_policies_to_json(NamespacePolicies())
    found: dict[str, Any] = {}
    for tenant in engine.catalog.visible_tenants():
        for namespace in engine.catalog.visible_namespaces(tenant):
            policies = namespace_policies_to_json(engine.catalog.namespace(namespace))
            changed = {name: value for name, value in policies.items() if value != default[name]}
            if changed:
                found[namespace] = changed
    return found


async def _of_schemas(engine: Engine) -> dict[str, list[str]]:
    pace = Pace(engine.turns)
    versions: dict[str, list[str]] = {}
    for topic in engine.schemas.topics():
        versions[topic] = [version.hex() for version in engine.schemas.versions(topic)]
        await pace.step()
    return versions


async def _of_topics(engine: Engine) -> dict[str, Any]:
    terminated: list[str] = []
    own: dict[str, Any] = {}
    async for topic in topics_in_slices(engine):
        if topic.log.terminated:
            terminated.append(topic.name)
        if topic.policies.own:
            own[topic.name] = overrides_to_json(topic.policies.own)
    return {"terminated": terminated, "topic_policies": own}
