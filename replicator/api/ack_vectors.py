"""``GET /replication/v1/ack-vectors?topic=NAME``: the exact state of every replicated subscription, by identity.

What two clusters answer for an origin of which both have the same messages is equal exactly if the subscriptions agree:
so this is what tools compare. The forms are in docs/http.md.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, Protocol

from aiohttp import web

from replicator.api import data_plane
from replicator.api.errors import BadRequest
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from snapshots.ack_vector import AckVector, as_data


class AckVectors(Protocol):
    """Where the exact state comes from."""

    def vector(self, topic: Topic, subscription: Subscription) -> AckVector:
        """What is acknowledged."""

    def unconsumed(self, topic: Topic, subscription: Subscription) -> AckVector:
        """What is here and not consumed; for parts of batches, which of their messages are acknowledged."""


ACK_VECTORS: Final[web.AppKey[AckVectors]] = web.AppKey("ack_vectors", AckVectors)


def add_ack_vectors(app: web.Application, source: AckVectors) -> None:
    app[ACK_VECTORS] = source
    app.add_routes([web.get("/replication/v1/ack-vectors", ack_vectors)])


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
            "high_water": {origin: str(position) for origin, position in sorted(topic.vector().items())},
            "subscriptions": {
                each.name: _state(source, topic, each) for each in topic.subscriptions.values() if each.replicated
            },
        }
    )


def _state(source: AckVectors, topic: Topic, subscription: Subscription) -> dict[str, Any]:
    unconsumed = as_data(source.unconsumed(topic, subscription))
    return {
        "generation": subscription.cursor.generation,
        "digest": {origin: _digest(left) for origin, left in unconsumed.items()},
        "unconsumed": unconsumed,
        "vector": as_data(source.vector(topic, subscription)),
    }


def _digest(left: Any) -> str:
    return hashlib.sha256(json.dumps(left, sort_keys=True).encode()).hexdigest()[:16]
