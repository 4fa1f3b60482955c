"""Records of the model of a history: one message, one subscription and one topic."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(slots=True)
class Sent:
    """One message that a producer sent. ``number`` counts the messages of its topic at its origin, in order."""

    uid: str
    topic: str
    origin: str
    number: int
    key: str | None
    confirmed: bool
    life: int
    delayed: bool = False
    copied: bool = False
    """Whether all clusters behind links have it."""
    lane: int = -1
    """Partition of the topic, within which messages have an order. -1 for a topic without partitions."""
    gone: bool = False
    """Whether its origin deleted or lost it before it was surely copied. It may still come."""
    chunked: bool = False
    """Whether it is several entries. If it is gone, some of them may have been copied."""
    published_at: set[str] = field(default_factory=set)
    """Clusters where a producer published it by its name and sequence id. Who gets it twice shows it once."""


@dataclass(slots=True)
class Subscription:
    """State of a subscription in the model. A subscription that is not replicated belongs to one cluster."""

    topic: str
    name: str
    home: str | None
    """The cluster of a subscription that is not replicated; None for a replicated one."""
    clusters: set[str]
    """Clusters where a client created or used it, and clusters that were told of it."""
    wanted: set[str] = field(default_factory=set)
    """Messages that the subscription must get, unless they are acknowledged."""
    acknowledged: set[str] = field(default_factory=set)
    told: dict[str, set[str]] = field(default_factory=dict)
    """For each cluster, the messages that it must not deliver again."""
    here: dict[str, set[str]] = field(default_factory=dict)
    """For each cluster, the messages that were acknowledged there since the last seek."""
    made: set[str] = field(default_factory=set)
    """Clusters where a client created the subscription, or found it."""
    excused: dict[str, set[str]] = field(default_factory=dict)
    """For each cluster, messages before the position at which the subscription began in that cluster alone."""
    kept: dict[str, set[str]] = field(default_factory=dict)
    """For each cluster that has the subscription, the messages confirmed since. Retention must keep them there."""
    excluded: set[str] = field(default_factory=set)
    """Clusters where the topic was deleted since. The subscription must get nothing there."""
    unsettled_seek: str | None = None
    safe: set[str] = field(default_factory=set)
    """Messages whose acknowledgement every cluster knows."""
    startless: set[str] = field(default_factory=set)
    """Origins whose messages did not come to a cluster where a client created or found the subscription, because their
    link was dropped."""
    untold: str | None = None
    """Cluster where the subscription was created, while others perhaps do not know of it."""
    deleted: bool = False
    passed_over: bool = False
    """Whether an operator passed over messages, perhaps over a part of one."""

    def is_at(self, cluster: str) -> bool:
        return self.home in (None, cluster)

    def forget(self, uids: Iterable[str]) -> None:
        """Leave open whether these messages come."""
        self.wanted.difference_update(uids)

    def gone_at(self, cluster: str) -> None:
        """Leave open whether any message comes, if only ``cluster`` perhaps knew where the subscription begins, and
        ``cluster`` has lost that."""
        if cluster in (self.untold, self.unsettled_seek):
            self.forget(set(self.wanted))
            self.told.clear()


@dataclass(slots=True)
class Topic:
    """The messages of one topic, and how often it was deleted at each cluster."""

    name: str
    sent: dict[str, Sent] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    lives: dict[str, int] = field(default_factory=dict)
    trims: bool = False
    """Whether retention deletes consumed messages of the topic."""
    trimmed: set[str] = field(default_factory=set)
    """Messages from a time in which retention deleted consumed messages, and which it does not any more."""
    ages: bool = False
    """Whether messages of the topic may be passed over because of their age."""
    void: dict[str, set[str]] = field(default_factory=dict)
    """For each cluster, the messages that were sent before the topic was deleted there. None of them may come there."""
    absent: set[str] = field(default_factory=set)
    """Clusters where the topic was deleted, and where no client made it anew since."""
