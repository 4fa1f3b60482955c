"""Listeners to the events of topics, and the object that calls them for one topic."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

from replicator.engine.log.writer import AppendedBlock
from replicator.engine.subscriptions.subscription import Subscription

_Topic = TypeVar("_Topic")


class TopicListener(Generic[_Topic]):
    """Base class of listeners to the events of topics, such as links and the subscription sync.

    Each method does nothing; a listener overrides those that it needs. The engine calls them on its event loop. The
    class of topics is a parameter because it is defined above this module.
    """

    def on_appended(self, topic: _Topic, blocks: Sequence[AppendedBlock]) -> None:
        """Note that blocks became durable, in order. The topic's LAC, vector and cursors are up to date."""

    def on_subscription(self, topic: _Topic, subscription: Subscription) -> None:
        """Note that a subscription was created, was loaded, became replicated, or is not replicated any more."""

    def on_subscription_deleted(self, topic: _Topic, name: str, generation: int | None) -> None:
        """Note that a subscription is gone. ``generation`` is that of its tombstone; None if it was not replicated."""

    def on_acknowledged(self, topic: _Topic, subscription: Subscription) -> None:
        """Note that a replicated subscription has changes to announce to other clusters, and had none before. This is
        called once until ``take_unannounced`` takes them."""

    def on_mark_delete(self, topic: _Topic, subscription: Subscription, *, local: bool) -> None:
        """Note that a mark-delete position moved. ``local`` says whether consumers here moved it, and not another
        cluster's update."""

    def on_deletion_refused(self, topic: _Topic) -> None:
        """Note that a topic stays whose deletion was refused. While the deletion was under way, ``Engine.find`` did not
        return the topic, and the topic refused most requests."""

    def on_log_deleted(self, topic: _Topic) -> None:
        """Note that a topic with a log, such as a partition, is gone, with its subscriptions."""

    def on_partitions(self, topic_name: str, partitions: int) -> None:
        """Note that a topic is partitioned now, or has more partitions than before. They may not exist yet."""

    def on_inherited_policies(self, topic: _Topic) -> None:
        """Note that the policies of the topic's namespace have changed. This is called for one topic after another."""

    def on_namespace_policies(self, namespace: str) -> None:
        """Note that the policies of ``tenant/namespace`` have changed. Its topics follow:
        :meth:`on_inherited_policies`."""

    def on_topic_created(self, topic_name: str) -> None:
        """Note that consumers can subscribe to the name ``topic_name`` from now on; see ``Catalog.subscribable``."""

    def on_topic_deleted(self, topic_name: str) -> None:
        """Note that consumers cannot subscribe to the name ``topic_name`` any more."""


class TopicNews(Generic[_Topic]):
    """Calls the listeners on events of one topic, until it is gone. ``listeners`` may change meanwhile."""

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

    def on_deletion_refused(self) -> None:
        for listener in self._listeners:
            listener.on_deletion_refused(self._topic)

    def on_log_deleted(self) -> None:
        """Tell listeners that the topic's log is gone, and call them no more: its name may belong to a new topic from
        now on."""
        listeners, self._listeners = self._listeners, ()
        for listener in listeners:
            listener.on_log_deleted(self._topic)
