"""Which Failover consumers subscribe to several topics of this cluster that are not partitioned.

Seed 000: on one such topic the consumer that subscribed first is active; where the same consumers subscribe to many,
the active one is chosen by the hashes of names, so that the topics spread over the consumers. Clients that do so
use one consumer name for all of them. The registry counts, for each subscription name and consumer name, the topics,
and tells a topic's subscription when that changes its case.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol


class SpreadsOverTopics(Protocol):
    """A subscription of one topic, as the registry sees it."""

    name: str

    def consumer_names(self) -> Iterable[str]: ...

    def spread_over_topics(self, spread: bool) -> None: ...


class FailoverRegistry:
    """The Failover consumers of one engine on topics that are not partitioned."""

    def __init__(self) -> None:
        self._topics: dict[tuple[str, str], Counter[SpreadsOverTopics]] = {}

    def add(self, subscription: SpreadsOverTopics, consumer_name: str) -> None:
        """A consumer connected; call it when the subscription has it."""
        members = self._topics.setdefault((subscription.name, consumer_name), Counter())
        others_before = len(members)
        members[subscription] += 1
        self._reconsider(subscription)
        if others_before == 1:  # that one was alone until now; where there were more, nothing changes for them
            for member in members:
                self._reconsider(member)

    def remove(self, subscription: SpreadsOverTopics, consumer_name: str) -> None:
        """A consumer disconnected; call it when the subscription does not have it any more."""
        members = self._topics[subscription.name, consumer_name]
        members[subscription] -= 1
        if members[subscription] == 0:
            del members[subscription]
        self._reconsider(subscription)
        if len(members) == 1:
            self._reconsider(next(iter(members)))
        if not members:
            del self._topics[subscription.name, consumer_name]

    def _reconsider(self, subscription: SpreadsOverTopics) -> None:
        subscription.spread_over_topics(
            any(len(self._topics.get((subscription.name, name), ())) > 1 for name in subscription.consumer_names())
        )
