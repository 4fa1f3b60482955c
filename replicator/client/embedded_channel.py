"""Channels over an engine in this process: ``embedded:PATH``."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, Final

from replicator.client.channel import ConsumerEvents, ProducerEvents
from replicator.client.errors import AlreadyClosed, ConnectError, from_engine
from replicator.client.settings import ConsumerSettings, ProducerSettings
from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.engine.subscription import EngineConsumer
from replicator.engine.topic import Topic
from replicator.engine.types import Ack, Delivery
from snapshots.position import Position

ENTRIES_PER_PUBLISH_MAX: Final = 1_000


class EmbeddedConnector:
    """Opens the engine with the first channel, and closes it at the end; one event loop owns it."""

    def __init__(self, path: Path, cluster: str) -> None:
        self._path = path
        self._cluster = cluster
        self._opening = asyncio.Lock()
        self._engine: Engine | None = None
        self._closed = False

    async def open_producer(self, settings: ProducerSettings) -> EmbeddedProducerChannel:
        engine = await self._open()
        try:
            return EmbeddedProducerChannel(await engine.topic(settings.topic))
        except EngineError as error:
            raise from_engine(error) from error

    async def open_consumer(self, settings: ConsumerSettings) -> EmbeddedConsumerChannel:
        engine = await self._open()
        channel = EmbeddedConsumerChannel()
        try:
            topic = await engine.topic(settings.topic)
            channel.consumer = await topic.subscribe(
                settings.subscription,
                settings.consumer_type,
                settings.consumer_name,
                channel.deliver,
                initial=settings.initial_position,
                replicated=settings.replicated,
                properties=dict(settings.properties),
            )
        except EngineError as error:
            raise from_engine(error) from error
        return channel

    async def close(self) -> None:
        self._closed = True
        async with self._opening:
            engine, self._engine = self._engine, None
            if engine is not None:
                await engine.close()

    async def _open(self) -> Engine:
        async with self._opening:
            if self._closed:
                raise AlreadyClosed("the client is closed")
            if self._engine is None:
                try:
                    self._engine = await Engine.open(self._path, cluster=self._cluster)
                except EngineError as error:
                    raise from_engine(error) from error
            return self._engine


class _Tasks:
    """The running calls of one channel; keeps them alive, and silences what comes after the end."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()
        self.ended = False

    def start(self, call: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(call)
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def wait(self) -> None:
        if self._running:
            await asyncio.wait(self._running)


class EmbeddedProducerChannel:
    """Entries of one tick of the event loop go to the engine in one call, in order."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self._events: ProducerEvents | None = None
        self._gathered: list[tuple[int, bytes]] = []
        self._tasks = _Tasks()

    def start(self, events: ProducerEvents) -> None:
        self._events = events

    def publish(self, entry_id: int, entry: bytes) -> None:
        if not self._gathered:
            asyncio.get_running_loop().call_soon(self._publish_gathered)
        self._gathered.append((entry_id, entry))

    async def close(self) -> None:
        self._publish_gathered()
        self._events = None
        await self._tasks.wait()

    def _publish_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        for at in range(0, len(gathered), ENTRIES_PER_PUBLISH_MAX):
            self._tasks.start(self._publish(gathered[at : at + ENTRIES_PER_PUBLISH_MAX]))

    async def _publish(self, group: list[tuple[int, bytes]]) -> None:
        try:
            positions = await self._topic.publish([entry for _, entry in group])
        except EngineError as error:
            for entry_id, _ in group:
                if self._events is not None:
                    self._events.on_refused(entry_id, from_engine(error))
            return
        for (entry_id, _), position in zip(group, positions, strict=True):
            if self._events is not None:
                self._events.on_receipt(entry_id, position)


class EmbeddedConsumerChannel:
    """Passes calls straight to the engine's consumer, and its deliveries straight back."""

    def __init__(self) -> None:
        self.consumer: EngineConsumer | None = None
        self._events: ConsumerEvents | None = None
        self._tasks = _Tasks()

    def start(self, events: ConsumerEvents) -> None:
        self._events = events
        self._connected().on_closed = self._closed

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """The engine has entries; it only has with permits, and those come after :meth:`start`."""
        if self._events is not None:
            self._events.on_deliveries(deliveries)

    def flow(self, permits: int) -> None:
        self._connected().flow(permits)

    def acknowledge(self, request_id: int, acks: Sequence[Ack]) -> None:
        self._tasks.start(self._answer(request_id, self._connected().acknowledge(acks)))

    def acknowledge_cumulative(self, request_id: int, position: Position, batch_index: int | None) -> None:
        self._tasks.start(self._answer(request_id, self._connected().acknowledge_cumulative(position, batch_index)))

    def redeliver(self, positions: Sequence[Position] | None) -> None:
        # Deliveries are handed over without a queue in between, so all that come later belong to the redelivery.
        if positions is None and self._events is not None:
            self._events.on_redelivery_started()
        self._connected().redeliver(positions)

    async def unsubscribe(self) -> None:
        consumer = self._connected()
        consumer.on_closed = None
        try:
            await consumer.unsubscribe()
        except EngineError as error:
            consumer.on_closed = self._closed
            raise from_engine(error) from error

    async def close(self) -> None:
        self._events = None
        if self.consumer is not None:
            self.consumer.close()
        await self._tasks.wait()

    def _connected(self) -> EngineConsumer:
        assert self.consumer is not None
        return self.consumer

    def _closed(self, reason: str) -> None:
        events, self._events = self._events, None
        if events is not None:
            events.on_lost(ConnectError(f"the engine closed the consumer: {reason}"))

    async def _answer(self, request_id: int, call: Coroutine[Any, Any, None]) -> None:
        try:
            await call
        except EngineError as error:
            if self._events is not None:
                self._events.on_ack_refused(request_id, from_engine(error))
            return
        if self._events is not None:
            self._events.on_ack_confirmed(request_id)
