"""Listener of a worker that is starting: it answers a few requests before the rest of the worker is there.

A starting worker may have to ask other workers, wait for them, or take back messages, which can take hours. Meanwhile
it answers on its own address:

- the question of another starting worker (:mod:`replicator.peering.known_stores`), so that a whole mesh can start at
  once;
- ``/healthz`` with 200, and ``/readyz`` with 503, the state of the start, and its progress;
- ``/replication/v1/status`` and pages of the dashboard with 503 and the same;
- everything else with 503. On paths that links and readers use, the answer is plain text: they take that for a worker
  that is away, and try again.

Clients of the binary protocol are disconnected. The listener uses a duplicate of the bound socket. When it stops, new
connections wait in the socket's queue until the worker serves. The port for monitoring has a listener of the same kind
at all times.
"""

from __future__ import annotations

import asyncio
import html
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from aiohttp import web
from aiohttp.typedefs import Handler

from replicator.api.app import healthz
from replicator.api.cluster_settings import settings_kept
from replicator.api.errors import error_response, report_errors
from replicator.api.guarding import Guarding, canonical, guard_requests
from replicator.api.http_connection import http_connections
from replicator.api.store_of import add_store_of, store_known
from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.engine.topics.grants import NONE, Grants
from replicator.failover.epochs import FIRST, as_json
from replicator.gateway.mixed_port import MixedPort
from replicator.gateway.server import FirstByte
from replicator.gateway.server_tls import ServerTls
from replicator.operating.binding import BACKLOG
from replicator.peering.cluster_settings import SETTINGS_ROUTE, SettingsKept
from replicator.peering.known_stores import STORE_OF_ROUTE, StoreOf
from replicator.security.client_limits import ClientLimits

REFRESH_SECONDS: Final = 2
"""Time after which the page of a starting worker asks again."""
ASKED_BY_WORKERS: Final = (STORE_OF_ROUTE, SETTINGS_ROUTE)
"""Routes of other starting workers' questions; their roles are checked."""
_DATA_PLANE: Final = ("/replication/v1/", "/pipeline/")
STOP_SECONDS_MAX: Final = 1.0
"""Time that requests under way have when the listener stops. All answers are small."""


class Starting(EngineError):
    """Error for a request that a starting worker cannot answer yet."""

    status = 503


@dataclass(slots=True)
class Opening:
    """State of a start, as others see it."""

    cluster: str
    state: str = "opening"
    """``opening``, ``asking``, ``waiting`` or ``reclaiming``."""
    reason: str = "the worker is opening its store; try again in a moment"
    peers: dict[str, str] = field(default_factory=dict)
    """State of each peer: ``answered``, or the reason why there is no answer."""
    progress: dict[str, Any] = field(default_factory=dict)
    """Progress of taking back messages."""
    engine: Engine | None = None
    """The opened store; None if it is not open, or if there is none yet."""
    has_store: bool = True
    """Whether there is a store. Without one, this cluster knows nothing about any other."""

    def enter(self, state: str, reason: str) -> None:
        self.state, self.reason = state, reason

    def as_json(self) -> dict[str, Any]:
        return {"state": self.state, "peers": dict(self.peers), "progress": dict(self.progress)}

    async def store_of(self, request: web.Request, cluster: str, counted: bool) -> StoreOf:
        """Return what is known of another cluster's store. Raises :class:`Starting` while the store is not open."""
        if self.engine is not None:
            return await store_known(self.engine, request, cluster, counted)
        if self.has_store:
            raise Starting(f"the worker of {self.cluster} is opening its store; try again in a moment")
        return StoreOf(self.cluster, as_json(FIRST), None)

    async def settings_kept(self, request: web.Request) -> web.StreamResponse:
        """Answer with the policies and permissions that are kept of another cluster. Raises :class:`Starting` while the
        store is not open."""
        if self.engine is not None:
            return await settings_kept(request, self.engine)
        if self.has_store:
            raise Starting(f"the worker of {self.cluster} is opening its store; try again in a moment")
        return web.json_response(SettingsKept(self.cluster, ()).as_json())


class StoreGrants:
    """Grants of the store that is open, as far as they count; none while no store is open."""

    def __init__(self) -> None:
        self.engine: Engine | None = None

    def of(self, name: str) -> Grants:
        return NONE if self.engine is None else self.engine.catalog.granted(name)

    def all(self) -> Mapping[str, Grants]:
        return {} if self.engine is None else self.engine.catalog.grants.all()


