"""Deleting this cluster's copy of a topic, so that a link can copy it anew: only if nothing is lost by it.

Invariant (DESIGN §3): 2. What the link's source published is asked for to be deleted. What anybody else published must
be whole at the source, and what was published here must not be there at all: no link brings it back to here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog
from aiohttp import web

from replicator.api.errors import BadRequest
from replicator.engine.engine import Engine
from replicator.engine.errors import NotAllowedError
from replicator.engine.log.store_tables import HighWater
from replicator.engine.topic import Topic
from snapshots.position import Position

log = structlog.get_logger(__name__)


async def delete_copy(engine: Engine, source: str, topic: Topic, there: Mapping[str, HighWater]) -> None:
    """Delete ``topic``, of which ``source`` has all of each origin in ``there``, with whoever is connected to it.

    Raises :class:`NotAllowedError`, which says what would be lost.
    """
    if (reason := would_lose(topic, source, there)) is not None:
        raise NotAllowedError(f"the copy of {topic.name!r} at {engine.cluster!r} is not deleted: {reason}")
    log.warning("the copy of a topic is deleted, to be copied anew", topic=topic.name, source=source)
    await engine.deleting.delete(topic.name, force=True, keeps_grants=True)


def would_lose(topic: Topic, source: str, there: Mapping[str, HighWater]) -> str | None:
    """What is here, and would not come back with a copy from ``source``; None if nothing is."""
    for origin, newest in topic.origins.message_vector().items():
        if origin == source:
            continue
        if origin == topic.cluster:
            if newest > topic.log.trimmed:
                return f"it has messages that were published here, up to {newest}, and no link brings those back"
            continue
        here, mark = topic.origins.high_water(origin), there.get(origin)
        incarnation = None if here is None else here.incarnation
        if mark is None or mark.incarnation != incarnation or mark.position < newest:
            return f"it has messages of {origin!r} up to {newest}, and {source!r} does not have all of them"
    return None


async def read_marks(request: web.Request) -> dict[str, HighWater]:
    """The body ``{"origins": {name: {"incarnation", "position"}}}``; raises :class:`BadRequest`."""
    try:
        body: Any = await request.json()
        return {
            str(origin): HighWater(int(mark["incarnation"]), Position.parse(mark["position"]))
            for origin, mark in body["origins"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest(f"the body is not an object with origins in JSON: {error!r:.100}") from None
