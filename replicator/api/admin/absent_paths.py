"""Parts of Pulsar's admin API that this version lacks. They are refused by name, so that nobody looks for a typing
error. Lists that tools read in passing are answered as empty.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from aiohttp import web

from replicator.api.admin.absent_policies import ABSENT_POLICIES
from replicator.api.admin.errors import NotSupported
from replicator.api.admin.policies import OF_NAMESPACE, OF_TOPIC
from replicator.api.admin.policy_shapes import ALIASES, SHAPES

FUNCTIONS: Final = "there are no functions and connectors"
SETTINGS: Final = "settings are in the topology file, none of them under Pulsar's names"
ONE_WORKER: Final = "a cluster is one worker, which has all namespaces"
ONE_BUNDLE: Final = "a namespace is one bundle: a cluster is one worker"
ONE_BY_ONE: Final = (
    "permissions of topics are granted and revoked one by one: "
    "…/persistent/{tenant}/{namespace}/{topic}/permissions/{role}"
)
MIGRATION: Final = "clients move by a failover: `replicator failover`"
GROUP: Final = f"(?!(?:{'|'.join(map(re.escape, ('backlogQuotaMap', *SHAPES, *ALIASES, *ABSENT_POLICIES)))})$)[^/]+"
"""Names of groups, but not those of policies: these are policies of a namespace named `antiAffinity`."""
BUNDLE: Final = "0x[0-9a-f]+_0x[0-9a-f]+"

PARTS: Final[Mapping[str, str]] = {
    "bookies": "a worker has its store in itself; there are no bookies",
    "resource-quotas": "there are no bundles to be moved, and no quotas for that",
    "resourcegroups": "there are no resource groups",
    "broker-stats": "figures of the worker are under /metrics and /replication/v1/status",
    "worker": FUNCTIONS,
    "worker-stats": FUNCTIONS,
    "functions": FUNCTIONS,
}
"""By the first part of a path under ``/admin/v2``."""
PARTS_V3: Final[Mapping[str, str]] = {
    "functions": FUNCTIONS,
    "sinks": FUNCTIONS,
    "sources": FUNCTIONS,
    "packages": "there are no packages, because there are no functions and connectors",
    "transactions": "there are no transactions",
}
"""By the first part of a path under ``/admin/v3``. Brokers have no other parts there."""
PATHS: Final[Mapping[tuple[str, str], str]] = {
    ("*", "brokers/configuration/{name}"): SETTINGS,
    ("*", "brokers/configuration/{name}/{value}"): SETTINGS,
    ("POST", "brokers/shutdown"): "a worker is ended where it was started: `replicator worker` stops at SIGTERM",
    ("GET", "brokers/{cluster}/{broker}/ownedNamespaces"): ONE_WORKER,
    ("*", "clusters/{cluster}/migrate"): MIGRATION,
    ("*", "clusters/{cluster}/failureDomains/{domain}"): ONE_WORKER,
    ("*", "clusters/{cluster}/namespaceIsolationPolicies/{rest:.+}"): ONE_WORKER,
    ("POST", "namespaces/grantPermissionsOnTopics"): ONE_BY_ONE,
    ("POST", "namespaces/revokePermissionsOnTopics"): ONE_BY_ONE,
    ("GET", f"namespaces/{{cluster}}/antiAffinity/{{group:{GROUP}}}"): ONE_WORKER,
    ("DELETE", f"{OF_NAMESPACE}/{{bundle:{BUNDLE}}}"): ONE_BUNDLE,
    ("PUT", f"{OF_NAMESPACE}/{{bundle:{BUNDLE}}}/split"): ONE_BUNDLE,
    ("GET", f"{OF_NAMESPACE}/{{bundle:{BUNDLE}}}/topicHashPositions"): ONE_BUNDLE,
    ("POST", f"{OF_NAMESPACE}/resourcegroup/{{group}}"): "there are no resource groups",
    ("POST", f"{OF_NAMESPACE}/persistence/bookieAffinity"): "a worker has its store in itself; there are no bookies",
    ("POST", f"{OF_NAMESPACE}/migration"): MIGRATION,
    ("GET", f"{OF_NAMESPACE}/scanOffloadedLedgers"): "there is no offloading: all of a topic is in the worker's store",
    ("GET", f"{OF_TOPIC}/backlog"): "use …/stats, which has the backlog of every subscription",
    ("*", f"{OF_TOPIC}/{{subscription}}/dispatchRate"): "there are no rate limits",
}
"""Single paths that brokers have, below ``/admin/v2`` or whole, by method."""


def routes() -> list[web.RouteDef]:
    """Return the routes of the parts and paths that this version lacks. They must be added after the routes of
    subscriptions and before those of policies.
    """
    found = [web.get("/admin/v2/resourcegroups", none)]
    for part in PARTS:
        found += [web.route("*", f"/admin/v2/{part}", refuse), web.route("*", f"/admin/v2/{part}/{{rest:.*}}", refuse)]
    found += [web.route(method, _whole(path), _refusing(why)) for (method, path), why in PATHS.items()]
    return [
        *found,
        web.route("*", "/admin/v3/{part}", refuse_v3),
        web.route("*", "/admin/v3/{part}/{rest:.*}", refuse_v3),
    ]


async def none(request: web.Request) -> web.Response:
    return web.json_response([])


async def refuse(request: web.Request) -> web.Response:
    raise NotSupported(PARTS[request.path.split("/")[3]])


async def refuse_v3(request: web.Request) -> web.Response:
    if (why := PARTS_V3.get(request.match_info["part"])) is None:
        raise web.HTTPNotFound
    raise NotSupported(why)


def _whole(path: str) -> str:
    return path if path.startswith("/") else f"/admin/v2/{path}"


def _refusing(why: str) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def refuse(request: web.Request) -> web.Response:
        raise NotSupported(why)

    return refuse
