"""Channels over an engine in this process: ``embedded:PATH``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, ParamSpec

from replicator.client.errors import AlreadyClosed, PulsarException, from_engine, from_loss
from replicator.client.settings import ConsumerSettings, ProducerSettings
from replicator.client.wire.channel import ConsumerEvents, ProducerEvents, ProducerReady
from replicator.client.wire.topic_watch_channel import EmbeddedTopicWatchChannel, watch_embedded
from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from replicator.engine.log.delivered import LastMessage
from replicator.engine.producing.producers import EngineProducer
from replicator.engine.producing.publishing import PUBLISH_BYTES_MAX
from replicator.engine.subscriptions.consumer import EngineConsumer
from replicator.engine.topic import Topic
from replicator.engine.topics.topic_watchers import TopicWatchers
from replicator.engine.types import Ack, Delivery
from replicator.running.short_tasks import in_background
from snapshots.position import Position

P = ParamSpec("P")

ENTRIES_PER_PUBLISH_MAX: Final = 1_000
CLOSE_SECONDS_MAX: Final = 2.0
"""Longest wait at closing for published entries. A backlog over its quota may hold them for hours."""


class EmbeddedConnector:
    """Connector that opens the engine with the first channel, and closes it at the end; one event loop owns it.

    If ``engine`` is given, the connector uses that and leaves it open, because somebody else owns it.
    """

    def __init__(self, path: Path, cluster: str, engine: Engine | None = None) -> None:
        self._path = path
        self._cluster = cluster
        self._opening = asyncio.Lock()
        self._engine = engine
        self._borrowed = engine is not None
        self._watchers: TopicWatchers | None = None
        self._closed = False

    async def open_producer(
        self, settings: ProducerSettings, topic_epoch: int | None = None
    ) -> EmbeddedProducerChannel:
        engine = await self.engine()
        try:
            topic = await engine.topic(settings.topic)
            if settings.initial_subscription is not None:
                await topic.subscriptions.create_initial(settings.initial_subscription)
            producer = await topic.producers.create(settings.options(topic_epoch))
            return EmbeddedProducerChannel(producer, engine.admission.message_bytes_max)
        except EngineError as error:
            raise from_engine(error) from error

    async def partitions(self, topic: str, *, create: bool = True) -> int:
        engine = await self.engine()
        try:
            return await engine.by_use.partitions(topic) if create else engine.partitioned.count(topic)
        except EngineError as error:
            raise from_engine(error) from error

    async def open_consumer(self, settings: ConsumerSettings) -> EmbeddedConsumerChannel:
        engine = await self.engine()
        try:
            topic = await engine.topic(settings.topic, create=settings.create_topic)
            channel = EmbeddedConsumerChannel(topic)
            channel.connected(await topic.subscribe(settings.subscription, settings.options(), channel.deliver))
        except EngineError as error:
            raise from_engine(error) from error
        return channel

    async def open_topic_watch(self, pattern: str, known_hash: str) -> EmbeddedTopicWatchChannel:
        engine = await self.engine()
        if self._watchers is None:
            self._watchers = TopicWatchers(engine.catalog, engine.supervisor)
            engine.add_listener(self._watchers)
        return await watch_embedded(self._watchers, pattern, known_hash)

    async def close(self) -> None:
        self._closed = True
        async with self._opening:
            engine, self._engine = self._engine, None
            if engine is not None and self._watchers is not None:
                engine.remove_listener(self._watchers)
            if engine is not None and not self._borrowed:
                await engine.close()

    async def engine(self) -> Engine:
        """Return the engine, opened if necessary. Raises :class:`AlreadyClosed`, and the error of a failed opening."""
        async with self._opening:
            if self._closed:
                raise AlreadyClosed("the client is closed: make a new one")
            if self._engine is None:
                try:
                    self._engine = await Engine.open(self._path, cluster=self._cluster)
                except EngineError as error:
                    raise from_engine(error) from error
            return self._engine


class _Tasks:
    """Running calls of one channel; the set keeps them alive until they end."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, call: Coroutine[Any, Any, None]) -> None:
        task = in_background(call, "a call of an embedded channel")
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def wait(self, seconds_max: float | None = None) -> None:
        """Wait until all calls have ended. Cancel those that have not after ``seconds_max``."""
        if self._running:
            _, held = await asyncio.wait(self._running, timeout=seconds_max)
            for task in held:
                task.cancel()
            if held:
                await asyncio.wait(held)


