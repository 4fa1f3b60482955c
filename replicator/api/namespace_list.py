"""``GET /replication/v1/namespaces``: the namespaces of all tenants, a page at a time, with what is set for each.
``GET /replication/v1/namespaces/{tenant}/{namespace}``: one of them, with what the topology file gives below it.

Names are in order, as those of topics (:mod:`.topic_figures`): who asks several clusters for the same page has all rows
of the union's.
"""

from __future__ import annotations

import heapq
from typing import Any, Final

from aiohttp import web

from replicator.api.admin.requests import namespace_name
from replicator.api.data_plane import ENGINE, number
from replicator.api.errors import BadRequest
from replicator.api.topic_figures import SEARCH_CHARS_MAX
from replicator.engine.policies_codec import policies_to_json
from replicator.engine.topics.namespace_policies import NamespacePolicies, namespace_policies_to_json

LISTED: Final = 50
LISTED_MAX: Final = 1_000


def add_namespace_list(app: web.Application) -> None:
    app.router.add_get("/replication/v1/namespaces", listed)
    app.router.add_get("/replication/v1/namespaces/{tenant}/{namespace}", show)


async def listed(request: web.Request) -> web.Response:
    """Answer with a page of the namespaces of all tenants, by name: ``?search=&after=&limit=``.

    Each row has the policies that are set for the namespace. ``below`` has the default policies of the topology file.
    """
    limit, search = number(request, "limit", LISTED, LISTED_MAX), request.query.get("search", "").lower()
    if len(search) > SEARCH_CHARS_MAX:
        raise BadRequest(f"parameter search has more than {SEARCH_CHARS_MAX} characters: shorten it")
    engine, after = request.app[ENGINE], request.query.get("after", "")
    catalog = engine.catalog
    matching = [
        name
        for tenant in catalog.visible_tenants()
        for name in catalog.visible_namespaces(tenant)
        if search in name.lower()
    ]
    names = heapq.nsmallest(limit, (name for name in matching if name > after))
    return web.json_response(
        {
            "matching": len(matching),
            "namespaces": [{"name": name, "policies": _set(catalog.namespace(name))} for name in names],
            "below": policies_to_json(engine.loaded.default_policies),
        }
    )


async def show(request: web.Request) -> web.Response:
    """Answer with the policies that are set for one namespace, and those that the topology file gives below it."""
    engine, name = request.app[ENGINE], namespace_name(request)
    return web.json_response(
        {
            "name": name,
            "policies": _set(engine.catalog.namespace(name)),
            "below": policies_to_json(engine.loaded.default_policies),
        }
    )


def _set(policies: NamespacePolicies) -> dict[str, Any]:
    """Return the policies that differ from the default."""
    default = namespace_policies_to_json(NamespacePolicies())
    return {name: value for name, value in namespace_policies_to_json(policies).items() if value != default[name]}
