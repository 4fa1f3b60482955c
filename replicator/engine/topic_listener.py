"""Who wants to know what happens in topics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from replicator.engine.log.writer import AppendedBlock
from replicator.engine.subscriptions.subscription import Subscription

if TYPE_CHECKING:
    from replicator.engine.topic import Topic


class TopicListener(Protocol):
    """Who wants to know what happens in topics: links and the subscription sync. Called on the event loop."""

    def on_appended(self, topic: Topic, blocks: Sequence[AppendedBlock]) -> None:
        """Blocks became durable, in order. The topic's LAC, vector and cursors are up to date."""

    def on_subscription(self, topic: Topic, subscription: Subscription) -> None:
        """A subscription was made, loaded, became replicated, or is not any more."""

    def on_subscription_deleted(self, topic: Topic, name: str, generation: int | None) -> None:
        """A subscription is gone; ``generation`` is that of its tombstone, None if it was not replicated."""

    def on_acknowledged(self, topic: Topic, subscription: Subscription) -> None:
        """A replicated subscription has something to be told to other clusters, where it had nothing before: called
        once until that is taken with ``take_untold``, however much is acknowledged meanwhile."""

    def on_mark_delete(self, topic: Topic, subscription: Subscription, *, local: bool) -> None:
        """A mark-delete position moved; ``local`` if by consumers here and not by another cluster's update."""

    def on_log_deleted(self, topic: Topic) -> None:
        """A topic that has a log, such as a partition, is gone, with its subscriptions."""

    def on_partitions(self, topic_name: str, partitions: int) -> None:
        """A topic is partitioned now, or into more partitions than before. They may not be there yet."""

    def on_namespace_policies(self, namespace: str) -> None:
        """The policies of ``tenant/namespace`` have changed."""

    def on_topic_created(self, topic_name: str) -> None:
        """Consumers can subscribe to this name from now on: see ``Catalog.subscribable``."""

    def on_topic_deleted(self, topic_name: str) -> None:
        """They cannot any more."""
