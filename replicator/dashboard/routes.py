"""The dashboard's paths, and what a worker gives to it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from replicator.api.errors import report_errors
from replicator.api.guarding import SHOWN_BY_BROWSER, Guarding
from replicator.dashboard.access_control import SIGN_IN, AccessControl, wants_page
from replicator.dashboard.drill_actions import DrillActions
from replicator.dashboard.drill_pages import DrillPages
from replicator.dashboard.drilling import Drilling
from replicator.dashboard.failover_pages import FailoverPages
from replicator.dashboard.fan_out import FanOut
from replicator.dashboard.feeds import Feeds
from replicator.dashboard.link_actions import LinkActions
from replicator.dashboard.namespace_actions import NamespaceActions
from replicator.dashboard.pages import Pages
from replicator.dashboard.permission_actions import PermissionActions
from replicator.dashboard.policy_actions import PolicyActions
from replicator.dashboard.policy_pages import PolicyPages
from replicator.dashboard.record_pages import RecordPages
from replicator.dashboard.sessions import Sessions
from replicator.dashboard.switching import Switches
from replicator.dashboard.views import Parts, Views
from replicator.topology import Topology

STATIC: Final = Path(__file__).parent / "static"
STATIC_SECONDS: Final = 3600
_TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml", ".txt": "text/plain"}
LIVE_SECONDS: Final = 1.0
"""Time between two computations of a live view."""
COSTLY_SECONDS: Final = 2.0
"""Time between two computations of a live view that costs several times as much (`python -m bench dashboard`): an open
page must cost less than 2 % of a core.
"""
COSTLY: Final = frozenset({"topics", "subscription"})


def add_dashboard(
    app: web.Application, cluster: str, topology: Callable[[], Topology], guarding: Guarding | None
) -> None:
    """Add the dashboard to a worker's application. Call it where requests to workers carry this worker's
    credentials.
    """
    access_control = AccessControl(cluster, Sessions(), guarding)
    fan_out = FanOut(topology)
    switches = Switches(fan_out)
    drilling = Drilling(fan_out, cluster)
    feeds: Feeds[Parts] = Feeds(Views(fan_out, switches, drilling).compute, period_seconds=_period)
    pages = Pages(access_control, feeds, fan_out)
    app[SHOWN_BY_BROWSER] = access_control.shown_by_browser
    app.middlewares.insert(
        app.middlewares.index(report_errors) + 1, access_control.as_pages()
    )  # before errors become JSON

    async def close(app: web.Application) -> None:
        pages.close()
        await drilling.close()
        await switches.close()
        await fan_out.close()

    app.on_shutdown.append(close)
    app.add_routes(
        [
            web.get("/dashboard/static/{file}", static),
            web.get(SIGN_IN, access_control.show_sign_in),
            web.post(SIGN_IN, access_control.sign_in),
            web.post("/dashboard/sign-out", access_control.sign_out),
            *pages.routes(),
            *LinkActions(access_control, feeds, fan_out).routes(),
            *FailoverPages(access_control, pages, fan_out, switches).routes(),
            *PolicyPages(access_control, fan_out).routes(),
            *PolicyActions(access_control, feeds, fan_out).routes(),
            *NamespaceActions(access_control, feeds, fan_out).routes(),
            *PermissionActions(access_control, fan_out).routes(),
            *DrillPages(access_control, fan_out).routes(),
            *DrillActions(access_control, pages, drilling).routes(),
            *RecordPages(access_control, fan_out).routes(),
        ]
    )
    app.router.add_get("/", _for_readers(pages.map))


def _period(view: str) -> float:
    return COSTLY_SECONDS if view.partition("?")[0] in COSTLY else LIVE_SECONDS


def _for_readers(page: Handler) -> Handler:
    """Return a handler that shows ``page`` to clients which accept HTML. Other programs that ask for ``/`` get 404, as
    before there was a page.
    """

    async def shown(request: web.Request) -> web.StreamResponse:
        """Show the dashboard's map to clients that accept HTML."""
        if not wants_page(request):
            raise web.HTTPNotFound
        return await page(request)

    return shown


async def static(request: web.Request) -> web.StreamResponse:
    """Answer with styles, scripts and their licences from the package."""
    file = STATIC / request.match_info["file"]
    if file.parent != STATIC or file.suffix not in _TYPES or not file.is_file():
        raise web.HTTPNotFound
    headers = {"Content-Type": f"{_TYPES[file.suffix]}; charset=utf-8", "Cache-Control": f"max-age={STATIC_SECONDS}"}
    return web.FileResponse(file, headers=headers)
