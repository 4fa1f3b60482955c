"""Consumer of all topics of a pattern, present and future.

It is the shell of :class:`~replicator.client.consuming.topic_set.TopicSet`, which decides about subscribing and letting
go. It owns the watcher of the pattern, and opens it again when it is lost; the consumers of each topic, or of its
partitions; and the timer of polls and retries. :class:`MultiTopicsConsumer` receives and acknowledges.

A deleted topic leaves quietly: its prefetched messages go with it, and acknowledging its received ones does nothing. A
topic created while the pattern is watched is consumed from its first message, whatever the initial position: its
discovery may be late, and must not cost messages.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from replicator.client.consuming.consumer import Consumer
from replicator.client.consuming.listening import MessageListener
from replicator.client.consuming.multi_topics_consumer import MultiTopicsConsumer
from replicator.client.consuming.topic_set import Action, CloseConsumers, Poll, SubscribeTopic, TopicSet
from replicator.client.errors import (
    ConnectError,
    InvalidConfiguration,
    PulsarException,
    SubscriptionNotFound,
    TopicNotFound,
)
from replicator.client.message import Message, MessageId
from replicator.client.settings import ConsumerSettings
from replicator.client.tasks import client_supervisor
from replicator.client.wire.channel import TopicWatchChannel
from replicator.running.short_tasks import awaited, in_background
from replicator.running.supervisor import SupervisedTask

_log = logging.getLogger(__name__)

OPENINGS_AT_ONCE: Final = 50
"""Limit of topics that are subscribed to at once: enough to hide round trips without flooding the cluster."""
REWATCH_FIRST_SECONDS: Final = 0.05
REWATCH_MAX_SECONDS: Final = 10.0
TOPICS_LEFT_MAX: Final = 10_000
"""Limit of remembered topics that are no longer consumed. Late acknowledgements are recognised by them."""

OpenPart = Callable[[str, bool, int, "PatternConsumer"], Coroutine[Any, Any, Consumer]]
"""Function that makes the connected consumer of a topic or partition.

Its arguments: the name, whether to start at the first message rather than where the user said, the receiver queue's
size, and the pattern consumer."""


@dataclass(frozen=True, slots=True)
class PatternPorts:
    """Functions and limits of the client that a pattern consumer uses."""

    open_watch: Callable[[str], Coroutine[Any, Any, TopicWatchChannel]]
    """Watch the pattern, given the hash of the list known so far."""
    partitions: Callable[[str], Coroutine[Any, Any, int]]
    """Return the number of a topic's partitions, without creating the topic."""
    open_part: OpenPart
    ignores: Callable[[str], bool]
    """Return whether a matching topic is not consumed, because this consumer sends its letters there."""
    topics_max: int
    reconnect: bool


