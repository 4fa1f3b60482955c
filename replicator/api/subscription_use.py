"""``POST /replication/v1/subscription-use``: how many consumers a replicated subscription has in this cluster.

The worker of another cluster asks this before it deletes the subscription without force. The messages are in
:mod:`replicator.sync.use_elsewhere`, for both sides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from aiohttp import web

from replicator.apache.errors import BridgeError
from replicator.api.errors import BadRequest, error_response
from replicator.api.guarding import READING, check_may
from replicator.api.slices import in_slices
from replicator.engine.engine import Engine
from replicator.sync.use_elsewhere import ROUTE, UseAnswer, UseQuestion


class ConsumersAtBrokers(Protocol):
    """Interface of the Apache Pulsar brokers beside a worker: clients of this cluster connect to them."""

    async def consumers_at_brokers(self, subscription: str, topics: Sequence[str]) -> Mapping[str, int]:
        """Return how many consumers applications have on ``subscription``, for each of ``topics`` that has some.

        Raises :class:`BridgeError` if the brokers do not answer.
        """


def add_subscription_use(app: web.Application, engine: Engine, brokers: ConsumersAtBrokers | None) -> None:
    """Add the route to ``app``; it counts consumers at ``brokers`` if Apache Pulsar serves this cluster's clients.

    If ``brokers`` is None, it counts the consumers of ``engine``.
    """

    async def subscription_use(request: web.Request) -> web.Response:
        """Answer how many consumers a replicated subscription has here, by topic; topics without any are left out.

        The answer is 503 ``BrokersSilent`` if the brokers do not answer.
        """
        try:
            question = UseQuestion.from_json(await request.json())
        except (ValueError, RecursionError) as error:
            raise BadRequest(f"the body must be a JSON object with subscription and topics: {error}"[:300]) from None
        for topic in question.topics:
            check_may(request, READING, topic)
        if brokers is not None:
            try:
                consumers = await brokers.consumers_at_brokers(question.subscription, question.topics)
            except BridgeError as error:
                return error_response("BrokersSilent", str(error), 503)
        else:
            consumers = await _consumers(engine, question)
        return web.json_response(UseAnswer(engine.cluster, consumers).to_json())

    app.router.add_post(ROUTE, subscription_use)


async def _consumers(engine: Engine, question: UseQuestion) -> dict[str, int]:
    found: dict[str, int] = {}
    async for name in in_slices(engine, question.topics):
        topic = engine.find(name)
        subscription = None if topic is None else topic.subscriptions.get(question.subscription)
        if subscription is not None and subscription.replicated and subscription.consumers:
            found[name] = len(subscription.consumers)
    return found
