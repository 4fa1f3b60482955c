"""Routes of operators about the topics that a worker bridges to Apache Pulsar brokers: how one stands, and renewing it.

The renewal is described in :mod:`replicator.apache.renewing`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from aiohttp import web

from replicator.apache.errors import BridgeError, NotBridged
from replicator.apache.renewing import Renewal
from replicator.api.audit import OPERATOR, Audit
from replicator.api.errors import BadRequest, error_response
from replicator.engine.topic_name import parse_topic

STATUS_ROUTE: Final = "/replication/v1/bridge"
RENEW_ROUTE: Final = "/replication/v1/bridge/renew"


class Bridging(Protocol):
    """Interface of the bridge between a worker and its brokers to these routes."""

    def named(self, topic: str) -> list[str]: ...
    def topic_status(self, topic: str) -> dict[str, Any]: ...
    async def renew(self, topic: str, *, dry_run: bool) -> Renewal: ...


def add_bridge(app: web.Application, cluster: str, bridge: Bridging | None, audit: Audit) -> None:
    """Add the routes to ``app``. ``bridge`` is None if the worker of ``cluster`` serves its clients itself."""

    def named(topic: object) -> tuple[Bridging, Sequence[str]]:
        if not isinstance(topic, str) or not topic:
            raise BadRequest("topic must be the name of a topic")
        if bridge is None:
            raise NotBridged(f"the worker of {cluster!r} runs beside no brokers: it bridges no topics")
        return bridge, bridge.named(str(parse_topic(topic)))

    async def show(request: web.Request) -> web.Response:
        """Answer with the status of ``?topic=TOPIC`` at the brokers beside this worker, or of each of its
        partitions."""
        bridge, topics = named(request.query.get("topic"))
        return web.json_response({"cluster": cluster, "topics": [bridge.topic_status(topic) for topic in topics]})

    async def renew(request: web.Request) -> web.Response:
        """Get a topic going again whose reading has halted, or each of its partitions, and answer how.

        The body names the ``topic``, and with ``dry_run`` nothing is changed. The answer is 503 ``BrokersSilent`` if
        the brokers do not answer.
        """
        try:
            body = await request.json()
            topic, dry_run = body["topic"], body.get("dry_run", False)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise BadRequest("the body is not an object with topic in JSON") from None
        if not isinstance(dry_run, bool):
            raise BadRequest("dry_run must be true or false")
        bridge, topics = named(topic)
        renewals: list[dict[str, str]] = []
        try:
            for each in topics:
                renewal = await bridge.renew(each, dry_run=dry_run)
                renewals.append({"topic": each, "way": renewal.way.value, "text": renewal.text})
                if not dry_run:
                    audit(OPERATOR, "renew bridge", each, {"way": renewal.way.value})
        except BridgeError as error:
            return error_response("BrokersSilent", str(error), 503)
        return web.json_response({"cluster": cluster, "renewals": renewals})

    app.router.add_get(STATUS_ROUTE, show)
    app.router.add_post(RENEW_ROUTE, renew)
