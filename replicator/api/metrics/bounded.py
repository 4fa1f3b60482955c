"""Choice of the topics and subscriptions that have series of their own. Pure.

Invariant 11 (DESIGN §3): what a scrape answers is bounded, however many topics there are.

1. The first ``topics_max`` topics in the order of their making, which their incarnations tell, have series of their
   own: the same ones at each scrape, and after a restart if none was deleted.
2. So have the first ``subscriptions_max`` subscriptions of those topics.
3. All others are summed as ``other``.
4. A topic that was summed stays so while the worker runs, also when there is room again: its messages would be taken
   out of a sum, which a counter does not survive. A topic that comes when there is room has it.
5. The sum of the messages only grows, and begins at 0 when it is first asked for. A sum of all that the topics ever had
   would fall when one is deleted, and after a restart Prometheus would take all of it for new.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

OTHER: Final = "other"


@dataclass(frozen=True, slots=True)
class SubscriptionFigures:
    """Figures of a subscription that are exported."""

    name: str
    backlog_entries: int
    backlog_messages: int
    individually_deleted_entries: int


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """Figures of a topic that are exported. ``incarnation`` tells it from a deleted topic of the same name."""

    name: str
    incarnation: int
    entries: int
    messages: int
    markers: int
    subscriptions: tuple[SubscriptionFigures, ...] = ()


@dataclass(slots=True)
class BoundedFigures:
    """Figures of all topics and subscriptions that one scrape exports."""

    topics: list[TopicFigures] = field(default_factory=list)
    subscriptions: list[tuple[str, SubscriptionFigures]] = field(default_factory=list)
    topics_in_all: int = 0
    subscriptions_in_all: int = 0
    topics_summed: int = 0
    subscriptions_summed: int = 0


class Bounds:
    """Limits the series of one worker over all scrapes of its life."""

    def __init__(self) -> None:
        self._named: set[int] = set()
        """The topics with series of their own, by incarnation."""
        self._summed: dict[int, int] = {}
        """Number of messages of each summed topic at the last scrape, by incarnation."""
        self._messages = 0
        """Sum over the summed topics of their messages; it only grows."""
        self._asked = False

    def bound(self, topics: Iterable[TopicFigures], *, topics_max: int, subscriptions_max: int) -> BoundedFigures:
        """Return the figures to export; ``topics`` are all topics."""
        every = sorted(topics, key=lambda topic: topic.incarnation)
        there = {topic.incarnation for topic in every}
        known = self._named | self._summed.keys() if self._asked else there
        self._asked = True
        kept = [topic.incarnation for topic in every if topic.incarnation in self._named]
        self._named = set(kept[:topics_max])  # the limit may have been lowered
        before, self._summed = self._summed, {}
        found = BoundedFigures(topics_in_all=len(every))
        entries = markers = 0
        others: list[SubscriptionFigures] = []
        for topic in every:
            incarnation = topic.incarnation
            found.subscriptions_in_all += len(topic.subscriptions)
            if incarnation not in self._named and incarnation not in before and len(self._named) < topics_max:
                self._named.add(incarnation)
            if incarnation in self._named:
                found.topics.append(topic)
                room = max(0, subscriptions_max - len(found.subscriptions))
                found.subscriptions += [(topic.name, each) for each in topic.subscriptions[:room]]
                others += topic.subscriptions[room:]
                continue
            seen = before.get(incarnation, topic.messages if incarnation in known else 0)
            self._messages += topic.messages - seen
            self._summed[incarnation] = topic.messages
            entries += topic.entries
            markers += topic.markers
            others += topic.subscriptions
        found.topics_summed, found.subscriptions_summed = len(self._summed), len(others)
        if self._messages or self._summed:
            found.topics.append(TopicFigures(OTHER, 0, entries, self._messages, markers))
        if others:
            found.subscriptions.append((OTHER, _sum(others)))
        return found


def _sum(figures: Iterable[SubscriptionFigures]) -> SubscriptionFigures:
    rows = ((each.backlog_entries, each.backlog_messages, each.individually_deleted_entries) for each in figures)
    entries, messages, deleted = map(sum, zip(*rows, strict=True))
    return SubscriptionFigures(OTHER, entries, messages, deleted)
