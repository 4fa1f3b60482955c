"""Pages of records kept in Postgres, as of loading: the database is asked only when somebody loads a page, and never
once a second.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from replicator.api.topic_figures import SEARCH_CHARS_MAX
from replicator.dashboard.access_control import AccessControl
from replicator.dashboard.audit_rows import audit_rows
from replicator.dashboard.fan_out import FanOut

AUDIT: Final = "/replication/v1/audit"
AUDIT_ASKED: Final = 200
"""Entries of each cluster, among which a search looks: an answer is 2 MB at most."""
AUDIT_SHOWN: Final = 100


class RecordPages:
    """Pages of records in one worker's dashboard."""

    def __init__(self, access_control: AccessControl, fan_out: FanOut) -> None:
        self._access_control = access_control
        self._fan_out = fan_out

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/dashboard/audit", self.audit)]

    async def audit(self, request: web.Request) -> web.Response:
        """Show who changed what in all clusters, the newest change first: ``?search=``."""
        search = request.query.get("search", "").strip()[:SEARCH_CHARS_MAX]
        answers = await self._fan_out.ask_all(AUDIT, {"newest": str(AUDIT_ASKED)})
        rows, silent = audit_rows(answers, search, AUDIT_SHOWN)
        return self._access_control.page(
            request,
            "audit.html",
            title="Audit log",
            search=search,
            rows=rows,
            silent=silent,
            asked=AUDIT_ASKED,
            shown_max=AUDIT_SHOWN,
        )
