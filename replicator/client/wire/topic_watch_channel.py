"""Channels that watch patterns of topics, over a broker connection and on an engine in this process.

Events before the watcher is started wait for it.

Brokers name each partition of a topic, and hash those names. A pattern consumer knows whole topics, and finds their
partitions itself. So the channel remembers the broker's names, and passes on the topics' names. A topic with changed
partitions is reported as made anew. If an update does not lead to the broker's hash, something was missed: the watcher
is given a hash that it does not have, so that it polls.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

from replicator.client.errors import OperationNotSupported, PulsarException, from_engine
from replicator.client.wire.channel import TopicWatchEvents
from replicator.client.wire.connection import Connection
from replicator.engine.errors import EngineError
from replicator.engine.topics.topic_list import topic_list_hash
from replicator.engine.topics.topic_patterns import parse_pattern
from replicator.engine.topics.topic_watch import TopicListing, TopicWatch
from replicator.engine.topics.topic_watchers import TopicWatchers
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandWatchTopicList,
    CommandWatchTopicListClose,
    CommandWatchTopicListSuccess,
    CommandWatchTopicUpdate,
)

T = BaseCommand.Type
_PARTITION: Final = "-partition-"

_Event = Callable[[TopicWatchEvents], None]


class _Events:
    """Events of a channel: kept until a watcher is started, and dropped after the loss."""

    def __init__(self) -> None:
        self._events: TopicWatchEvents | None = None
        self._early: deque[_Event] = deque()
        self._over = False

    def start(self, events: TopicWatchEvents) -> None:
        self._events = events
        while self._early:
            self._early.popleft()(events)

    def report(self, event: _Event) -> None:
        if self._over:
            return
        if self._events is None:
            self._early.append(event)
        else:
            event(self._events)

    def lost(self, error: PulsarException) -> None:
        self.report(lambda events: events.on_lost(error))
        self._over = True

    def stop(self) -> None:
        self._over = True
        self._early.clear()


class BrokerTopicWatchChannel:
    """Watch channel over a broker connection."""

    def __init__(self, connection: Connection, pattern: str, operation_timeout_seconds: float) -> None:
        self._connection = connection
        self._pattern = pattern
        self._namespace = ""
        self._operation_timeout_seconds = operation_timeout_seconds
        self._id = connection.next_id()
        self._names: frozenset[str] = frozenset()
        """Names of the broker's list; each partition has its own."""
        self._polling: int | None = None
        self._events = _Events()

    async def open(self, known_hash: str) -> None:
        """Watch, and wait for the first answer; see :meth:`Connector.open_topic_watch`."""
        if not self._connection.features.supports_topic_watchers:
            raise OperationNotSupported(
                f"{self._connection.address}: the brokers there watch no patterns of topics: name the topics to "
                "subscribe to"
            )
        try:
            pattern = parse_pattern(self._pattern)
        except EngineError as error:
            raise from_engine(error) from None
        self._pattern, self._namespace = str(pattern), pattern.namespace
        self._connection.watchers[self._id] = self
        try:
            answer = await self._connection.request(
                self._watch, f"watch of {self._pattern}", self._operation_timeout_seconds
            )
        except BaseException:
            await self.close()
            raise
        self._listed(answer)

    def start(self, events: TopicWatchEvents) -> None:
        self._events.start(events)

    def poll(self, known_hash: str) -> None:
        if self._polling is not None:
            return  # its answer is on its way
        if known_hash != topic_list_hash(_topics(self._names)):
            self._names = frozenset()  # the watcher has something else: it is to be told all

        def answered(answer: Any) -> None:
            self._polling = None
            if isinstance(answer, PulsarException):
                self._events.report(lambda events: events.on_poll_refused(answer))
            else:
                self._listed(answer)

        self._polling = self._connection.ask(self._watch, answered)

    async def close(self) -> None:
        self._events.stop()
        if self._polling is not None:
            self._connection.give_up(self._polling)
        if self._connection.watchers.pop(self._id, None) is not None:
            self._connection.ask(self._unwatch, lambda _: None)

    # From the connection.

    def on_command(self, command: BaseCommand) -> None:
        self._updated(command.watchTopicUpdate)

    def on_lost(self, error: PulsarException) -> None:
        self._events.lost(error)

    # Inside.

    def _watch(self, request_id: int) -> BaseCommand:
        wanted = CommandWatchTopicList(
            request_id=request_id, watcher_id=self._id, namespace=self._namespace, topics_pattern=self._pattern
        )
        if self._names:
            wanted.topics_hash = topic_list_hash(self._names)
        return BaseCommand(type=T.WATCH_TOPIC_LIST, watchTopicList=wanted)

    def _unwatch(self, request_id: int) -> BaseCommand:
        wanted = CommandWatchTopicListClose(request_id=request_id, watcher_id=self._id)
        return BaseCommand(type=T.WATCH_TOPIC_LIST_CLOSE, watchTopicListClose=wanted)

    def _listed(self, answer: CommandWatchTopicListSuccess) -> None:
        if not answer.topic and self._names and answer.topics_hash == topic_list_hash(self._names):
            names_hash = topic_list_hash(_topics(self._names))
            self._events.report(lambda events: events.on_topics(None, names_hash))
            return
        self._names = frozenset(answer.topic)
        topics = sorted(_topics(self._names))
        self._events.report(lambda events: events.on_topics(topics, topic_list_hash(topics)))

    def _updated(self, update: CommandWatchTopicUpdate) -> None:
        before = self._names
        self._names = before.difference(update.deleted_topics).union(update.new_topics)
        if topic_list_hash(self._names) != update.topics_hash:
            self._events.report(lambda events: events.on_topics_changed((), (), update.topics_hash))
            return
        were, are = _topics(before), _topics(self._names)
        touched = _topics(before ^ self._names)
        added, deleted = sorted(touched & are), sorted(touched & were)
        names_hash = topic_list_hash(are)
        self._events.report(lambda events: events.on_topics_changed(added, deleted, names_hash))


