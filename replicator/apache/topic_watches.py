"""Watches of namespaces at the brokers, which report new topics at once.

Each namespace has one watcher, as pattern consumers have. Its reports are hints only: the bridge still asks for the
lists of topics now and then. So nothing depends on watches. If brokers or a proxy refuse them, new topics are found a
little later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from typing import Final

import structlog

from replicator.client.errors import ConnectError, PulsarException, Timeout
from replicator.client.wire.connector import BrokerConnector
from replicator.client.wire.topic_watch_channel import BrokerTopicWatchChannel

REFUSED_SECONDS: Final = 300.0
"""Time after which a refused watch of a namespace is tried again."""

log = structlog.get_logger(__name__)


class TopicWatches:
    """Watches of one worker."""

    def __init__(self, connector: BrokerConnector) -> None:
        self._connector = connector
        self._watches: dict[str, _Watch] = {}
        self._refused_until: dict[str, float] = {}
        self._changed: set[str] = set()
        self.news = asyncio.Event()
        """Set when a namespace has changed."""

    @property
    def count(self) -> int:
        """Return how many namespaces are watched."""
        return len(self._watches)

    def take(self) -> list[str]:
        """Return the namespaces that have changed since the last call."""
        changed = sorted(self._changed)
        self._changed.clear()
        self.news.clear()
        return changed

    async def keep(self, namespaces: Collection[str]) -> None:
        """Watch these namespaces and no others. A later call tries again those that cannot be watched."""
        for gone in self._watches.keys() - set(namespaces):
            await self._watches.pop(gone).channel.close()
        for gone in self._refused_until.keys() - set(namespaces):
            del self._refused_until[gone]
        now = asyncio.get_running_loop().time()
        for namespace in namespaces:
            if namespace in self._watches or now < self._refused_until.get(namespace, now):
                continue
            try:
                channel = await self._connector.open_topic_watch(f"{namespace}/.*", "")
            except (ConnectError, Timeout):
                return  # whoever reads topics says so
            except PulsarException as error:
                if namespace not in self._refused_until:
                    log.info("the brokers do not tell of new topics", namespace=namespace, reason=str(error))
                self._refused_until[namespace] = now + REFUSED_SECONDS
                continue
            self._refused_until.pop(namespace, None)
            self._watches[namespace] = watch = _Watch(self, namespace, channel)
            channel.start(watch)

    async def close(self) -> None:
        await self.keep(())

    def changed(self, namespace: str) -> None:
        self._changed.add(namespace)
        self.news.set()

    def lost(self, namespace: str) -> None:
        self._watches.pop(namespace, None)


class _Watch:
    """Watch of one namespace; see :class:`TopicWatchEvents`."""

    def __init__(self, watches: TopicWatches, namespace: str, channel: BrokerTopicWatchChannel) -> None:
        self._watches = watches
        self._namespace = namespace
        self.channel = channel

    def on_topics(self, names: Sequence[str] | None, names_hash: str) -> None:
        """Report a change when watching begins: a topic may have come since the topics were listed."""
        self._watches.changed(self._namespace)

    def on_topics_changed(self, added: Sequence[str], deleted: Sequence[str], names_hash: str) -> None:
        self._watches.changed(self._namespace)

    def on_poll_refused(self, error: PulsarException) -> None:
        """Do nothing: this watch does not poll."""
        return

    def on_lost(self, error: PulsarException) -> None:
        self._watches.lost(self._namespace)
