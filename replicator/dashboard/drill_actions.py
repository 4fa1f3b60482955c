"""Actions on drills: starting one, watching it, and ending it.

Every change is a form that bears the token of its browser; what the drill asks of workers is asked with what the
browser's owner showed (:mod:`replicator.dashboard.drilling`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from aiohttp import web

from replicator.dashboard.access_control import AccessControl, see_other
from replicator.dashboard.drilling import (
    MESSAGES_MAX,
    MESSAGES_MIN,
    RATE_MAX,
    RATE_MIN,
    Drilling,
    DrillRefused,
    DrillRun,
)
from replicator.dashboard.failover_pages import OPERATOR
from replicator.dashboard.pages import Pages, needed
from replicator.dashboard.rendering import url
from replicator.dashboard.runs import NotNow

USUAL: Final[Mapping[str, str]] = {"namespace": "public/canary", "messages": "2000", "rate": "500", "typed": ""}
"""Initial values of the form."""


class DrillActions:
    """Handlers of drill actions in one worker's dashboard."""

    def __init__(self, access_control: AccessControl, pages: Pages, drilling: Drilling) -> None:
        self._access_control = access_control
        self._pages = pages
        self._drilling = drilling

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/dashboard/drills/start", self.show_form),
            web.post("/dashboard/drills/start", self.start),
            web.get("/dashboard/drills/run", self.show_run),
            web.post("/dashboard/drills/end", self.end),
        ]

    async def show_form(self, request: web.Request) -> web.Response:
        """Show the form that starts a drill, and explain what a drill does here."""
        return self._form(request, USUAL)

    async def start(self, request: web.Request) -> web.Response:
        """Start a drill in a namespace of its own."""
        fields, visit = await self._access_control.form(request), self._access_control.visit(request)
        try:
            run = self._drilling.start(fields, shown=visit.shown, who=visit.role or OPERATOR)
        except DrillRefused as error:
            return self._form(request, fields, errors={error.field: str(error)}, status=error.status)
        except NotNow as error:
            return self._form(request, fields, reason=str(error), status=error.status)
        return see_other(_address(run))

    async def show_run(self, request: web.Request) -> web.Response:
        """Show a drill that was started here, with its progress and result: ``?id=``."""
        run = self._drilling.find(needed(request.query, "id"))
        view = url("drill-run", id=run.run_id)
        return await self._pages.live(request, "drill_run.html", view, title=f"Drill in {run.namespace}", run=run)

    async def end(self, request: web.Request) -> web.Response:
        """End a drill early; it then removes its topic."""
        fields, visit = await self._access_control.form(request), self._access_control.visit(request)
        return see_other(_address(self._drilling.end(needed(fields, "id"), visit.role or OPERATOR)))

    def _form(
        self,
        request: web.Request,
        held: Mapping[str, str],
        *,
        errors: Mapping[str, str] | None = None,
        reason: str = "",
        status: int = 200,
    ) -> web.Response:
        return self._access_control.page(
            request,
            "drill_start.html",
            status=status,
            title="Start a drill",
            held={name: held.get(name, "") for name in USUAL},
            errors=errors or {},
            reason=reason,
            going=self._drilling.going,
            bounds={"messages": (MESSAGES_MIN, MESSAGES_MAX), "rate": (RATE_MIN, RATE_MAX)},
        )


def _address(run: DrillRun) -> str:
    return url("/dashboard/drills/run", id=run.run_id)
