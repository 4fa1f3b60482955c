"""``POST /replication/v1/left-out``: an operator passes over one entry that the brokers beside this worker refuse."""

from __future__ import annotations

from typing import Any, Final, Protocol

from aiohttp import web

from replicator.apache.errors import NotBridged
from replicator.api.errors import BadRequest
from replicator.engine.topic_name import parse_topic
from snapshots.errors import InvalidPosition
from snapshots.position import Position

LEFT_OUT_ROUTE: Final = "/replication/v1/left-out"


class EntrySkipper(Protocol):
    """The bridge to Apache Pulsar's brokers, as far as it passes over entries."""

    async def leave_out(self, topic: str, cluster: str, position: Position) -> dict[str, Any]:
        """Pass over the entry of ``cluster`` that the brokers refuse, and return the record of it."""


def add_left_out(app: web.Application, bridge: EntrySkipper | None) -> None:
    """Add the route to ``app``. ``bridge`` is None if the worker does not run beside brokers."""

    async def left_out(request: web.Request) -> web.Response:
        """Record the refused entry of a topic as left out at the brokers; what follows it is published.

        The answer is 409 ``EntryNotRefused`` if the brokers do not refuse that entry.
        """
        try:
            body = await request.json()
            topic, cluster, position = body["topic"], body["cluster"], Position.parse(body["entry"])
        except (ValueError, KeyError, TypeError, AttributeError, InvalidPosition, RecursionError):
            raise BadRequest(
                "the body must be a JSON object with the fields topic, cluster and entry, a position"
            ) from None
        if not isinstance(topic, str) or not isinstance(cluster, str):
            raise BadRequest("fields topic and cluster must be text")
        if bridge is None:
            raise NotBridged(
                "this worker runs beside no Apache Pulsar brokers: ask the worker of a cluster of `kind: pulsar`"
            )
        return web.json_response(await bridge.leave_out(str(parse_topic(topic)), cluster, position))

    app.router.add_post(LEFT_OUT_ROUTE, left_out)
