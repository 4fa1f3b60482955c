"""Questions of operators about the links that leave this cluster: their figures, pausing them, and ending gaps.

Destinations also ask whether a link wants their copy of a topic deleted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from aiohttp import web

from replicator.api.errors import BadRequest
from replicator.engine.errors import EngineError
from replicator.engine.log.store_tables import HighWater
from replicator.engine.topic_name import parse_topic
from replicator.links.gaps import POLICIES, Mark
from replicator.links.json_types import LinkStatus
from replicator.links.status import BACKLOGS_SHOWN_MAX
from replicator.peering.lives import COPIED_ANEW_ROUTE, OriginMarks
from replicator.peering.topic_summary import LaggingTopic
from replicator.topology import Link


class LinkNotFound(EngineError):
    """No link of that key leaves this cluster."""

    status = 404


class NotCopiedAnew(EngineError):
    """No link to the asking cluster wants its copy of the topic deleted."""

    status = 409


class LinkControl(Protocol):
    """The part of a link that operators use."""

    @property
    def key(self) -> str: ...
    @property
    def spec(self) -> Link: ...
    def copied_anew(self, topic_name: str) -> Mapping[str, Mark] | None: ...
    def status(self) -> LinkStatus: ...
    async def backlog_by_topic(self) -> dict[str, int]: ...
    async def behind(self, limit: int) -> list[LaggingTopic]: ...
    async def pause(self) -> None: ...
    async def resume(self) -> None: ...
    async def resolve(self, topic_name: str, policy: str) -> None: ...


class LinkSource(Protocol):
    """Source of the links that leave this cluster."""

    def links(self) -> Iterable[LinkControl]:
        """Return the links that run now, in the order of the file."""


LINKS: Final[web.AppKey[LinkSource]] = web.AppKey("links")


def add_links(app: web.Application, source: LinkSource) -> None:
    """Add the routes of the links that ``source`` has."""
    app[LINKS] = source
    app.add_routes(
        [
            web.get("/replication/v1/links", list_links),
            web.get("/replication/v1/links/{key}", show_link),
            web.post("/replication/v1/links/{key}/pause", pause),
            web.post("/replication/v1/links/{key}/resume", resume),
            web.post("/replication/v1/links/{key}/resolve", resolve),
            web.get(COPIED_ANEW_ROUTE, copied_anew),
        ]
    )


async def list_links(request: web.Request) -> web.Response:
    """Answer with the links that leave this cluster."""
    return web.json_response({"links": [link.status() for link in request.app[LINKS].links()]})


async def show_link(request: web.Request) -> web.Response:
    """Answer with one link and the backlog of each of its topics that has one, the largest first."""
    link = _link(request)
    backlogs = sorted((await link.backlog_by_topic()).items(), key=lambda item: -item[1])
    return web.json_response({**link.status(), "backlog_by_topic": dict(backlogs[:BACKLOGS_SHOWN_MAX])})


async def pause(request: web.Request) -> web.Response:
    """Pause a link. The pause survives a restart."""
    link = _link(request)
    await link.pause()
    return web.json_response(link.status())


async def resume(request: web.Request) -> web.Response:
    """Let a paused link go on."""
    link = _link(request)
    await link.resume()
    return web.json_response(link.status())


async def resolve(request: web.Request) -> web.Response:
    """End the gap of a topic; answer when the topic goes on."""
    link = _link(request)
    try:
        body = await request.json()
        topic, policy = body["topic"], body["policy"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadRequest("the body must be a JSON object with the fields topic and policy") from None
    if not isinstance(topic, str) or policy not in POLICIES:
        raise BadRequest(f"field policy must be one of {', '.join(POLICIES)}, and field topic a topic's name")
    await link.resolve(str(parse_topic(topic)), policy)
    return web.json_response(link.status())


async def copied_anew(request: web.Request) -> web.Response:
    """Answer up to which positions this cluster has a topic in full, if a link to the asking cluster wants to copy it
    anew now.
    """
    topic, to = str(parse_topic(request.query.get("topic", ""))), request.query.get("to", "")
    for link in request.app[LINKS].links():
        if link.spec.destination == to and (marks := link.copied_anew(topic)) is not None:
            whole = {origin: HighWater(mark.incarnation, mark.position) for origin, mark in marks.items()}
            return web.json_response(OriginMarks(whole).as_json())
    raise NotCopiedAnew(
        f"no link to {to[:80]!r} copies {topic!r} anew now; `replicator links list` shows what the links do"
    )


def _link(request: web.Request) -> LinkControl:
    key = request.match_info["key"]
    links = list(request.app[LINKS].links())
    for link in links:
        if link.key == key:
            return link
    known = ", ".join(link.key for link in links) or "none"
    raise LinkNotFound(f"no link {key[:200]!r} leaves this cluster; there are: {known}")
