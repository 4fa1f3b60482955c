"""The worker's HTTP application: puts the routes together, and serves status, health and metrics.

What the status page shows comes from a :class:`StatusSource`, which the worker is, so that this module needs to
know nothing of links, sync or databases.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from aiohttp import web

from replicator.api import block_lists, data_plane, link_streams
from replicator.api.addresses import Addresses
from replicator.api.admin.routes import add_admin
from replicator.api.audit import Audit, note_changes
from replicator.api.bounding import bound_addresses, bound_roles, bound_time
from replicator.api.browsers import Allowed, refuse_cross_site
from replicator.api.clients import add_clients
from replicator.api.cluster_settings import settings_routes
from replicator.api.errors import BadRequest, DatabaseDown, report_errors
from replicator.api.guarding import Guarding, guard_requests
from replicator.api.link_routes import LinkControl, add_links
from replicator.api.linked_sources import LinkedSources
from replicator.api.metrics.collector import Scraped
from replicator.api.metrics.scraping import METRICS, Metrics, answer
from replicator.api.namespace_list import add_namespace_list
from replicator.api.pages import PAGES_IN_FLIGHT
from replicator.api.reading import add_reading
from replicator.api.rest_produce import add_rest_produce
from replicator.api.runs import add_runs
from replicator.api.slices import json_list, topics_in_slices
from replicator.api.topic_digests import NO_MAPPINGS, add_topic_digests
from replicator.api.topic_figures import add_topic_figures
from replicator.api.topology import TopologySource, add_topology
from replicator.api.verifying import add_verifying
from replicator.api.websocket.sockets import add_websockets
from replicator.engine.engine import Engine
from replicator.engine.restored import TAKEN_BACK, taken_back_of
from replicator.peering.claim_checker import ClaimChecker
from replicator.peering.comparing import mapping_as_json
from replicator.security.client_limits import ClientLimits
from replicator.topology import MetricsSettings
from replicator.topology.patterns import PATTERNS_MAX, check_pattern, is_named
from snapshots.mapping import SnapshotMapping


class StatusSource(Protocol):
    """Interface of the worker to the HTTP application."""

    def status(self) -> dict[str, Any]:
        """Return the answer of ``GET /replication/v1/status`` (docs/http.md) without its topics."""

    def ready(self) -> str | None:
        """Return why the worker serves no clients; None while it serves them."""

    def failing_tasks(self) -> Sequence[Mapping[str, Any]]:
        """Return the long-lived tasks that keep ending with errors. Each does nothing until it is restarted."""

    def full(self) -> str | None:
        """Return why the worker takes no messages, if the disk or the store is full; None while it takes them."""

    def topology_refused(self) -> str | None:
        """Return why the worker refused the topology file when it last reloaded it; None if it did not refuse it."""

    def links(self) -> Iterable[LinkControl]:
        """Return the links of this worker whose source is this cluster."""

    async def mappings(self, topics: Sequence[str]) -> Mapping[str, Sequence[SnapshotMapping]] | None:
        """Return the snapshot mappings by topic from Postgres; None while Postgres does not answer."""


STATUS: Final[web.AppKey[StatusSource]] = web.AppKey("status", StatusSource)


def make_app(
    engine: Engine,
    source: StatusSource,
    linked_sources: LinkedSources,
    link_opened: Callable[[str], None] | None = None,
    topology: TopologySource | None = None,
    addresses: Addresses | None = None,
    allowed: Callable[[], Allowed] = Allowed,
    audit: Audit | None = None,
    guarding: Guarding | None = None,
    limits: ClientLimits | None = None,
    metrics: Callable[[], MetricsSettings] = MetricsSettings,
    claim_checker: ClaimChecker | None = None,
) -> web.Application:
    """Return the HTTP application of one worker.

    ``linked_sources`` are the links that may append here, and ``link_opened`` is called when one of them does.
    ``addresses`` are those at which clients reach the clusters. ``allowed`` returns the names by which the worker is
    called, and the pages that may use it. ``audit`` gets operators' changes. ``guarding`` identifies requests.
    ``limits`` counts the connections and other resources of each client. ``metrics`` returns how many topics and
    subscriptions have series. ``claim_checker`` asks the clusters that claims are about; without it no claim is
    believed.
    """
    limits = limits or ClientLimits()
    app = web.Application(
        middlewares=[bound_time(engine.turns), report_errors, refuse_cross_site(allowed), bound_addresses(limits)]
    )
    if guarding is not None:
        app.middlewares.append(guard_requests(guarding))
        app.middlewares.append(bound_roles(limits))
    if audit is not None:
        app.middlewares.append(note_changes(audit))
    app[data_plane.ENGINE] = engine
    app[link_streams.STREAMS] = {}
    app[PAGES_IN_FLIGHT] = []
    app.on_shutdown.append(link_streams.close_streams)
    app[data_plane.LINKED_SOURCES] = linked_sources
    app[data_plane.ASKING] = claim_checker or ClaimChecker(engine.cluster)
    app[STATUS] = source
    app[METRICS] = Metrics(lambda: Scraped(source.status(), source.ready() is None, engine.writer.latencies), metrics)
    if link_opened is not None:
        app[link_streams.LINK_OPENED] = link_opened
    app.add_routes(_monitoring())
    app.add_routes(
        [
            web.get("/replication/v1/status", status),
            web.get("/replication/v1/mappings", mappings),
        ]
    )
    app.add_routes(data_plane.routes())
    app.add_routes(link_streams.routes())
    app.add_routes(block_lists.routes())
    app.add_routes(settings_routes())
    add_runs(app, engine, linked_sources, audit)
    add_reading(app, secrets.token_hex(8))
    add_verifying(app)
    add_topic_digests(app, source)
    add_topic_figures(app)
    add_namespace_list(app)
    add_links(app, source)
    add_clients(app, engine, audit)
    add_websockets(app, engine)
    add_rest_produce(app, engine)
    add_admin(app, engine, source.ready, addresses)
    if topology is not None:
        add_topology(app, topology)
    return app


def make_monitoring_app(whole: web.Application) -> web.Application:
    """Return the application of a port where nothing but health and metrics is read, with the checks of ``whole``, the
    worker's application."""
    app = web.Application(middlewares=list(whole.middlewares))
    app[data_plane.ENGINE] = whole[data_plane.ENGINE]
    app[STATUS] = whole[STATUS]
    app[METRICS] = whole[METRICS]
    app.add_routes(_monitoring())
    return app


