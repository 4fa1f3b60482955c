"""All topics of a worker, looked at in slices between which others have their turn: ten thousand take a second."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

from aiohttp import web

from replicator.engine.engine import Engine
from replicator.engine.topic import Topic
from replicator.engine.topic_name import EPOCHS_TOPIC

SLICE_SECONDS: Final = 0.005


async def topics_in_slices(engine: Engine) -> AsyncIterator[Topic]:
    """Every topic but that of the service itself, and those that are deleted meanwhile."""
    until = time.perf_counter() + SLICE_SECONDS
    for topic in engine.topics():
        if topic.deleted is None and topic.name != EPOCHS_TOPIC:
            yield topic
        if time.perf_counter() >= until:
            await asyncio.sleep(0)
            until = time.perf_counter() + SLICE_SECONDS


def json_object(fields: Mapping[str, Any], name: str, rows: Mapping[str, str]) -> web.Response:
    """Return an answer whose JSON object has ``fields``, and an object of ``rows`` as its field ``name``.

    Each value of ``rows`` is JSON text already. The caller encodes rows slice by slice: ten thousand at once would stop
    the event loop for a tenth of a second.
    """
    inside = ", ".join(f"{json.dumps(key)}: {row}" for key, row in rows.items())
    return _joined(fields, name, "{" + inside + "}")


def json_list(fields: Mapping[str, Any], name: str, rows: Sequence[str]) -> web.Response:
    """Return an answer whose JSON object has ``fields``, and a list of ``rows`` as its field ``name``.

    Each of ``rows`` is JSON text already; see :func:`json_object`.
    """
    return _joined(fields, name, "[" + ", ".join(rows) + "]")


def _joined(fields: Mapping[str, Any], name: str, inside: str) -> web.Response:
    head = json.dumps(fields)[:-1]
    comma = ", " if fields else ""
    return web.Response(text=f"{head}{comma}{json.dumps(name)}: {inside}}}", content_type="application/json")
