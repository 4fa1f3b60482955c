"""The session of one topic-list watcher: the client is told when topics that match its pattern come and go (PIP-145).

The engine tells of partitioned topics by their own names; clients of this protocol are told of each partition. So the
session remembers the partitions that it has told for each name.
"""

from __future__ import annotations

from replicator.engine.errors import EngineError
from replicator.engine.topics.topic_list import topic_list_hash
from replicator.engine.topics.topic_patterns import parse_pattern
from replicator.engine.topics.topic_watch import TopicListing, TopicWatch
from replicator.gateway.connection import Connection
from replicator.gateway.lookups import expanded
from replicator.protocol.commands_pb2 import (
    BaseCommand,
    CommandWatchTopicList,
    CommandWatchTopicListSuccess,
    CommandWatchTopicUpdate,
)
from replicator.protocol.errors import Refused
from replicator.protocol.frames import Frame
from replicator.protocol.sessions import Slot
from replicator.security.permissions import USING

T = BaseCommand.Type


def watch(connection: Connection, frame: Frame) -> None:
    """WATCH_TOPIC_LIST: begin to watch. A watcher that is there already is answered again, as in Apache Pulsar: so
    clients poll.
    """
    wanted = frame.command.watchTopicList
    session: WatcherSession | None = connection.state.watchers.get(wanted.watcher_id)
    if session is not None:
        session.list(wanted)
        return
    try:
        slot = connection.state.watchers.begin(wanted.watcher_id)
    except Refused as error:
        connection.refuse(wanted.request_id, error)
        return
    try:
        namespace = parse_pattern(wanted.topics_pattern).namespace  # that of the request is not looked at
        connection.guard.check(connection.role, USING, namespace)
        WatcherSession(connection, wanted, slot)
    except EngineError as error:
        connection.state.watchers.failed(slot)
        connection.refuse(wanted.request_id, error)


def close_watch(connection: Connection, frame: Frame) -> None:
    """WATCH_TOPIC_LIST_CLOSE."""
    wanted = frame.command.watchTopicListClose
    session: WatcherSession | None = connection.state.watchers.close(wanted.watcher_id)
    if session is not None:
        session.close()
    connection.succeeded(wanted.request_id)


class WatcherSession:
    """One watcher. Raises the errors of :meth:`TopicWatchers.open`."""

    def __init__(self, connection: Connection, wanted: CommandWatchTopicList, slot: Slot[WatcherSession]) -> None:
        self._connection = connection
        self._wanted = wanted
        self._told: dict[str, tuple[str, ...]] = {}
        """The topics that the client knows of, by the names that the engine tells."""
        self._watch: TopicWatch = connection.watchers.open(connection, wanted.topics_pattern, self._changed)
        connection.state.watchers.opened(slot, self)
        self.list(wanted)

    def list(self, wanted: CommandWatchTopicList) -> None:
        """Answer a request with the topics that there are."""
        self._connection.watchers.list(self._watch, None, lambda listing: self._listed(wanted, listing))

    def close(self) -> None:
        """End the watch: the client is told nothing more."""
        self._connection.watchers.close(self._watch)

    def _listed(self, wanted: CommandWatchTopicList, listing: TopicListing | EngineError) -> None:
        if isinstance(listing, EngineError):
            if wanted is self._wanted:  # the first one: there is no such watcher
                self._connection.state.watchers.close(wanted.watcher_id)
                self.close()
            self._connection.refuse(wanted.request_id, listing)
            return
        engine = self._connection.engine
        self._told = {name: expanded(engine, name) for name in listing.names or ()}
        success = CommandWatchTopicListSuccess(
            request_id=wanted.request_id, watcher_id=wanted.watcher_id, topics_hash=self._hash()
        )
        if success.topics_hash != wanted.topics_hash:
            success.topic.extend(sorted(topic for topics in self._told.values() for topic in topics))
        self._connection.send(BaseCommand(type=T.WATCH_TOPIC_LIST_SUCCESS, watchTopicListSuccess=success))

    def _changed(self) -> None:
        changed = self._watch.take()
        if changed is None:
            return
        change = changed.change
        if not change:  # more than can be told at once: the client is sent everything that is new to it
            self._connection.watchers.list(self._watch, None, self._listed_again)
            return
        self._tell(deleted=change.deleted, added=change.added)

    def _listed_again(self, listing: TopicListing | EngineError) -> None:
        if not isinstance(listing, EngineError):
            names = set(listing.names or ())
            self._tell(deleted=tuple(self._told.keys() - names), added=tuple(names))

    def _tell(self, *, deleted: tuple[str, ...], added: tuple[str, ...]) -> None:
        before = {topic for name in {*deleted, *added} for topic in self._told.get(name, ())}
        for name in deleted:
            self._told.pop(name, None)
        for name in added:
            self._told[name] = expanded(self._connection.engine, name)
        after = {topic for name in {*deleted, *added} for topic in self._told.get(name, ())}
        if before == after:
            return  # made anew: its consumers were disconnected, and come back by themselves
        update = CommandWatchTopicUpdate(watcher_id=self._wanted.watcher_id, topics_hash=self._hash())
        update.new_topics.extend(sorted(after - before))
        update.deleted_topics.extend(sorted(before - after))
        self._connection.send(BaseCommand(type=T.WATCH_TOPIC_UPDATE, watchTopicUpdate=update))

    def _hash(self) -> str:
        return topic_list_hash(topic for topics in self._told.values() for topic in topics)