def _monitoring() -> list[web.RouteDef]:
    return [web.get("/healthz", healthz), web.get("/readyz", readyz), web.get("/metrics", answer)]


async def healthz(request: web.Request) -> web.Response:
    """Answer whether the process is alive: status 503 once its store failed.

    Such a worker confirms nothing more until it is started again, and this answer lets whoever watches it do so.
    """
    engine = request.app.get(data_plane.ENGINE)  # a worker that is starting has none
    if engine is not None and engine.writer.failed is not None:
        return web.json_response({"status": "failed", "reason": engine.writer.failed}, status=503)
    return web.json_response({"status": "alive"})


async def readyz(request: web.Request) -> web.Response:
    """Answer whether the worker serves clients: status 503 if it does not.

    A failing link does not change the answer, because a load balancer must not take a healthy cluster out (invariant
    8). The answer names tasks that keep ending with errors. If the store has no room for messages, the answer says why
    messages are refused; consumers are still served. It also says why a changed topology file was not taken.
    """
    source = request.app[STATUS]
    failing: dict[str, Any] = {"failing_tasks": named} if (named := list(source.failing_tasks())) else {}
    if (full := source.full()) is not None:
        failing["full"] = full
    if (refused := source.topology_refused()) is not None:
        failing["topology_refused"] = refused
    reason = source.ready()
    if reason is None:
        return web.json_response({"status": "ready", **failing})
    return web.json_response({"status": "not ready", "reason": reason, **failing}, status=503)


async def status(request: web.Request) -> web.Response:
    """Answer with the status of the worker: topics, subscriptions, links, sync, store, database and failover.

    A worker may have thousands of topics. With ``topics=false`` the answer has none, with ``topic=PATTERN`` only those
    that match.
    """
    if request.query.get("topics") == "false":
        return web.json_response(request.app[STATUS].status())
    patterns = tuple(request.query.getall("topic", ()))
    check_patterns(patterns)
    engine = request.app[data_plane.ENGINE]
    back = engine.store.meta(TAKEN_BACK)
    named = (topic async for topic in topics_in_slices(engine) if is_named(patterns, topic.name))
    rows = [json.dumps({**topic.status(), **taken_back_of(back, topic)}) async for topic in named]
    return json_list(request.app[STATUS].status(), "topics", rows)


def check_patterns(patterns: Sequence[str]) -> None:
    """Raise :class:`BadRequest` if a pattern is malformed, or if there are more than :data:`PATTERNS_MAX`."""
    if len(patterns) > PATTERNS_MAX:
        raise BadRequest(
            f"{len(patterns)} patterns of topics were given, the limit is {PATTERNS_MAX}: ask in several requests"
        )
    try:
        for pattern in patterns:
            check_pattern(pattern)
    except ValueError as error:
        raise BadRequest(f"parameter topic is not a valid pattern of topics: {error}") from None


async def mappings(request: web.Request) -> web.Response:
    name = request.query.get("topic")
    if not name:
        raise BadRequest("parameter topic is missing")
    topic = await request.app[data_plane.ENGINE].topic(name, create=False)
    rows = await request.app[STATUS].mappings([topic.name])
    if rows is None:
        raise DatabaseDown(NO_MAPPINGS)
    of_topic = rows.get(topic.name, ())
    return web.json_response({"topic": topic.name, "mappings": [mapping_as_json(row) for row in of_topic]})
