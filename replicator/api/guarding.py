"""Access control of the HTTP routes: a request is identified, and refused unless its route's rule allows its role.

A route without a rule is for superusers. So a new route is closed until it gets a rule. Public routes are in
:data:`PUBLIC`, each with its reason.

Routes whose body or stream names topics (:data:`TOPICS_INSIDE`) are open to a role that may do it anywhere. They check
each topic by :func:`may` themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from replicator.api.admin.requests import topic_name
from replicator.api.errors import BadRequest
from replicator.peering.cluster_settings import OWN_SETTINGS_ROUTE, SETTINGS_ROUTE
from replicator.peering.comparing import DIGESTS_ROUTE, STATES_ROUTE
from replicator.peering.known_stores import STORE_OF_ROUTE
from replicator.peering.lineage import LINEAGE_ROUTE
from replicator.peering.lives import COPIED_ANEW_ROUTE
from replicator.peering.runs import RUNS_ROUTE
from replicator.running.asking import ASKED_BY
from replicator.running.pacing import CLIENT
from replicator.security.errors import NotIdentified, NotPermitted
from replicator.security.guard import EVERYBODY, Guard
from replicator.security.identifying import Identifying
from replicator.security.permissions import USING, Action, shown

PUBLIC: Final[Mapping[str, str]] = {
    "/healthz": "load balancers and Kubernetes ask without credentials; it says that the process is there",
    "/readyz": "the same; it says whether clients are served, and names tasks of the worker",
    "/failover/v1/service-url": "clients poll it before they have a connection, and some cannot show credentials; it "
    "says addresses alone",
    "/dashboard/sign-in": "where somebody shows who they are; it says nothing of what is here but the cluster's name",
    "/dashboard/static/{file}": "styles and scripts of the dashboard, the same for everybody",
}
"""Routes that are open to everybody, each with the reason."""
ANYBODY_IDENTIFIED: Final = (
    "/admin/v2/brokers/version",
    "/admin/v2/brokers/ready",
    "/admin/v2/clusters",
)
METRICS: Final = "/metrics"
SOCKETS: Final = "/ws/v2/"
"""Routes of WebSockets. A browser cannot set headers of a WebSocket, so a token may stand in the query of these alone:
URLs get into logs and histories."""
ORIGINAL_PRINCIPAL: Final = "X-Original-Principal"
READING: Final = (Action.CONSUME, Action.REPLICATE)
DASHBOARD: Final = "/dashboard/"
SHOWN_BY_BROWSER: Final[web.AppKey[Callable[[web.Request], str | None]]] = web.AppKey("shown_by_browser")
"""Function that returns the credentials of a user signed in to the dashboard, as a header ``Authorization``. They
count only for the dashboard's own paths, because a browser sends a cookie unasked."""

TOPICS_INSIDE: Final[Mapping[tuple[str, str], tuple[Action, ...]]] = {
    ("GET", "/replication/v1/topics"): READING,
    ("GET", "/replication/v1/positions"): READING,
    ("GET", "/replication/v1/cuts"): READING,
    ("GET", "/replication/v1/high-water"): READING,
    ("POST", "/replication/v1/blocks"): READING,
    ("POST", "/replication/v1/measure"): READING,
    ("POST", "/replication/v1/positions-at"): READING,
    ("POST", STATES_ROUTE): READING,
    ("POST", DIGESTS_ROUTE): READING,
    ("POST", "/replication/v1/append"): (Action.REPLICATE,),
    ("POST", "/replication/v1/partitions"): (Action.REPLICATE,),
    ("POST", "/replication/v1/schemas"): (Action.REPLICATE,),
    ("POST", LINEAGE_ROUTE): (Action.REPLICATE,),
    ("POST", RUNS_ROUTE): (Action.REPLICATE,),
    ("POST", SETTINGS_ROUTE): (Action.REPLICATE,),
    ("GET", SETTINGS_ROUTE): (Action.REPLICATE,),
    ("GET", OWN_SETTINGS_ROUTE): (Action.REPLICATE,),
    ("POST", "/replication/v1/subscription-use"): READING,
    ("GET", "/failover/v1/state"): READING,
    ("GET", STORE_OF_ROUTE): READING,
    ("POST", STORE_OF_ROUTE): (Action.REPLICATE,),
}
"""For roles that may do one of these with something."""
OF_ONE_TOPIC: Final[Mapping[tuple[str, str], tuple[Action, ...]]] = {
    ("GET", "/replication/v1/blocks"): READING,
    ("GET", "/replication/v1/raw-blocks"): READING,
    ("GET", "/replication/v1/block-heads"): READING,
    ("GET", "/replication/v1/twins"): READING,
    ("GET", "/replication/v1/subscriptions"): READING,
    ("GET", "/replication/v1/mappings"): READING,
    ("GET", "/replication/v1/ack-vectors"): READING,
    ("GET", "/replication/v1/identity"): READING,
    ("GET", "/replication/v1/place"): READING,
    ("GET", "/replication/v1/bridge"): READING,
    ("GET", COPIED_ANEW_ROUTE): (Action.REPLICATE,),
    ("POST", "/replication/v1/delete-copy"): (Action.REPLICATE,),
    ("POST", "/replication/v1/keep-both"): (Action.REPLICATE,),
    ("POST", "/replication/v1/earlier-lives"): (Action.REPLICATE,),
}
"""The topic is the parameter ``topic``."""