class PatternConsumer(MultiTopicsConsumer):
    """Consumer of one subscription name on all topics of a pattern. :meth:`Client.subscribe` makes it."""

    def __init__(
        self,
        pattern: str,
        settings: ConsumerSettings,
        ports: PatternPorts,
        *,
        queue_size_total: int,
        period_seconds: float,
        on_close: Callable[[MultiTopicsConsumer], None],
        message_listener: MessageListener | None = None,
    ) -> None:
        super().__init__(pattern, [settings], _never, on_close=on_close, message_listener=message_listener)
        self._ports = ports
        self._loop = asyncio.get_running_loop()
        self._core = TopicSet(period_seconds=period_seconds, now=self._loop.time(), ignores=ports.ignores)
        self._watch: TopicWatchChannel | None = None
        self._parts: dict[str, dict[str, Consumer]] = {}
        """Consumers of each topic, by partition; a topic without partitions has one, under its own name."""
        self._topic_of: dict[str, str] = {}
        """Topic of each part."""
        self._queue_size_total = self._queue_size_left = queue_size_total
        self._queue_sizes: dict[str, int] = {}
        """Share of the receiver queue that each part has."""
        self._left: dict[str, None] = {}
        """Parts that are no longer consumed, in order."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching_again: SupervisedTask | None = None
        self._openings = asyncio.Semaphore(OPENINGS_AT_ONCE)
        self._timer: asyncio.TimerHandle | None = None
        self._subscribing = 0
        """Number of topics that are being subscribed to."""
        self._first: asyncio.Future[None] | None = self._loop.create_future()
        """While connecting: done when all topics of the first listing are subscribed, failed with the first error."""
        self._stopped = False

    async def connect(self) -> None:
        """Watch the pattern, and subscribe to all its topics or to none. The client calls this once."""
        try:
            self._watch = await self._ports.open_watch(self._core.hash)
            self._core.connected(self._loop.time())
            self._watch.start(self)
            if self._subscribing and self._first is not None:
                await self._first
        except BaseException:
            self._first = None
            await self._stop()
            await asyncio.gather(*(_close(consumer) for consumer in self._turns))
            raise
        self._first = None
        if self._listening is not None:
            self._listening.resume()

    def is_connected(self) -> bool:
        """Return whether the pattern is watched and every topic is connected."""
        return self._watch is not None and all(consumer.is_connected() for consumer in self._turns)

    async def unsubscribe(self, force: bool = False) -> None:
        """Delete the subscription in every topic that matches now, and close. Raises the first error after trying all
        topics."""
        self._check_open()
        await self._stop()
        await super().unsubscribe(force)

    # Acknowledging a message of a deleted topic does nothing.

    async def acknowledge(self, message: Message | MessageId) -> None:
        """Acknowledge one message. An id without its message must name its topic by its partition.

        For a deleted topic it does nothing, or with ``ack_receipt_enabled`` raises :class:`TopicNotFound`."""
        if not self._is_unsubscribed(message):
            await super().acknowledge(message)

    def acknowledge_many(self, messages: Iterable[Message | MessageId]) -> None:
        """Acknowledge several messages, without receipts; see :meth:`acknowledge`."""
        super().acknowledge_many(message for message in messages if not self._is_unsubscribed(message, receipt=False))

    async def acknowledge_cumulative(self, message: Message | MessageId) -> None:
        """Acknowledge everything through this message in its own topic."""
        if not self._is_unsubscribed(message):
            await super().acknowledge_cumulative(message)

    async def negative_acknowledge(self, message: Message | MessageId) -> None:
        """Ask for the message again after its delay."""
        if not self._is_unsubscribed(message, receipt=False):
            await super().negative_acknowledge(message)

    # Events of the watcher.

    def on_topics(self, names: Sequence[str] | None, names_hash: str) -> None:
        """Handle the answer to a poll."""
        self._do(self._core.listed(names, names_hash, self._loop.time()))

    def on_topics_changed(self, added: Sequence[str], deleted: Sequence[str], names_hash: str) -> None:
        """Handle a notification."""
        self._do(self._core.changed(added, deleted, names_hash, self._loop.time()))

    def on_poll_refused(self, error: PulsarException) -> None:
        """Log that the list of topics was refused. The next poll asks again."""
        _log.warning("%s: topics are not listed: %s", self._name, error)

    def on_lost(self, error: PulsarException) -> None:
        """Watch again, because the watcher is lost."""
        self._watch = None
        self._core.disconnected()
        if self._stopped or self._error is not None:
            return
        if self._ports.reconnect:
            _log.info("%s: the watcher is lost, watching again: %s", self._name, error)
            self._watching_again = client_supervisor().task(
                "watching", f"{self._name}: watching again", self._watch_again, until_done=True
            )
            self._watching_again.start()
        else:
            self._deferred = error
            self._arrivals.wake_all()

    def part_failed(self, consumer: Consumer, error: PulsarException) -> None:
        """Handle the end of a topic's or partition's consumer by an error."""
        name = self._topic_of.get(consumer.topic())
        if name is None or self._consumers.get(consumer.topic()) is not consumer:
            return  # it is not in use yet, or not any more: who opens it sees that it is over
        if isinstance(error, SubscriptionNotFound) or (isinstance(error, ConnectError) and not self._ports.reconnect):
            return  # the next receive says so, as it does of a list of topics
        level = logging.INFO if isinstance(error, TopicNotFound) else logging.WARNING
        _log.log(level, "%s: %s ended: %s", self._name, consumer.topic(), error)
        self._take_out(consumer)
        self._start(_close(consumer))
        self._do(self._core.ended(name, self._loop.time()))

    # Actions of the core.

    def _do(self, actions: Sequence[Action]) -> None:
        if self._stopped or self._error is not None:
            return
        for action in actions:
            match action:
                case Poll(known_hash):
                    if self._watch is not None:
                        self._watch.poll(known_hash)
                case SubscribeTopic():
                    self._subscribing += 1
                    self._start(self._subscribe(action))
                case CloseConsumers(name):
                    self._start(self._let_go(name))
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._core.next_at(), self._tick)

    def _tick(self) -> None:
        self._do(self._core.tick(self._loop.time()))

    def _start(self, call: Coroutine[Any, Any, None]) -> None:
        task = in_background(call, f"{self._name}: a step")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _subscribe(self, action: SubscribeTopic) -> None:
        """Open the missing consumers of a topic, and close those of partitions that it no longer has."""
        name = action.topic
        try:
            async with self._openings:
                partitions = await self._ports.partitions(name)
                wanted = [f"{name}-partition-{index}" for index in range(partitions)] or [name]
                parts = self._parts.setdefault(name, {})
                for consumer in [consumer for part, consumer in parts.items() if part not in wanted]:
                    self._take_out(consumer)
                    await _close(consumer)
                missing = [part for part in wanted if part not in parts]
                self._check_room(len(missing))
                await self._open(name, missing, action.from_start)
        except PulsarException as error:
            gone = isinstance(error, TopicNotFound)
            if not gone:
                _log.warning("%s: cannot consume %s: %s", self._name, name, error)
                if self._first is not None and not self._first.done():
                    self._first.set_exception(error)
            self._do(self._core.failed(name, self._loop.time(), gone=gone))
        except BaseException:  # something foreign ended it: the topic is tried again, as after other failures
            self._do(self._core.failed(name, self._loop.time(), gone=False))
            raise
        else:
            self._do(self._core.subscribed(name, partitions, self._loop.time()))
        finally:
            self._subscribing -= 1
            if not self._subscribing and self._first is not None and not self._first.done():
                self._first.set_result(None)

    async def _open(self, name: str, parts: Sequence[str], from_start: bool) -> None:
        """Open consumers and put them in use. Raises the first error after the others are in use."""
        if not parts:
            return
        self._share_room(parts)
        opening = [awaited(self._ports.open_part(part, from_start, self._queue_sizes[part], self)) for part in parts]
        try:
            results = await asyncio.gather(*opening, return_exceptions=True)
        except BaseException:  # cancelled: none may stay connected
            for task in opening:
                task.cancel()
            results = await asyncio.gather(*opening, return_exceptions=True)
            await asyncio.gather(*(result.close() for result in results if isinstance(result, Consumer)))
            raise
        errors: list[BaseException] = []
        for part, result in zip(parts, results, strict=True):
            if isinstance(result, Consumer) and result.over is None:
                self._put_in(name, result)
                continue
            self._release_queue_size(part)
            if isinstance(result, Consumer) and result.over is not None:  # while the others were opened
                errors.append(result.over)
                self._start(_close(result))
            elif isinstance(result, BaseException):
                errors.append(result)
        if errors:
            raise errors[0]

    async def _let_go(self, name: str) -> None:
        consumers = list(self._parts.pop(name, {}).values())
        for consumer in consumers:
            self._take_out(consumer)
        await asyncio.gather(*(_close(consumer) for consumer in consumers))
        self._do(self._core.on_closed(name, self._loop.time()))

    def _put_in(self, name: str, consumer: Consumer) -> None:
        part = consumer.topic()
        self._parts[name][part] = consumer
        self._topic_of[part] = name
        self._left.pop(part, None)
        self._consumers[part] = consumer
        self._turns.append(consumer)
        self._arrivals.wake(len(self._arrivals))  # it may have messages already

    def _take_out(self, consumer: Consumer) -> None:
        """Stop receiving from ``consumer``. The caller still has to close it."""
        part = consumer.topic()
        if self._consumers.get(part) is not consumer:
            return  # it failed while another one was closed
        name = self._topic_of.pop(part)
        if name in self._parts:
            self._parts[name].pop(part, None)
        del self._consumers[part]
        self._turns.remove(consumer)
        self._release_queue_size(part)
        self._left[part] = None
        if len(self._left) > TOPICS_LEFT_MAX:
            del self._left[next(iter(self._left))]

    def _share_room(self, parts: Sequence[str]) -> None:
        """Give each part its share of the queue: half of the queue for the present parts, the rest for future ones.

        Each part gets room for at least one message, however many parts there are."""
        together = max(len(self._core.names), len(self._turns) + len(parts))
        share = min(self._queue_size_total // (2 * together), self._queue_size_left // len(parts))
        size = max(1, min(self._settings[0].receiver_queue_size, share))
        for part in parts:
            self._queue_sizes[part] = size
            self._queue_size_left -= size

    def _release_queue_size(self, part: str) -> None:
        self._queue_size_left += self._queue_sizes.pop(part, 0)

    def _check_room(self, more: int) -> None:
        if len(self._turns) + more > self._ports.topics_max:
            raise InvalidConfiguration(
                f"{self._name} has more than {self._ports.topics_max} topics and partitions; make its pattern narrower"
            )

    async def _watch_again(self) -> None:
        pause_seconds = REWATCH_FIRST_SECONDS
        while True:
            try:
                watch = await self._ports.open_watch(self._core.hash)
            except PulsarException as error:
                level = logging.INFO if pause_seconds < REWATCH_MAX_SECONDS else logging.WARNING
                _log.log(level, "%s is not watched: %s", self._name, error)
                await asyncio.sleep(pause_seconds * random.uniform(0.5, 1.0))
                pause_seconds = min(2 * pause_seconds, REWATCH_MAX_SECONDS)
                continue
            self._watch = watch
            self._core.connected(self._loop.time())
            watch.start(self)
            self._set_timer()
            return

    async def _stop(self) -> None:
        """Stop watching and subscribing. Open consumers stay open. Idempotent."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()
        watch, self._watch = self._watch, None
        current = asyncio.current_task()
        tasks = [task for task in self._tasks if task is not current]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._watching_again is not None:
            await self._watching_again.stop()
        if watch is not None:
            await watch.close()

    async def _shut(self) -> None:
        await self._stop()
        await super()._shut()

    def _is_unsubscribed(self, message: Message | MessageId, *, receipt: bool = True) -> bool:
        """Return whether the message is of a topic that is no longer consumed."""
        self._check_open()
        if not isinstance(message, Message) or message.topic_name() not in self._left:
            return False
        if receipt and self._settings[0].ack_receipt_enabled:
            raise TopicNotFound(f"{message.topic_name()} was deleted, so the message cannot be acknowledged any more")
        return True


async def _close(consumer: Consumer) -> None:
    """Close a consumer, whatever its cluster answers: its topic may be gone."""
    try:
        await consumer.close()
    except PulsarException as error:
        _log.info("%s: %s", consumer.topic(), error)


async def _never(settings: ConsumerSettings, face: MultiTopicsConsumer) -> Consumer:
    raise AssertionError("a pattern consumer opens its parts itself; this call is a bug of the client")
