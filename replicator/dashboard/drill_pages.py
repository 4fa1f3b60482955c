"""Drills that are kept in Postgres: a list, one report, and two side by side; as of loading."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web

from replicator.dashboard.access_control import AccessControl
from replicator.dashboard.drill_rows import drill_report, drill_rows, report_in, side_by_side
from replicator.dashboard.fan_out import FOUND_SECONDS_MAX, FanOut
from replicator.dashboard.pages import needed

DRILLS: Final = "/replication/v1/drills"
DRILLS_SHOWN: Final = 50


class DrillPages:
    """Pages of kept drills in one worker's dashboard."""

    def __init__(self, access_control: AccessControl, fan_out: FanOut) -> None:
        self._access_control = access_control
        self._fan_out = fan_out

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/dashboard/drills", self.drills),
            web.get("/dashboard/drill", self.drill),
            web.get("/dashboard/drills/compare", self.compare),
        ]

    async def drills(self, request: web.Request) -> web.Response:
        """Show the drills that any cluster's Postgres keeps, the newest first."""
        answers = await self._fan_out.ask_all(DRILLS, {"newest": str(DRILLS_SHOWN)})
        rows, silent = drill_rows(answers, DRILLS_SHOWN)
        return self._access_control.page(
            request, "drills.html", title="Drills", rows=rows, silent=silent, shown_max=DRILLS_SHOWN
        )

    async def drill(self, request: web.Request) -> web.Response:
        """Show one drill's report."""
        run_id = needed(request.query, "id")
        report = drill_report(run_id, await self._report(run_id))
        return self._access_control.page(request, "drill.html", title=f"Drill {report.scenario}", report=report)

    async def compare(self, request: web.Request) -> web.Response:
        """Show the figures of two drills side by side: ``?first=&second=``."""
        names = needed(request.query, "first"), needed(request.query, "second")
        first, second = await asyncio.gather(*(self._report(name) for name in names))
        rows = side_by_side(names, (first, second))
        return self._access_control.page(request, "drills_compared.html", title="Two drills", names=names, rows=rows)

    async def _report(self, run_id: str) -> Mapping[str, Any]:
        path = f"{DRILLS}/{quote(run_id[:64], safe='')}"
        return report_in(await self._fan_out.ask_all(path, seconds_max=FOUND_SECONDS_MAX), run_id)