_CONSUMING: Final = ("/examinemessage", "/ledger/{ledger}/entry/{entry}")
_FIGURES: Final = frozenset(
    {
        "/stats",
        "/internalStats",
        "/internal-info",
        "/partitioned-stats",
        "/partitioned-internalStats",
        "/lastMessageId",
        "/messageid/{timestamp}",
        "/backlogSize",
        "/partitions",
        "/subscriptions",
        "/schema",
        "/schema/{version}",
        "/schemas",
        "/metadata",
        "/compatibility",
        "/version",
        "/compaction",
        "/offload",
    }
)
"""Parts of a topic's routes that everybody who may use the topic can read."""
_DEAD_LETTERS: Final = frozenset({"maxRedeliverCount", "deadLetterTopic"})
"""Parameters of a WebSocket consumer that has messages sent to a topic for dead letters."""
_REGISTERING: Final = ("POST", "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema")
_READ_BY_POST: Final = frozenset({"/compatibility", "/version", "/backlogSize"})

ROLE: Final = web.RequestKey("role", str)
GUARD: Final[web.RequestKey[Guard]] = web.RequestKey("guard", Guard)
EXPIRES_AT: Final[web.RequestKey[float | None]] = web.RequestKey("expires_at")
"""Key of a request's expiry time: the end of the credentials that let it through."""


@dataclass(frozen=True, slots=True)
class Guarding:
    """Parts that a worker needs to guard its requests. Reloads replace them."""

    identifying: Callable[[], Identifying]
    guard: Guard
    metrics_roles: Callable[[], frozenset[str] | None]
    """Function that returns the roles that may read the metrics; None if everybody may."""


def guard_requests(guarding: Guarding) -> Middleware:
    """Return the middleware that identifies each request, and refuses it if its role may not do it."""

    @web.middleware
    async def guarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        route = canonical(request)
        if route in PUBLIC or (route == METRICS and guarding.metrics_roles() is None):
            return await handler(request)
        certificate = None if request.transport is None else request.transport.get_extra_info("peercert")
        token = request.query.get("token") if route.startswith(SOCKETS) else None
        identity = await guarding.identifying().of_request(shown_with(request), token, certificate)
        if (share := CLIENT.get()) is not None:
            share.role = identity.role  # also of a client whose requests are all refused
        _check_is_no_proxy(request, identity.role)
        if request.match_info.http_exception is not None:  # there is no such path, or method
            guarding.guard.check_superuser(identity.role)
            return await handler(request)
        if not (route == METRICS and identity.role in (guarding.metrics_roles() or ())):
            check(request, route, identity.role, guarding.guard)
        request[ROLE], request[GUARD] = identity.role, guarding.guard
        request[EXPIRES_AT] = identity.expires_at
        ASKED_BY.set(identity.role)
        return await handler(request)

    return guarded


def shown_with(request: web.Request) -> str | None:
    """Return the header ``Authorization``. For a dashboard path, a signed-in user's credentials replace a missing
    header."""
    header = request.headers.get("Authorization")
    if header is not None or not is_dashboard(canonical(request)) or SHOWN_BY_BROWSER not in request.app:
        return header
    return request.app[SHOWN_BY_BROWSER](request)


def is_dashboard(route: str) -> bool:
    return route == "/" or route.startswith(DASHBOARD)


def _check_is_no_proxy(request: web.Request, role: str) -> None:
    """Raise :class:`NotIdentified` if the request asks for another role, as a proxy does. No role here is a proxy.

    Upstream's brokers also refuse roles that are not their proxies.
    """
    claimed = request.headers.get(ORIGINAL_PRINCIPAL, "").strip()
    if claimed and claimed != role:
        raise NotIdentified(
            f"header {ORIGINAL_PRINCIPAL}: role {shown(role)} speaks for another role, as a proxy does; no role may do "
            "so here: leave the header out"
        )


def canonical(request: web.Request) -> str:
    """Return the route with names in braces, or the path if no route fits."""
    resource = request.match_info.route.resource
    return request.path if resource is None else resource.canonical


def may(request: web.Request, actions: tuple[Action, ...], topic: str) -> bool:
    """Return whether the role of the request has permission for at least one of ``actions`` on ``topic``."""
    return allows(request.get(GUARD, EVERYBODY), request.get(ROLE, ""), actions, topic)


def allows(guard: Guard, role: str, actions: tuple[Action, ...], topic: str) -> bool:
    """Return whether ``guard`` allows ``role`` at least one of ``actions`` on ``topic``."""
    try:
        guard.check_topic(role, actions, topic)
    except NotPermitted:
        return False
    return True