class HttpListener:
    """Server of one application on a bound socket, by HTTP alone. Make it with :meth:`start`."""

    def __init__(self, runner: web.AppRunner) -> None:
        self._runner = runner
        self._server: asyncio.Server | MixedPort | None = None
        self._ended = False

    @classmethod
    async def start(
        cls,
        bound: socket.socket,
        app: web.Application,
        limits: ClientLimits,
        tls: ServerTls | None,
        *,
        tls_alone: bool,
    ) -> HttpListener:
        """Serve ``app`` on ``bound``, a socket that listens already and stays open."""
        runner = web.AppRunner(app, shutdown_timeout=STOP_SECONDS_MAX)
        await runner.setup()
        http = http_connections(runner)
        listener, own = cls(runner), bound.dup()

        def by_http() -> asyncio.Protocol:
            # Its first byte may come after the end of the listener, which then knows nothing of the connection: this
            # application would answer there for as long as the client keeps it open.
            return _RejectedConnection() if listener._ended else http()

        def made() -> FirstByte:
            return FirstByte(by_http, _RejectedConnection, limits)

        try:
            own.setblocking(False)
            if tls is not None:
                listener._server = MixedPort(own, BACKLOG, tls, made, limits, tls_alone=tls_alone)
            else:
                loop = asyncio.get_running_loop()
                listener._server = await loop.create_server(made, sock=own, backlog=BACKLOG)
        except BaseException:
            own.close()
            await runner.cleanup()
            raise
        return listener

    async def stop(self) -> None:
        """Accept nobody any more, and end the connections. May be called again."""
        server, self._server, self._ended = self._server, None, True
        if server is not None:
            server.close()
            await self._runner.cleanup()


class _RejectedConnection(asyncio.Protocol):
    """Connection of a client of the binary protocol, which ends at once: the client tries again."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport.close()


def make_early_app(opening: Opening, guarding: Guarding | None, *, monitoring: bool = False) -> web.Application:
    """Return the application of a starting worker. Only the question of other workers needs a role that may read.

    With ``monitoring`` it answers on its port for health and metrics, where nobody asks anything else.
    """
    app = web.Application(middlewares=[report_errors])
    if guarding is not None:
        guard = guard_requests(guarding)

        @web.middleware
        async def guard_question(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await (guard(request, handler) if canonical(request) in ASKED_BY_WORKERS else handler(request))

        app.middlewares.append(guard_question)

    async def readyz(_: web.Request) -> web.Response:
        answer = {"status": "not ready", "reason": opening.reason, "start": opening.as_json()}
        return web.json_response(answer, status=503)

    async def status(_: web.Request) -> web.Response:
        answer = {"error": "Starting", "message": opening.reason, "start": opening.as_json()}
        return web.json_response(answer, status=503)

    async def page(_: web.Request) -> web.Response:
        return web.Response(text=_page(opening), content_type="text/html", status=503)

    async def later(request: web.Request) -> web.Response:
        if request.path.startswith(_DATA_PLANE):
            return web.Response(text=f"Starting: {opening.reason}\n", status=503)
        return error_response("Starting", opening.reason, 503)

    app.add_routes([web.get("/healthz", healthz), web.get("/readyz", readyz)])
    if not monitoring:
        add_store_of(app, opening.store_of)
        app.add_routes(
            [
                web.get(SETTINGS_ROUTE, opening.settings_kept),
                web.get("/replication/v1/status", status),
                web.get("/replication/v1/topology", status),
                web.get("/", page),
                web.get("/dashboard{tail:(/.*)?}", page),
            ]
        )
    app.add_routes([web.route("*", "/{tail:.*}", later)])
    return app


def _page(opening: Opening) -> str:
    rows = "".join(f"<li>{html.escape(name)}: {html.escape(what)}</li>" for name, what in opening.peers.items())
    done = "".join(f"<li>{html.escape(name)}: {html.escape(str(each))}</li>" for name, each in opening.progress.items())
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{html.escape(opening.cluster)} starts'
        f'</title><meta http-equiv="refresh" content="{REFRESH_SECONDS}"></head><body>'
        f"<h1>The worker of {html.escape(opening.cluster)} is starting: {html.escape(opening.state)}</h1>"
        f"<p>{html.escape(opening.reason)}</p><ul>{rows}</ul><ul>{done}</ul></body></html>"
    )
