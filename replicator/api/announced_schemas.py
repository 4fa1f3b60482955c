"""``POST /replication/v1/schemas``: a link says which schemas topics have at its source, and they are known here too.

Bounded (invariant 11): the body in bytes, its schemas and topics in number. The registry limits those of one topic.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import structlog
from aiohttp import web

from replicator.api.errors import BadRequest
from replicator.api.guarding import check_may_replicate
from replicator.api.json_in_slices import json_in_slices
from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.engine.schemas.registry import RegisteredSchema
from replicator.running.limited_log import LIMITED
from replicator.running.pacing import LinkPace, Pace

BODY_BYTES_MAX: Final = 8 * 1024 * 1024
SCHEMAS_AT_ONCE_MAX: Final = 1_000

log = structlog.get_logger(__name__)


async def take(request: web.Request, engine: Engine, source: str, note: Callable[[str, int], None]) -> web.Response:
    """Register announced schemas; answer with the reasons of refusals, by topic. ``note`` is called with a topic and
    its number of new schemas.
    """
    refused: dict[str, dict[str, str]] = {}
    pace = LinkPace(engine.turns)
    for topic, rows in (await _announced(request, pace)).items():
        await pace.step()
        try:
            check_may_replicate(request, topic)
            if news := await engine.schemas.learn(topic, rows):
                note(topic, news)
        except EngineError as error:
            LIMITED.say(log.warning, "schemas refused", source, source=source, topic=topic, reason=str(error))
            refused[topic] = {"code": error.code, "message": str(error)}
    return web.json_response({"refused": refused})


async def _announced(request: web.Request, pace: Pace) -> dict[str, list[RegisteredSchema]]:
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise web.HTTPRequestEntityTooLarge(BODY_BYTES_MAX, len(body))
    try:
        topics: dict[str, list[dict[str, Any]]] = (await json_in_slices(body, pace))["topics"]
        if len(topics) > SCHEMAS_AT_ONCE_MAX or sum(map(len, topics.values())) > SCHEMAS_AT_ONCE_MAX:
            raise BadRequest(
                f"a link announced more than {SCHEMAS_AT_ONCE_MAX} schemas or topics at once; run the same version at "
                "both ends"
            )
        return {topic: [RegisteredSchema.from_json(row) for row in rows] for topic, rows in topics.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadRequest(
            f"the body must be a JSON object with the field topics, the schemas by topic: {error}; run the same "
            "version at both ends of the link"
        ) from None
