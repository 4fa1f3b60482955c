"""Pages of policies: a list of namespaces, and the effective policies of one namespace or topic in all clusters; as of
loading.
"""

from __future__ import annotations

from typing import Final

from aiohttp import web

from replicator.api.errors import BadRequest
from replicator.api.topic_figures import SEARCH_CHARS_MAX
from replicator.dashboard.access_control import AccessControl
from replicator.dashboard.fan_out import FanOut
from replicator.dashboard.form_state import change_message
from replicator.dashboard.namespace_actions import DELETED, MADE
from replicator.dashboard.pages import needed
from replicator.dashboard.policy_rows import namespace_page, policy_rows
from replicator.dashboard.policy_targets import NAMESPACES, Target, standings, target_of
from replicator.dashboard.rendering import short_topic

NAMESPACES_SHOWN: Final = 50


class PolicyPages:
    """Policy pages of one worker's dashboard."""

    def __init__(self, access_control: AccessControl, fan_out: FanOut) -> None:
        self._access_control = access_control
        self._fan_out = fan_out

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/dashboard/policies", self.policies),
            web.get("/dashboard/namespace", self.namespace),
            web.get("/dashboard/topic-policies", self.topic),
        ]

    async def policies(self, request: web.Request) -> web.Response:
        """Show the namespaces of all clusters, and where policies are set or differ: ``?search=``, in pages."""
        search, after = request.query.get("search", "").strip()[:SEARCH_CHARS_MAX], request.query.get("after", "")
        asked = {"search": search, "after": after, "limit": str(NAMESPACES_SHOWN + 1)}
        answers = await self._fan_out.ask_all(NAMESPACES, {name: value for name, value in asked.items() if value})
        page = namespace_page(list(answers), answers, NAMESPACES_SHOWN)
        told = change_message(request, self._fan_out.clusters, {"deleted": DELETED})
        return self._access_control.page(
            request, "policies.html", title="Policies", page=page, search=search, after=after, told=told
        )

    async def namespace(self, request: web.Request) -> web.Response:
        """Show the effective policies of one namespace in all clusters: ``?name=tenant/namespace``."""
        name = needed(request.query, "name")
        if len(name) > SEARCH_CHARS_MAX:
            raise BadRequest(
                f"parameter name has {len(name)} characters; a namespace's name has {SEARCH_CHARS_MAX} at most"
            )
        return await self._of(request, target_of({"namespace": name}))

    async def topic(self, request: web.Request) -> web.Response:
        """Show the effective policies of one topic in all clusters: ``?topic=``."""
        return await self._of(request, target_of({"topic": needed(request.query, "topic")}))

    async def _of(self, request: web.Request, target: Target) -> web.Response:
        found, silent = await standings(self._fan_out, target)
        return self._access_control.page(
            request,
            "policies_of.html",
            title=f"Policies of {short_topic(target.name)}",
            target=target,
            clusters=list(found),
            rows=policy_rows(target.policies, found),
            silent=list(silent.values()),
            told=change_message(request, self._fan_out.clusters, {"made": MADE}),
        )
