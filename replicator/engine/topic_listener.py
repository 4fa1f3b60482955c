"""Listeners that are told the events of topics, and the object that tells them for one topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from replicator.engine.log.writer import AppendedBlock
from replicator.engine.subscriptions.subscription import Subscription

_Topic = TypeVar("_Topic")


class TopicListener(Generic[_Topic]):
    """Base class of what is told the events of topics, such as links and the subscription sync.

    Each method does nothing; a listener overrides those that it needs. The engine calls them on its event loop. The
    class of topics is a parameter because it is defined above this module.
    """

    def on_appended(self, topic: _Topic, blocks: Sequence[AppendedBlock]) -> None:
        """Blocks became durable, in order. The topic's LAC, vector and cursors are up to date."""

    def on_subscription(self, topic: _Topic, subscription: Subscription) -> None:
        """A subscription was made, loaded, became replicated, or is not any more."""

    def on_subscription_deleted(self, topic: _Topic, name: str, generation: int | None) -> None:
        """A subscription is gone; ``generation`` is that of its tombstone, None if it was not replicated."""

    def on_acknowledged(self, topic: _Topic, subscription: Subscription) -> None:
        """A replicated subscription has something to be told to other clusters, where it had nothing before: called
        once until that is taken with ``take_unannounced``, however much is acknowledged meanwhile."""

    def on_mark_delete(self, topic: _Topic, subscription: Subscription, *, local: bool) -> None:
        """A mark-delete position moved; ``local`` if by consumers here and not by another cluster's update."""

    def on_log_deleted(self, topic: _Topic) -> None:
        """A topic that has a log, such as a partition, is gone, with its subscriptions."""

    def on_partitions(self, topic_name: str, partitions: int) -> None:
        """A topic is partitioned now, or into more partitions than before. They may not be there yet."""

    def on_namespace_policies(self, namespace: str) -> None:
        """The policies of ``tenant/namespace`` have changed."""

    def on_topic_created(self, topic_name: str) -> None:
        """Consumers can subscribe to the name ``topic_name`` from now on: see ``Catalog.subscribable``."""

    def on_topic_deleted(self, topic_name: str) -> None:
        """Consumers cannot subscribe to the name ``topic_name`` any more."""


class TopicNews(Generic[_Topic]):
    """Tells the listeners what happens in one topic, until it is gone. ``listeners`` may change meanwhile."""

    __slots__ = ("_listeners", "_topic")

    def __init__(self, topic: _Topic, listeners: Sequence[TopicListener[_Topic]]) -> None:
        self._topic = topic
        self._listeners = listeners

    def on_appended(self, blocks: Sequence[AppendedBlock]) -> None:
        for listener in self._listeners:
            listener.on_appended(self._topic, blocks)

    def on_subscription(self, subscription: Subscription) -> None:
        for listener in self._listeners:
            listener.on_subscription(self._topic, subscription)

    def on_subscription_deleted(self, name: str, generation: int | None) -> None:
        for listener in self._listeners:
            listener.on_subscription_deleted(self._topic, name, generation)

    def on_acknowledged(self, subscription: Subscription) -> None:
        for listener in self._listeners:
            listener.on_acknowledged(self._topic, subscription)

    def on_mark_delete(self, subscription: Subscription, *, local: bool) -> None:
        for listener in self._listeners:
            listener.on_mark_delete(self._topic, subscription, local=local)

    def on_log_deleted(self) -> None:
        """The last of it: to listeners its name is from now on that of the topic made anew."""
        listeners, self._listeners = self._listeners, ()
        for listener in listeners:
            listener.on_log_deleted(self._topic)
