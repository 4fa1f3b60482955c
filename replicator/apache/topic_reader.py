"""Reader of all entries that the brokers have of a topic. It changes nothing there: it uses a non-durable subscription,
and acknowledges nothing.

Its name is reserved (:mod:`replicator.apache.names`), so that no bridge takes it for a subscription of applications.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from replicator.apache.admin import BrokerAdmin
from replicator.apache.arrivals import Arrivals
from replicator.apache.errors import BridgeError
from replicator.apache.flow_control import FlowControl, read_budget
from replicator.apache.names import RESERVED
from replicator.client.settings import ConsumerSettings
from replicator.client.wire.channel import ConsumerChannel
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.types import Delivery, SubscriptionType
from replicator.running.timeouts import timeout
from snapshots.position import BEFORE_ALL, Position

SILENCE_SECONDS_MAX: Final = 30.0
"""Longest silence of a broker that has more entries. Then reading fails."""
HIDDEN_SECONDS: Final = 2.0
"""Silence after which the brokers are asked whether they show the remaining entries to nobody."""


async def read_topic(
    connector: BrokerConnector,
    admin: BrokerAdmin,
    topic: str,
    upto: Position,
    take: Callable[[Sequence[Delivery]], Awaitable[None]],
) -> None:
    """Give ``take`` the entries from the first that the brokers still have up to ``upto``, in their order.

    Raises :class:`BridgeError`, :class:`PulsarException`.
    """
    name = f"{RESERVED}verify.{uuid.uuid4().hex}"
    channel = await connector.open_consumer(
        ConsumerSettings(
            topic=topic,
            subscription=name,
            consumer_name=name,
            consumer_type=SubscriptionType.EXCLUSIVE,
            durable=False,
            start=BEFORE_ALL,
            create_topic=False,
        )
    )
    events = Arrivals()
    channel.start(events)
    try:
        await _read(channel, events, admin, topic, upto, take)
    finally:
        await channel.close()


async def _read(
    channel: ConsumerChannel,
    events: Arrivals,
    admin: BrokerAdmin,
    topic: str,
    upto: Position,
    take: Callable[[Sequence[Delivery]], Awaitable[None]],
) -> None:
    permits = FlowControl(channel.flow, read_budget())
    reached, silent_seconds = BEFORE_ALL, 0.0
    while reached < upto:
        try:
            async with timeout(HIDDEN_SECONDS):
                arrived = await events.take()
        except TimeoutError:
            silent_seconds += HIDDEN_SECONDS
            if reached.ledger == upto.ledger and await admin.all_hidden(topic, reached, upto):
                return
            if silent_seconds >= SILENCE_SECONDS_MAX:
                raise BridgeError(
                    f"{topic}: the brokers sent nothing after {reached} for {silent_seconds:g} s, and have entries "
                    f"up to {upto}. The bridge tries again; if this goes on, see the brokers' log"
                ) from None
            continue
        silent_seconds, reached = 0.0, arrived[-1].position
        await take([delivery for delivery in arrived if delivery.position <= upto])
        permits.used(arrived)
        permits.grant()
