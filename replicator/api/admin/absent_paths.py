"""Parts of Pulsar's admin API that this version lacks. They are refused by name, so that nobody looks for a typing
error. Lists that tools read in passing are answered as empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from replicator.api.admin.errors import NotSupported

PARTS: Final[Mapping[str, str]] = {
    "bookies": "a worker has its store in itself; there are no bookies",
    "resource-quotas": "there are no bundles to be moved, and no quotas for that",
    "resourcegroups": "there are no resource groups",
    "broker-stats": "figures of the worker are under /metrics and /replication/v1/status",
    "worker": "there are no functions and connectors",
    "worker-stats": "there are no functions and connectors",
    "functions": "there are no functions and connectors",
}


def routes() -> list[web.RouteDef]:
    """Return the routes of the parts that this version lacks."""
    found = [web.get("/admin/v2/resourcegroups", none)]
    for part in PARTS:
        found += [web.route("*", f"/admin/v2/{part}", refuse), web.route("*", f"/admin/v2/{part}/{{rest:.*}}", refuse)]
    return found


async def none(request: web.Request) -> web.Response:
    return web.json_response([])


async def refuse(request: web.Request) -> web.Response:
    raise NotSupported(PARTS[request.path.split("/")[3]])