def check_may_replicate(request: web.Request, topic: str) -> None:
    """Raise :class:`NotPermitted` if the role of the request may not replicate ``topic``."""
    check_may(request, (Action.REPLICATE,), topic)


def check_may(request: web.Request, actions: tuple[Action, ...], topic: str) -> None:
    """Raise :class:`NotPermitted` if the role of the request has permission for none of ``actions`` on ``topic``.

    A handler whose request names several topics calls this for each of them.
    """
    guard: Guard = request.get(GUARD, EVERYBODY)
    guard.check_topic(request.get(ROLE, ""), actions, topic)


@contextmanager
def ending_at_expiry(request: web.Request) -> Iterator[None]:
    """Cut the connection of a long request when its credentials expire, so that the client authenticates again."""
    expires_at: float | None = request.get(EXPIRES_AT)
    if expires_at is None or request.transport is None:
        yield
        return
    seconds = max(0.0, expires_at - time.time())
    expiry = asyncio.get_running_loop().call_later(seconds, request.transport.abort)
    try:
        yield
    finally:
        expiry.cancel()


def check_superuser(request: web.Request) -> None:
    """Raise :class:`NotPermitted` if the role of the request is no superuser."""
    guard: Guard = request.get(GUARD, EVERYBODY)
    guard.check_superuser(request.get(ROLE, ""))


def is_superuser_request(request: web.Request) -> bool:
    """Return whether the role of the request is a superuser, which sees all topics without grants."""
    try:
        check_superuser(request)
    except NotPermitted:
        return False
    return True


def check(request: web.Request, route: str, role: str, guard: Guard) -> None:
    """Raise :class:`NotPermitted` if ``role`` may not use ``route``. Raise other errors for a wrong name in the
    path."""
    method = "GET" if request.method == "HEAD" else request.method
    if route in ANYBODY_IDENTIFIED and method == "GET":
        return
    if (actions := TOPICS_INSIDE.get((method, route))) is not None:
        guard.check_anywhere(role, actions)
        return
    if (actions := OF_ONE_TOPIC.get((method, route))) is not None:
        topic = request.query.get("topic")
        if not topic:
            raise BadRequest("parameter topic is missing")
        guard.check_topic(role, actions, topic)
        return
    names = request.match_info
    if route.startswith(("/lookup/v2/", "/topics/", SOCKETS)) and "topic" in names:
        _check_use(request, route, role, guard)
    elif route.startswith("/admin/v2/") and "tenant" in names:
        _check_admin(request, method, route, role, guard)
    else:
        guard.check_superuser(role)


def _check_use(request: web.Request, route: str, role: str, guard: Guard) -> None:
    topic = str(topic_name(request))
    if route.startswith("/lookup/v2/"):
        guard.check_topic(role, USING, topic)
    elif route.startswith(("/topics/", "/ws/v2/producer/")):
        guard.check_topic(role, (Action.PRODUCE,), topic)
    elif (subscription := request.match_info.get("subscription")) is not None:
        guard.check_subscription(role, topic, subscription)
        if not request.query.keys().isdisjoint(_DEAD_LETTERS):  # then the worker publishes for the client
            letters = request.query.get("deadLetterTopic") or f"{topic}-{subscription}-DLQ"
            guard.check_topic(role, (Action.PRODUCE,), letters)
    else:
        guard.check_topic(role, (Action.CONSUME,), topic)


def _check_admin(request: web.Request, method: str, route: str, role: str, guard: Guard) -> None:
    names = request.match_info
    if "topic" in names:
        _check_admin_of_topic(request, method, route, role, guard)
    elif "namespace" in names:
        place = f"{names['tenant']}/{names['namespace']}"
        if method == "GET" and route.startswith("/admin/v2/persistent/"):
            guard.check(role, USING, place)
        elif route == "/admin/v2/namespaces/{tenant}/{namespace}" and method in ("PUT", "DELETE"):
            guard.check(role, (Action.ADMIN,), names["tenant"])
        else:
            guard.check(role, (Action.ADMIN,), place)
    elif method == "GET":
        guard.check(role, (Action.ADMIN,), names["tenant"])
    else:
        guard.check_superuser(role)  # tenants are made by those who run the cluster


def _check_admin_of_topic(request: web.Request, method: str, route: str, role: str, guard: Guard) -> None:
    topic, rest = str(topic_name(request)), route.partition("{topic}")[2]
    if rest.startswith("/subscription/"):
        guard.check_subscription(role, topic, request.match_info["subscription"])
    elif rest.startswith(_CONSUMING):
        guard.check_topic(role, (Action.CONSUME,), topic)
    elif (method, route) == _REGISTERING:
        guard.check_topic(role, (Action.PRODUCE,), topic)
    elif rest in _FIGURES and (method == "GET" or rest in _READ_BY_POST):
        guard.check_topic(role, USING, topic)
    else:
        guard.check_topic(role, (Action.ADMIN,), topic)
