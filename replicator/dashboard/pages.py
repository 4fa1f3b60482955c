"""Pages that show live views, and the stream of their changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from aiohttp import web

from replicator.api.errors import BadRequest
from replicator.api.guarding import ending_at_expiry
from replicator.api.topic_figures import SEARCH_CHARS_MAX
from replicator.dashboard.access_control import AccessControl
from replicator.dashboard.fan_out import FanOut
from replicator.dashboard.feeds import Feeds
from replicator.dashboard.rendering import parts_for, url
from replicator.dashboard.views import Parts
from replicator.engine.errors import EngineError
from replicator.engine.topic_name import check_subscription_name, parse_topic
from replicator.running.timeouts import timeout

TOLD: Final[Mapping[str, str]] = {
    "pause": "The link is paused, also after a restart. What is not copied is kept.",
    "resume": "The link goes on.",
    "keep-both": "The gap is ended: the topic goes on with the new messages, and the earlier ones stay where they are.",
    "skip-and-record": "The gap is ended: the topic goes on without what was missing.",
    "copy-anew": "The gap is ended: the copy was deleted, and the topic is copied anew.",
}
"""Texts of a link's page after a change: nothing else can come from its address."""
STREAMS_MAX: Final = 100
"""Open pages that are told of changes; one more is told to load itself again now and then."""
KEY_CHARS_MAX: Final = 2_000
WRITE_SECONDS_MAX: Final = 10.0
"""Time limit for a browser to take what was sent; a slower one is disconnected, and comes back."""
STILL_EVERY: Final = 15
"""Periods without a change after which a stream says that it is there."""


class Pages:
    """Live pages of one worker's dashboard."""

    def __init__(self, access_control: AccessControl, feeds: Feeds[Parts], fan_out: FanOut) -> None:
        self._access_control = access_control
        self._feeds = feeds
        self._fan_out = fan_out
        self._streams: set[asyncio.Task[object]] = set()

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/dashboard/events", self.events),
            web.get("/dashboard/links", self.links),
            web.get("/dashboard/link", self.link),
            web.get("/dashboard/topics", self.topics),
            web.get("/dashboard/topic", self.topic),
            web.get("/dashboard/subscription", self.subscription),
            web.get("/dashboard/spark", self.spark),
        ]

    def close(self) -> None:
        """End all streams: otherwise the server would wait for them, and they never end."""
        for stream in self._streams:
            stream.cancel()

    async def map(self, request: web.Request) -> web.Response:
        """Show the map of clusters and links, with a table of both."""
        return await self.live(request, "map.html", "map", title="Clusters and links")

    async def links(self, request: web.Request) -> web.Response:
        """Show all links of all clusters."""
        return await self.live(request, "links.html", "links", title="Links")

    async def link(self, request: web.Request) -> web.Response:
        """Show one link: its figures, gaps, and what is not copied yet."""
        cluster, key = needed_cluster(request.query, self._fan_out), needed(request.query, "key")
        view = url("link", cluster=cluster, key=key)
        told = TOLD.get(request.query.get("done", ""), "")
        return await self.live(request, "link.html", view, title=f"Link {key}", of=cluster, key=key, told=told)

    async def topics(self, request: web.Request) -> web.Response:
        """Show topics and subscriptions of all clusters: ``?search=``, in pages."""
        search = request.query.get("search", "").strip()[:SEARCH_CHARS_MAX]
        view = url(
            "topics", search=search, after=request.query.get("after", ""), before=request.query.get("before", "")
        )
        return await self.live(request, "topics.html", view, title="Topics", search=search)

    async def topic(self, request: web.Request) -> web.Response:
        """Show one topic's subscriptions in all clusters."""
        name = str(parse_topic(needed(request.query, "topic")))
        return await self.live(request, "topic.html", url("topic", topic=name), title="Topic", name=name)

    async def subscription(self, request: web.Request) -> web.Response:
        """Show a subscription's state in all clusters, and what a failover now would do to it."""
        topic, name = (
            str(parse_topic(needed(request.query, "topic"))),
            check_subscription_name(needed(request.query, "name")),
        )
        view = url("subscription", topic=topic, name=name)
        return await self.live(request, "subscription.html", view, title="Subscription", topic=topic, name=name)

    async def spark(self, request: web.Request) -> web.Response:
        """Show Spark's driver of each cluster, and its query for each link."""
        return await self.live(request, "spark.html", "spark", title="Spark")

    async def live(self, request: web.Request, template: str, view: str, **values: Any) -> web.Response:
        """Show a page with the parts of a view, and keep it live."""
        parts = parts_for(await self._feeds.current(view), self._access_control.visit(request).form_token)
        return self._access_control.page(request, template, view=view, parts=parts, **values)

    async def events(self, request: web.Request) -> web.StreamResponse:
        """Stream the changed parts of a view each time that it is computed: ``?view=``."""
        view = needed(request.query, "view")
        if len(view) > KEY_CHARS_MAX:
            raise BadRequest("parameter view is too long: open the page anew from the dashboard")
        if len(self._streams) >= STREAMS_MAX:
            raise web.HTTPServiceUnavailable(reason="too many pages are open", headers={"Retry-After": "10"})
        await self._feeds.current(view)  # what is wrong with it is said before the stream begins
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"})
        self._access_control.visit(request)
        self._access_control.add_headers(request, response)
        stream = asyncio.current_task()
        assert stream is not None
        self._streams.add(stream)
        try:
            with ending_at_expiry(request):
                await response.prepare(request)
                await self._send(request, response, view)
        finally:
            self._streams.discard(stream)
        return response

    async def _send(self, request: web.Request, response: web.StreamResponse, view: str) -> None:
        sent: dict[str, str] = {}
        still = 0
        form_token = self._access_control.visit(request).form_token
        async for followed in self._followed(view):
            if not self._access_control.is_still_allowed(request):
                return
            parts = parts_for(followed, form_token)
            changed = {name: html for name, html in parts.items() if sent.get(name) != html}
            still = 0 if changed else still + 1
            if changed or still >= STILL_EVERY:
                still = 0
                sent |= changed
                async with timeout(WRITE_SECONDS_MAX):
                    await response.write(f"data: {json.dumps(changed)}\n\n".encode())

    async def _followed(self, view: str) -> AsyncIterator[Parts]:
        try:
            async for parts in self._feeds.follow(view):
                yield parts
        except EngineError:  # what it shows is not there any more: the page says so when it is loaded again
            return


def needed(fields: Mapping[str, str], name: str) -> str:
    """Return a parameter or a field of a form. Raise :class:`BadRequest` if it is missing."""
    value = fields.get(name, "")
    if not value:
        raise BadRequest(
            f"parameter {name} is missing in the address or the form: open the page anew from the dashboard"
        )
    return value


def needed_cluster(fields: Mapping[str, str], fan_out: FanOut, name: str = "cluster") -> str:
    """Return a parameter or field that names a cluster. Raise :class:`BadRequest` if it is missing or unknown."""
    cluster = needed(fields, name)
    if cluster not in fan_out.clusters:
        raise BadRequest(f"there is no cluster {cluster[:80]!r}; there are: {', '.join(fan_out.clusters)}")
    return cluster
