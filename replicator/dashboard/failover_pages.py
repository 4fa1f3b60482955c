"""The pages that guide through a failover: choose, dry run, confirm by typing, progress, result."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from replicator.api.errors import BadRequest
from replicator.dashboard.access_control import AccessControl, see_other
from replicator.dashboard.fan_out import FanOut
from replicator.dashboard.pages import Pages, needed, needed_cluster
from replicator.dashboard.rendering import url
from replicator.dashboard.switching import KINDS, NotTyped, Switches, SwitchRun, Wanted

OPERATOR: Final = "operator"
"""Name, as in the audit log, for users of a worker without authentication."""


class FailoverPages:
    """Failover pages of one worker's dashboard."""

    def __init__(self, access_control: AccessControl, pages: Pages, fan_out: FanOut, switches: Switches) -> None:
        self._access_control = access_control
        self._pages = pages
        self._fan_out = fan_out
        self._switches = switches

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/dashboard/failover", self.choose),
            web.post("/dashboard/failover/dry-run", self.dry_run),
            web.get("/dashboard/failover/run", self.show_run),
            web.post("/dashboard/failover/switch", self.switch),
        ]

    async def choose(self, request: web.Request) -> web.Response:
        """Show which cluster serves whose clients, the switches made here, and the form that begins a failover with a
        dry run.
        """
        clusters = self._fan_out.clusters
        return await self._pages.live(request, "failover.html", "failover", title="Failover", clusters=clusters)

    async def dry_run(self, request: web.Request) -> web.Response:
        """Try a switch without changing anything."""
        fields = await self._access_control.form(request)
        kind = needed(fields, "kind")
        if kind not in KINDS:
            raise BadRequest(f"the form's field kind must be one of {', '.join(KINDS)}")
        source = "" if kind == "failback" else needed_cluster(fields, self._fan_out, "from")
        target = needed_cluster(fields, self._fan_out, "to")
        wanted = Wanted(kind, source, target, keep_consumers=fields.get("keep_consumers") == "yes")
        visit = self._access_control.visit(request)
        run = self._switches.dry_run(wanted, shown=visit.shown, who=visit.role or OPERATOR)
        return see_other(_address(run))

    async def show_run(self, request: web.Request) -> web.Response:
        """Show a dry run or a switch: its progress, its result, and the next step."""
        return await self._run_page(request, self._switches.find(needed(request.query, "id")))

    async def switch(self, request: web.Request) -> web.Response:
        """Make the switch that a dry run tried, after the cluster's name was typed."""
        fields = await self._access_control.form(request)
        run_id, visit = needed(fields, "id"), self._access_control.visit(request)
        try:
            run = self._switches.switch(run_id, fields.get("typed", ""), shown=visit.shown, who=visit.role or OPERATOR)
        except NotTyped as error:
            return await self._run_page(request, self._switches.find(run_id), reason=str(error), status=error.status)
        return see_other(_address(run))

    async def _run_page(
        self, request: web.Request, run: SwitchRun, *, reason: str = "", status: int = 200
    ) -> web.Response:
        title = f"{'Dry run' if run.dry else 'Switch'}: {run.wanted}"
        view = url("failover-run", id=run.run_id)
        return await self._pages.live(
            request, "failover_run.html", view, title=title, run=run, reason=reason, status=status
        )


def _address(run: SwitchRun) -> str:
    return url("/dashboard/failover/run", id=run.run_id)
