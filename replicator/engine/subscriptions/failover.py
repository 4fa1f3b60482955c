"""Registry of Failover consumers that subscribe to several topics without partitions in this cluster.

Seed 000: on one such topic the consumer that subscribed first is active. If the same consumers subscribe to many,
hashes of names choose the active one, so that the topics spread over the consumers. Such clients use one consumer name
for all topics. The registry counts the topics of each subscription name and consumer name. It tells a topic's
subscription when it changes from one case to the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Protocol


class RegisteredSubscription(Protocol):
    """Interface of one topic's subscription for the registry."""

    name: str

    def consumer_names(self) -> Iterable[str]: ...

    def spread_over_topics(self, spread: bool) -> None: ...


class FailoverRegistry:
    """Failover consumers of one engine on topics without partitions."""

    def __init__(self) -> None:
        self._topics: dict[tuple[str, str], Counter[RegisteredSubscription]] = {}

    def add(self, subscription: RegisteredSubscription, consumer_name: str) -> None:
        """Note that a consumer connected. Call this when the subscription has it."""
        members = self._topics.setdefault((subscription.name, consumer_name), Counter())
        others_before = len(members)
        members[subscription] += 1
        self._reconsider(subscription)
        if others_before == 1:  # that one was alone until now; where there were more, nothing changes for them
            for member in members:
                self._reconsider(member)

    def remove(self, subscription: RegisteredSubscription, consumer_name: str) -> None:
        """Note that a consumer disconnected. Call this when the subscription does not have it any more."""
        members = self._topics[subscription.name, consumer_name]
        members[subscription] -= 1
        if members[subscription] == 0:
            del members[subscription]
        self._reconsider(subscription)
        if len(members) == 1:
            self._reconsider(next(iter(members)))
        if not members:
            del self._topics[subscription.name, consumer_name]

    def _reconsider(self, subscription: RegisteredSubscription) -> None:
        subscription.spread_over_topics(
            any(len(self._topics.get((subscription.name, name), ())) > 1 for name in subscription.consumer_names())
        )
