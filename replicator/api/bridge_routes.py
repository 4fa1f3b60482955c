"""Routes of operators about topics that a worker bridges to Apache Pulsar brokers: how one stands, and renewing it.

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
ACKNOWLEDGE_ROUTE: Final = "/replication/v1/bridge/acknowledge-missing"


class Bridging(Protocol):
    """Interface of the bridge between a worker and its brokers to these routes."""

    def named(self, topic: str) -> list[str]: ...
    def topic_status(self, topic: str) -> dict[str, Any]: ...
    async def renew(self, topic: str, *, dry_run: bool) -> Renewal: ...
    async def acknowledge_missing(self, topic: str) -> list[dict[str, Any]]: ...


def add_bridge(app: web.Application, cluster: str, bridge: Bridging | None, audit: Audit) -> None:
    """Add the routes to ``app``. ``bridge`` is None if the worker of ``cluster`` serves its clients itself."""

    def named(topic: object) -> tuple[Bridging, Sequence[str]]:
        if not isinstance(topic, str) or not topic:
            raise BadRequest("field topic must be the name of a topic")
        if bridge is None:
            raise NotBridged(
                f"the worker of {cluster!r} runs beside no Apache Pulsar brokers, so it bridges no topics: ask the "
                "worker of a cluster of `kind: pulsar`"
            )
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
        body = await topic_in_body(request)
        topic, dry_run = body["topic"], body.get("dry_run", False)
        if not isinstance(dry_run, bool):
            raise BadRequest("field dry_run must be true or false")
        bridge, topics = named(topic)
        renewals: list[dict[str, str]] = []
        try:
            for each in topics:
                renewal = await bridge.renew(each, dry_run=dry_run)
                renewals.append({"topic": each, "way": renewal.way.value, "text": renewal.text})
                if not dry_run:
                    audit(OPERATOR, "renew bridge", each, {"way": renewal.way.value})
        except BridgeError as error:
            done = [each["topic"] for each in renewals if not dry_run]
            before = f"; renewed before that: {', '.join(done)}" if done else ""
            return error_response("BrokersSilent", f"{error}{before}", 503)
        return web.json_response({"cluster": cluster, "renewals": renewals})

    async def acknowledge_missing(request: web.Request) -> web.Response:
        """Stop naming the places where messages of a topic may be missing, and answer with them.

        The body names the ``topic``, or a partitioned one. An operator says by it that they know of these places.
        """
        bridge, topics = named((await topic_in_body(request))["topic"])
        found: list[dict[str, Any]] = []
        for each in topics:
            places = await bridge.acknowledge_missing(each)
            found.append({"topic": each, "places": places})
            if places:
                audit(OPERATOR, "acknowledge missing", each, {"places": places})
        return web.json_response({"cluster": cluster, "topics": found})

    app.router.add_post(ACKNOWLEDGE_ROUTE, acknowledge_missing)
    app.router.add_get(STATUS_ROUTE, show)
    app.router.add_post(RENEW_ROUTE, renew)


async def topic_in_body(request: web.Request) -> dict[str, Any]:
    """Return the body of ``request``, an object with a topic."""
    try:
        body = await request.json()
        if isinstance(body, dict) and "topic" in body:
            return body
    except (ValueError, RecursionError):
        pass
    raise BadRequest("the body must be a JSON object with the field topic")
