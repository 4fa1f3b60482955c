"""All topics of a worker, looked at in slices between which others have their turn: ten thousand take a second."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from aiohttp import web

from replicator.engine.engine import Engine
from replicator.engine.topic import Topic
from replicator.engine.topic_name import EPOCHS_TOPIC
from replicator.running.pacing import Pace

_T = TypeVar("_T")


async def topics_in_slices(engine: Engine) -> AsyncIterator[Topic]:
    """Yield every topic, except that of the service itself, and those that are deleted meanwhile."""
    async for topic in in_slices(engine, engine.topics()):
        if topic.deleted is None and topic.name != EPOCHS_TOPIC:
            yield topic


async def in_slices(engine: Engine, each: Iterable[_T]) -> AsyncIterator[_T]:
    """Yield each element of ``each``, with pauses in which others have their turn. All who ask for much at the same
    time share the event loop's time with the worker's clients (:mod:`replicator.running.turns`).
    """
    pace = Pace(engine.turns)
    for one in each:
        yield one
        if pace.due:
            await pace.pause()


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
