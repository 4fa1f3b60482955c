"""``GET /replication/v1/ack-vectors?topic=NAME``: the exact state of every replicated subscription, by identity.

If two clusters have the same messages of an origin, their answers for it are equal exactly if the subscriptions agree:
tools compare them. ``POST …/tell`` announces the whole state to the other clusters, such as one that has joined. The
forms are in docs/http.md.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, Protocol

from aiohttp import web

from replicator.api import data_plane
from replicator.api.errors import BadRequest
from replicator.api.slices import in_slices
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.topic_name import parse_topic
from snapshots import starts
from snapshots.ack_vector import AckVector, as_data


class AckVectors(Protocol):
    """Source of the exact state of subscriptions."""

    def vector(self, topic: Topic, subscription: Subscription) -> AckVector:
        """Return the acknowledged messages of a subscription."""

    def unconsumed(self, topic: Topic, subscription: Subscription) -> AckVector:
        """Return the messages here that the subscription has not consumed. Of a partly consumed batch, it holds the
        acknowledged messages.
        """

    def announce_all(self, topic_name: str | None = None) -> None:
        """Announce the whole state of a topic's replicated subscriptions to the other clusters; without ``topic_name``,
        of all topics.
        """


TOLD_MAX: Final = 1_000
"""Limit of topics in one request: each of them writes a marker."""

ACK_VECTORS: Final[web.AppKey[AckVectors]] = web.AppKey("ack_vectors", AckVectors)


def add_ack_vectors(app: web.Application, source: AckVectors) -> None:
    app[ACK_VECTORS] = source
    app.add_routes(
        [web.get("/replication/v1/ack-vectors", ack_vectors), web.post("/replication/v1/ack-vectors/tell", tell)]
    )


async def ack_vectors(request: web.Request) -> web.Response:
    name = request.query.get("topic")
    if not name:
        raise BadRequest("parameter topic is missing")
    topic = await request.app[data_plane.ENGINE].topic(name, create=False)
    source = request.app[ACK_VECTORS]
    return web.json_response(
        {
            "cluster": topic.cluster,
            "topic": topic.name,
            "high_water": {origin: str(position) for origin, position in sorted(topic.origins.vector().items())},
            "left_out": {
                origin: [[str(after), str(upto)] for after, upto in holes]
                for origin in topic.origins.vector()
                if (holes := topic.origins.left_out(origin))
            },
            "subscriptions": {
                each.name: _state(source, topic, each) for each in topic.subscriptions.values() if each.replicated
            },
        }
    )


async def tell(request: web.Request) -> web.Response:
    """Announce the whole state of every replicated subscription of the named topics, with the next updates."""
    try:
        names = (await request.json())["topics"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise BadRequest("the body must be a JSON object with the field topics") from None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names) or len(names) > TOLD_MAX:
        raise BadRequest(f"field topics must be a list of at most {TOLD_MAX} names of topics")
    engine, source = request.app[data_plane.ENGINE], request.app[ACK_VECTORS]
    told = 0
    async for name in in_slices(engine, names):
        if engine.find(topic := str(parse_topic(name))) is not None:
            source.announce_all(topic)
            told += 1
    return web.json_response({"told": told})


def _state(source: AckVectors, topic: Topic, subscription: Subscription) -> dict[str, Any]:
    unconsumed = as_data(source.unconsumed(topic, subscription))
    return {
        "generation": subscription.cursor.generation,
        "digest": {origin: _digest(left) for origin, left in unconsumed.items()},
        "unconsumed": unconsumed,
        "vector": as_data(source.vector(topic, subscription)),
        "starts": starts.as_data(subscription.cursor.state.starts),
        "properties": dict(subscription.cursor.state.properties),
        "read_compacted": subscription.cursor.state.read_compacted,
    }


def _digest(left: Any) -> str:
    return hashlib.sha256(json.dumps(left, sort_keys=True).encode()).hexdigest()[:16]
