"""One engine reached in process or through its gateway, and events that remember what they were told."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from engine_support import TOPIC, eventually

from replicator.client.errors import PulsarException
from replicator.client.settings import ConsumerSettings, ProducerSettings
from replicator.client.wire.channel import Connector, ConsumerChannel, ProducerChannel
from replicator.client.wire.connector import BrokerConnector
from replicator.client.wire.embedded_channel import EmbeddedConnector
from replicator.engine.engine import Engine
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.engine.types import AccessMode, Delivery, InitialPosition, SubscriptionType
from replicator.gateway.connection import Addresses
from replicator.gateway.server import Gateway
from snapshots.position import Position

CONNECTION_TIMEOUT_SECONDS = 0.3
"""Shorter than what a producer that waits for its turn is made to wait in a test."""


@dataclass
class Sent:
    """A producer's side."""

    receipts: dict[int, Position] = field(default_factory=dict)
    refusals: dict[int, PulsarException] = field(default_factory=dict)
    lost: list[PulsarException] = field(default_factory=list)

    def on_receipts(self, entry_ids: Sequence[int], positions: Sequence[Position]) -> None:
        assert not self.lost, "a receipt after the loss"
        self.receipts.update(zip(entry_ids, positions, strict=True))

    def on_refused(self, entry_id: int, error: PulsarException) -> None:
        assert not self.lost, "a refusal after the loss"
        self.refusals[entry_id] = error

    def on_lost(self, error: PulsarException) -> None:
        self.lost.append(error)

    async def answered(self, *entry_ids: int) -> None:
        await eventually(lambda: {*self.receipts, *self.refusals} >= {*entry_ids}, f"an answer to {entry_ids}")


@dataclass
class Received:
    """A consumer's side: all that it was told, in order. Deliveries by their position."""

    told: list[object] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    confirmed: list[int] = field(default_factory=list)
    refused: dict[int, PulsarException] = field(default_factory=dict)
    lost: list[PulsarException] = field(default_factory=list)

    def on_deliveries(self, deliveries: Sequence[Delivery]) -> None:
        self.deliveries += deliveries
        self.told += [delivery.position for delivery in deliveries]

    def on_redelivery_started(self) -> None:
        self.told.append("redelivery started")

    def on_restarted(self) -> None:
        self.told.append("restarted")

    def on_active_change(self, active: bool) -> None:
        self.told.append("active" if active else "inactive")

    def on_ack_confirmed(self, request_id: int) -> None:
        self.confirmed.append(request_id)

    def on_ack_refused(self, request_id: int, error: PulsarException) -> None:
        self.refused[request_id] = error

    def on_lost(self, error: PulsarException) -> None:
        assert not self.lost, "lost twice"
        self.lost.append(error)

    async def hears(self, *expected: object) -> None:
        """Wait until what it was told is exactly this."""
        await eventually(lambda: len(self.told) >= len(expected), f"{expected} (told {self.told})")
        assert self.told == [*expected]


class Cluster:
    """An engine, and the connector whose channels are under test."""

    def __init__(self, connector: Connector, engine: Engine) -> None:
        self.connector = connector
        self.engine = engine

    async def topic(self) -> Topic:
        return await self.engine.topic(TOPIC)

    async def subscription(self, name: str = "s") -> Subscription:
        return (await self.topic()).subscriptions[name]

    async def producer(
        self,
        name: str | None = "p",
        access_mode: AccessMode = AccessMode.SHARED,
        topic_epoch: int | None = None,
        **settings: Any,
    ) -> tuple[ProducerChannel, Sent]:
        wanted = ProducerSettings(TOPIC, name, access_mode=access_mode, **settings)
        channel = await self.connector.open_producer(wanted, topic_epoch)
        channel.start(sent := Sent())
        return channel, sent

    async def consumer(
        self,
        subscription: str = "s",
        kind: SubscriptionType = SubscriptionType.EXCLUSIVE,
        *,
        name: str = "c",
        permits: int = 0,
        **settings: Any,
    ) -> tuple[ConsumerChannel, Received]:
        settings.setdefault("initial_position", InitialPosition.EARLIEST)
        channel = await self.connector.open_consumer(ConsumerSettings(TOPIC, subscription, name, kind, **settings))
        channel.start(received := Received())
        if permits:
            channel.flow(permits)
        return channel, received


@asynccontextmanager
async def served(engine: Engine) -> AsyncIterator[str]:
    """The gateway of an engine on a port of its own; the URL."""
    bound = socket.create_server(("127.0.0.1", 0))
    url = f"pulsar://127.0.0.1:{bound.getsockname()[1]}"
    gateway = Gateway(engine, Addresses(url))
    await gateway.listen(bound)
    try:
        yield url
    finally:
        await gateway.stop()


@asynccontextmanager
async def reached(transport: str, path: Path) -> AsyncIterator[Cluster]:
    """A cluster with its data in ``path``, over ``embedded`` or ``broker`` channels."""
    if transport == "embedded":
        embedded = EmbeddedConnector(path, "us-east")
        try:
            yield Cluster(embedded, await embedded.engine())
        finally:
            await embedded.close()
        return
    engine = await Engine.open(path, cluster="us-east")
    try:
        async with served(engine) as url:
            connector = BrokerConnector(
                url, connection_timeout_seconds=CONNECTION_TIMEOUT_SECONDS, operation_timeout_seconds=10
            )
            try:
                yield Cluster(connector, engine)
            finally:
                await connector.close()
    finally:
        await engine.close()


async def pause_longer_than_connecting_may_take() -> None:
    await asyncio.sleep(CONNECTION_TIMEOUT_SECONDS * 2)