class EmbeddedProducerChannel:
    """Producer channel to an engine in this process.

    Entries go to the engine in order, one call at a time, each with all entries gathered meanwhile. So no entry is
    stored before one that was sent earlier, not even if a call is refused and repeated without the faulty entry."""

    def __init__(self, producer: EngineProducer, message_bytes_max: int) -> None:
        self.ready = ProducerReady(producer.name, producer.last_sequence_id, producer.topic_epoch, message_bytes_max)
        self._producer = producer
        self._events: ProducerEvents | None = None
        self._lost: PulsarException | None = None
        self._gathered: list[tuple[int, bytes]] = []
        self._publishing = False
        self._tasks = _Tasks()
        producer.on_closed = self._closed

    def start(self, events: ProducerEvents) -> None:
        self._events = events
        if self._lost is not None:  # before anybody listened
            asyncio.get_running_loop().call_soon(self._report_lost)

    def publish(self, entry_id: int, entry: bytes) -> None:
        self._gathered.append((entry_id, entry))
        if not self._publishing:
            self._publishing = True
            self._tasks.start(self._publish_gathered())

    async def close(self) -> None:
        self._events = None
        self._producer.on_closed = None
        await self._tasks.wait(CLOSE_SECONDS_MAX)
        self._producer.close()

    async def _publish_gathered(self) -> None:
        while self._gathered:
            count = size_bytes = 0
            for _, entry in self._gathered[:ENTRIES_PER_PUBLISH_MAX]:
                size_bytes += len(entry)
                if count and size_bytes > PUBLISH_BYTES_MAX:
                    break
                count += 1
            group, self._gathered = self._gathered[:count], self._gathered[count:]
            await self._publish(group)
        self._publishing = False

    async def _publish(self, group: list[tuple[int, bytes]]) -> None:
        try:
            positions = await self._producer.publish([entry for _, entry in group])
        except EngineError as error:
            if len(group) > 1 and not self._producer.closed:  # one of them is wrong
                middle = len(group) // 2
                await self._publish(group[:middle])
                await self._publish(group[middle:])
                return
            for entry_id, _ in group:
                if self._events is not None:
                    self._events.on_refused(entry_id, from_engine(error))
            return
        if self._events is not None:
            self._events.on_receipts([entry_id for entry_id, _ in group], positions)

    def _closed(self, code: str, reason: str) -> None:
        self._lost = from_loss(code, f"the engine closed the producer: {reason}")
        self._report_lost()

    def _report_lost(self) -> None:
        events, self._events = self._events, None
        if events is not None and self._lost is not None:
            events.on_lost(self._lost)