def _topics(names: Iterable[str]) -> frozenset[str]:
    """Return the topics of these names: the name itself, or the topic of a partition."""
    return frozenset(map(_topic, names))


def _topic(name: str) -> str:
    topic, separator, number = name.rpartition(_PARTITION)
    return topic if separator and number.isdecimal() else name


class EmbeddedTopicWatchChannel:
    """Watch channel on an engine in this process. :func:`watch_embedded` makes it."""

    def __init__(self, watchers: TopicWatchers, pattern: str) -> None:
        self._watchers = watchers
        self._events = _Events()
        self._watch: TopicWatch = watchers.open(self, pattern, self._changed)
        self.first: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, events: TopicWatchEvents) -> None:
        self._events.start(events)

    def poll(self, known_hash: str) -> None:
        self._watchers.list(self._watch, known_hash, self._answer)

    async def close(self) -> None:
        self._events.stop()
        self._watchers.close(self._watch)

    def _answer(self, listing: TopicListing | EngineError) -> None:
        if isinstance(listing, EngineError):
            error = from_engine(listing)
            if not self.first.done():
                self.first.set_exception(error)
            else:
                self._events.report(lambda events: events.on_poll_refused(error))
            return
        if not self.first.done():
            self.first.set_result(None)
        self._events.report(lambda events: events.on_topics(listing.names, listing.hash))

    def _changed(self) -> None:
        changed = self._watch.take()
        if changed is not None:
            change = changed.change
            self._events.report(lambda events: events.on_topics_changed(change.added, change.deleted, changed.hash))


async def watch_embedded(watchers: TopicWatchers, pattern: str, known_hash: str) -> EmbeddedTopicWatchChannel:
    """Watch, and wait for the first answer; see :meth:`Connector.open_topic_watch`."""
    try:
        channel = EmbeddedTopicWatchChannel(watchers, pattern)
    except EngineError as error:
        raise from_engine(error) from None
    channel.poll(known_hash)
    try:
        await asyncio.shield(channel.first)
    except BaseException:
        await channel.close()
        raise
    return channel
