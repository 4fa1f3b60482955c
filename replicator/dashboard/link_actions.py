"""Actions on links: pausing one, resuming it, and ending a gap.

Every change is a form that bears the token of its browser, and is asked of the worker that the link leaves, with what
the browser's owner showed: that worker decides whether they may, as for any program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web

from replicator.api.errors import BadRequest
from replicator.dashboard.access_control import AccessControl, see_other
from replicator.dashboard.fan_out import Answer, FanOut
from replicator.dashboard.feeds import Feeds
from replicator.dashboard.pages import needed, needed_cluster
from replicator.dashboard.rendering import url
from replicator.dashboard.views import Parts
from replicator.engine.topic_name import parse_topic
from replicator.links.gaps import POLICIES, policies_for

PAUSING: Final = ("pause", "resume")


@dataclass(frozen=True, slots=True)
class GapResolution:
    """A way to end a gap, with what it costs."""

    policy: str
    title: str
    costs: str
    button: str


KEEP: Final = GapResolution(
    "keep-both",
    "Keep both lives of the topic",
    "The destination keeps what it has of the topic's earlier life as closed history, and gets the later one behind "
    "it. What only the source has of an earlier life stays there. Nothing is lost.",
    "Keep both",
)
SKIP: Final = GapResolution(
    "skip-and-record",
    "Go on without what is missing",
    "The destination never gets these messages over this link. They are written down as a hole at both ends, and no "
    "cluster claims to have consumed them.",
    "Skip and record",
)
ANEW: Final = GapResolution(
    "copy-anew",
    "Copy the topic anew",
    "The destination's copy is deleted with its subscriptions, and what is left at the source is copied again. What "
    "the source does not have any more is lost: the gap says how many messages go. It is refused where messages of "
    "other clusters would be lost.",
    "Delete the copy and copy anew",
)
ENDINGS: Final[Mapping[str, GapResolution]] = {each.policy: each for each in (KEEP, SKIP, ANEW)}


class LinkActions:
    """Handlers of link actions in one worker's dashboard."""

    def __init__(self, access_control: AccessControl, feeds: Feeds[Parts], fan_out: FanOut) -> None:
        self._access_control = access_control
        self._feeds = feeds
        self._fan_out = fan_out

    def routes(self) -> list[web.RouteDef]:
        return [
            web.post("/dashboard/link", self.pause_or_resume),
            web.get("/dashboard/gap", self.show_gap),
            web.post("/dashboard/gap", self.end_gap),
        ]

    async def pause_or_resume(self, request: web.Request) -> web.Response:
        """Pause a link or let it go on."""
        fields = await self._access_control.form(request)
        cluster, key = needed_cluster(fields, self._fan_out), needed(fields, "key")
        action = needed(fields, "action")
        if action not in PAUSING:
            raise BadRequest(f"the form's field action must be one of {', '.join(PAUSING)}")
        back = url("/dashboard/link", cluster=cluster, key=key)
        return await self._changed(request, cluster, key, action, None, back)

    async def show_gap(self, request: web.Request) -> web.Response:
        """Show one gap, and the ways to end it."""
        cluster, key = needed_cluster(request.query, self._fan_out), needed(request.query, "key")
        topic = str(parse_topic(needed(request.query, "topic")))
        return await self._gap_page(request, cluster, key, topic)

    async def end_gap(self, request: web.Request) -> web.Response:
        """End a gap."""
        fields = await self._access_control.form(request)
        cluster, key = needed_cluster(fields, self._fan_out), needed(fields, "key")
        topic, policy = str(parse_topic(needed(fields, "topic"))), needed(fields, "policy")
        if policy not in POLICIES:
            raise BadRequest(f"the form's field policy must be one of {', '.join(POLICIES)}")
        if fields.get("understood") != "yes":
            reason = "Nothing was changed: tick that you understand what it costs."
            return await self._gap_page(request, cluster, key, topic, reason=reason, status=400)
        back = url("/dashboard/gap", cluster=cluster, key=key, topic=topic)
        return await self._changed(request, cluster, key, "resolve", {"topic": topic, "policy": policy}, back)

    async def _changed(
        self, request: web.Request, cluster: str, key: str, action: str, body: dict[str, str] | None, back: str
    ) -> web.Response:
        """Ask for a change; then redirect to the link's page, which tells that it is done, or show why it was
        refused.
        """
        shown = self._access_control.visit(request).shown
        path = f"/replication/v1/links/{quote(key, safe='')}/{action}"
        answer = await self._fan_out.change(shown, cluster, "POST", path, body)
        self._feeds.forget()
        if not answer.good:
            return self._access_control.refused(request, answer, back)
        done = action if body is None else body["policy"]
        return see_other(url("/dashboard/link", cluster=cluster, key=key, done=done))

    async def _gap_page(
        self, request: web.Request, cluster: str, key: str, topic: str, *, reason: str = "", status: int = 200
    ) -> web.Response:
        answer = await self._fan_out.ask(cluster, f"/replication/v1/links/{quote(key, safe='')}")
        gap = gap_of(answer, topic)
        return self._access_control.page(
            request,
            "gap.html",
            status=status,
            title="End a gap",
            of=cluster,
            key=key,
            topic=topic,
            answer=answer,
            gap=gap,
            endings=() if gap is None else resolutions_of(gap),
            reason=reason,
        )


def resolutions_of(gap: Mapping[str, Any]) -> list[GapResolution]:
    """Return the ways to end ``gap`` that its link takes, in the order of the link's answer.

    A worker of an earlier version names no policies: then the kind of the gap decides.
    """
    policies = gap.get("policies")
    return [ENDINGS[each] for each in (policies_for(gap["kind"]) if policies is None else policies) if each in ENDINGS]


def gap_of(answer: Answer, topic: str) -> Mapping[str, Any] | None:
    """Return the gap of a topic from its link's answer."""
    gaps = answer.value["gaps"] if answer.good else ()
    return next((gap for gap in gaps if gap["topic"] == topic), None)
