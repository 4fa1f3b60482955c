"""Policies of namespaces as the admin paths have them: a list, and one namespace's in all clusters; as of loading."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from aiohttp import web

from replicator.api.errors import BadRequest
from replicator.api.topic_figures import SEARCH_CHARS_MAX
from replicator.dashboard.asking import Asking
from replicator.dashboard.doors import Doors
from replicator.dashboard.pages import needed
from replicator.dashboard.policy_rows import namespace_page, policy_rows

NAMESPACES: Final = "/replication/v1/namespaces"
NAMESPACES_SHOWN: Final = 50


class PolicyPages:
    """Of one worker's dashboard."""

    def __init__(self, doors: Doors, asking: Asking) -> None:
        self._doors = doors
        self._asking = asking

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/dashboard/policies", self.policies), web.get("/dashboard/namespace", self.namespace)]

    async def policies(self, request: web.Request) -> web.Response:
        """The namespaces of all clusters, and where policies are set or differ: ``?search=``, in pages."""
        search, after = request.query.get("search", "").strip()[:SEARCH_CHARS_MAX], request.query.get("after", "")
        asked = {"search": search, "after": after, "limit": str(NAMESPACES_SHOWN + 1)}
        answers = await self._asking.ask_all(NAMESPACES, {name: value for name, value in asked.items() if value})
        page = namespace_page(list(answers), answers, NAMESPACES_SHOWN)
        return self._doors.page(request, "policies.html", title="Policies", page=page, search=search, after=after)

    async def namespace(self, request: web.Request) -> web.Response:
        """One namespace's policies in all clusters: ``?name=tenant/namespace``."""
        name = needed(request.query, "name")
        tenant, _, rest = name.partition("/")
        if len(name) > SEARCH_CHARS_MAX or not tenant.strip(".") or not rest.strip(".") or "/" in rest:
            raise BadRequest(f"{name[:80]!r} is not the name of a namespace: tenant/namespace")
        path = f"/admin/v2/namespaces/{quote(tenant, safe='')}/{quote(rest, safe='')}"
        clusters, rows, silent = policy_rows(await self._asking.ask_all(path))
        return self._doors.page(
            request, "namespace.html", title=f"Policies of {name}", clusters=clusters, rows=rows, silent=silent
        )