class EmbeddedConsumerChannel:
    """Consumer channel to an engine in this process. It passes calls and deliveries on directly."""

    def __init__(self, topic: Topic) -> None:
        self._topic = topic
        self.cluster = topic.cluster
        self._consumer: EngineConsumer
        self._events: ConsumerEvents | None = None
        self._active: bool | None = None
        """Whether this is the active consumer, reported before :meth:`start`; None if nothing was reported."""
        self._at_end = False
        """Whether the end of the topic was reported before :meth:`start`."""
        self._lost: PulsarException | None = None
        self._over = False
        self._restarts = 0
        self._tasks = _Tasks()

    def connected(self, consumer: EngineConsumer) -> None:
        """Take the engine's consumer. Called before anything comes from it."""
        self._consumer = consumer
        consumer.on_closed = self._closed
        consumer.on_restarted = self._restarted
        consumer.on_active_change = self._active_change
        consumer.on_reached_end = self._reached_end

    def start(self, events: ConsumerEvents) -> None:
        self._events = events
        if self._active is not None or self._at_end or self._lost is not None:  # before anybody listened
            asyncio.get_running_loop().call_soon(self._report_early)

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Pass entries on. The engine delivers only with permits, and those are granted after :meth:`start`."""
        figures = self._consumer.figures
        figures.messages += sum(delivery.batch_size for delivery in deliveries)
        figures.bytes += sum(len(delivery.entry) for delivery in deliveries)
        if self._events is not None:
            self._events.on_deliveries(deliveries)

    def flow(self, permits: int) -> None:
        if self._consumer.closed:
            return
        try:
            self._consumer.flow(permits)
        except EngineError as error:
            self._consumer.close()
            self._closed(error.code, str(error))

    def acknowledge(self, request_id: int, acks: Sequence[Ack]) -> None:
        self._consumer.figures.acknowledged += len(acks)
        self._tasks.start(self._answer(request_id, self._restarts, lambda: self._consumer.acknowledge(acks)))

    def acknowledge_cumulative(
        self, request_id: int, position: Position, batch_index: int | None, batch_size: int = 0
    ) -> None:
        self._tasks.start(
            self._answer(
                request_id, self._restarts, lambda: self._consumer.acknowledge_cumulative(position, batch_index)
            )
        )

    def redeliver(self, positions: Sequence[Position] | None) -> None:
        # Deliveries are handed over without a queue in between, so all later ones belong to the redelivery.
        if positions is None and self._events is not None:
            self._events.on_redelivery_started()
        if not self._consumer.closed:
            self._consumer.redeliver(positions)

    async def seek(self, target: Position | int) -> None:
        await self._ask(self._consumer.seek, target)

    async def last_message(self) -> LastMessage:
        if self._over:
            raise AlreadyClosed("the consumer is closed: subscribe again")
        try:
            return self._consumer.last_message()
        except EngineError as error:
            raise from_engine(error) from error

    async def unsubscribe(self, *, force: bool = False) -> None:
        await self._ask(self._consumer.unsubscribe, force=force)

    async def close(self) -> None:
        self._events = None
        self._over = True
        self._consumer.close()
        await self._tasks.wait()

    async def _ask(self, call: Callable[P, Awaitable[None]], *args: P.args, **kwargs: P.kwargs) -> None:
        if self._over:
            raise AlreadyClosed("the consumer is closed: subscribe again")
        try:
            await call(*args, **kwargs)
        except EngineError as error:
            raise from_engine(error) from error

    def _restarted(self) -> None:
        self._restarts += 1
        if self._events is not None:
            self._events.on_restarted()

    def _active_change(self, active: bool) -> None:
        if self._events is None:
            self._active = active
        else:
            self._active = None
            self._events.on_active_change(active)

    def _reached_end(self) -> None:
        if self._events is None:
            self._at_end = True
        else:
            self._events.on_reached_end()

    def _closed(self, code: str, reason: str) -> None:
        self._lost = from_loss(code, f"the engine closed the consumer: {reason}")
        self._over = True
        asyncio.get_running_loop().call_soon(self._report_lost)

    def _report_early(self) -> None:
        if self._events is not None and self._active is not None:
            active, self._active = self._active, None
            self._events.on_active_change(active)
        if self._events is not None and self._at_end:
            self._at_end = False
            self._events.on_reached_end()
        self._report_lost()

    def _report_lost(self) -> None:
        if self._events is not None and self._lost is not None:
            events, self._events = self._events, None
            events.on_lost(self._lost)

    async def _answer(self, request_id: int, restarts: int, call: Callable[[], Awaitable[None]]) -> None:
        """Run an acknowledgement. It is void if the subscription moved by a seek or reset since it was asked."""
        try:
            if restarts == self._restarts:
                await call()
        except EngineError as error:
            if self._events is not None:
                self._events.on_ack_refused(request_id, from_engine(error))
            return
        if self._events is not None:
            self._events.on_ack_confirmed(request_id)
