"""Acknowledgements at a broker of messages acknowledged in other clusters. No consumer loses a message by that.

Invariants (DESIGN §3): 5 and 6, acknowledgements only add: no position is moved back, no message is delivered again.

A consumer that grants no permits is sent nothing, and may acknowledge ids that it was never sent. It has the last
priority, so that a Failover subscription does not choose it while another consumer is there, and it is there only as
long as its acknowledgements take: in a Key_Shared subscription it has hash ranges meanwhile. An Exclusive subscription
in use lets nobody in: then it is tried again later. One that is not in use is left to it only for what leaves holes
(:mod:`replicator.apache.state`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from replicator.apache.errors import BridgeError
from replicator.apache.names import applying_consumer
from replicator.client.errors import ConsumerBusy, PulsarException
from replicator.client.settings import ConsumerSettings
from replicator.client.wire.channel import ConsumerChannel
from replicator.client.wire.connector import BrokerConnector
from replicator.engine.types import Ack, Delivery, SubscriptionType
from replicator.running.timeouts import timeout
from snapshots.position import Position
from snapshots.position_set import PositionSet

IDS_PER_COMMAND: Final = 1_000
ACKS_MAX: Final = 100_000
"""Most entries of a subscription that are acknowledged at once. The next comparison acknowledges the rest."""
PRIORITY_LAST: Final = 1_000_000
ANSWER_SECONDS_MAX: Final = 30.0
_TYPES: Final = {
    "Exclusive": SubscriptionType.EXCLUSIVE,
    "Failover": SubscriptionType.FAILOVER,
    "Shared": SubscriptionType.SHARED,
    "Key_Shared": SubscriptionType.KEY_SHARED,
}


async def acknowledge_at_broker(
    connector: BrokerConnector, cluster: str, topic: str, subscription: str, kind: str, positions: PositionSet
) -> list[Position] | None:
    """Acknowledge the lowest :data:`ACKS_MAX` of ``positions``, and return them once the broker has confirmed them.

    Return None if an Exclusive consumer has the subscription. ``kind`` is its type, as the broker shows it.

    Raises :class:`BridgeError`, :class:`PulsarException`.
    """
    settings = ConsumerSettings(
        topic=topic,
        subscription=subscription,
        consumer_name=applying_consumer(cluster),
        consumer_type=_TYPES.get(kind, SubscriptionType.SHARED),
        priority=PRIORITY_LAST,
        create_topic=False,
    )
    try:
        channel = await connector.open_consumer(settings)
    except ConsumerBusy:
        return None
    acknowledger = Acknowledger(channel, f"{topic}: acknowledgements of {subscription}")
    try:
        return await acknowledger.acknowledge(positions)
    finally:
        await channel.close()


class Acknowledger:
    """Acknowledges by one consumer that grants no permits. ``lost`` says why the consumer has ended."""

    def __init__(self, channel: ConsumerChannel, acknowledgements: str, news: asyncio.Event | None = None) -> None:
        """Start the consumer on ``channel``. Errors name its ``acknowledgements``; ``news`` is set when it ends."""
        self._channel = channel
        self._acknowledgements = acknowledgements
        self._events = _Confirmations(news)
        channel.start(self._events)

    @property
    def lost(self) -> PulsarException | None:
        return self._events.error

    async def acknowledge(self, positions: PositionSet) -> list[Position]:
        """Acknowledge the lowest :data:`ACKS_MAX` positions, and return them once the broker has confirmed them."""
        chosen = positions.head(ACKS_MAX)
        for at in range(0, len(chosen), IDS_PER_COMMAND):
            self._events.asked += 1
            self._channel.acknowledge(self._events.asked, [Ack(each) for each in chosen[at : at + IDS_PER_COMMAND]])
        await self._events.all(self._acknowledgements)
        return chosen

    async def close(self) -> None:
        await self._channel.close()


class _Confirmations:
    """Counts the confirmed acknowledgements of one channel. ``over`` is set when the channel has ended."""

    def __init__(self, over: asyncio.Event | None) -> None:
        self.asked = 0
        self.error: PulsarException | None = None
        self._confirmed = 0
        self._news = asyncio.Event()
        self._over = over

    async def all(self, acknowledgements: str) -> None:
        """Wait until all are confirmed. Raises :class:`BridgeError`, or the error that ended the channel."""
        try:
            async with timeout(ANSWER_SECONDS_MAX):
                while self._confirmed < self.asked:
                    if self.error is not None:
                        raise self.error
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise BridgeError(
                f"{acknowledgements}: the brokers have not confirmed them within {ANSWER_SECONDS_MAX:g} s, and may "
                "have stored them all the same. The bridge sends them again; if this goes on, see the brokers' log"
            ) from None

    def on_ack_confirmed(self, request_id: int) -> None:
        self._confirmed += 1
        self._news.set()

    def on_ack_refused(self, request_id: int, error: PulsarException) -> None:
        self.on_lost(error)

    def on_lost(self, error: PulsarException) -> None:
        self.error = self.error or error
        self._news.set()
        if self._over is not None:
            self._over.set()

    def on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        """Ignore messages, which were not asked for: they go to others when the channel closes."""

    def on_redelivery_started(self) -> None:
        """Do nothing: nobody asks for a redelivery."""

    def on_restarted(self) -> None:
        """Do nothing: somebody moved the cursor, and the next comparison finds that."""

    def on_active_change(self, active: bool) -> None:
        """Do nothing: this consumer receives nothing."""

    def on_reached_end(self) -> None:
        """Do nothing: this consumer receives nothing."""
