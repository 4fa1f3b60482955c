"""Reachability: clusters between which a topic's messages and acknowledgements are compared. Pure.

Reachability follows from the links of a topology: their patterns, which link of a pair carries a topic, what links
forward, and the clusters to which each namespace is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from replicator.topology import Link, Topology
from replicator.topology.paths import reached_from

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Reachability:
    """Pairs of clusters between which the messages and the acknowledgements of one topic are copied, by their names."""

    messages: frozenset[Pair]
    """Pairs of an origin and a cluster that gets its messages, directly or forwarded."""
    acks: frozenset[Pair]
    """Source and destination of each link that carries the topic; acknowledgements go the same way."""
    forwarded: frozenset[tuple[str, str, str]] = frozenset()
    """Origin, source and destination of each link that forwards the origin's messages. The source can keep a life of
    the topic that the origin does not have any more."""


class TopicRoutes:
    """Reachability of topics over given links. The result is computed once for all topics that the same links carry."""

    def __init__(self, links: Sequence[Link]) -> None:
        self._topology = Topology((), tuple(links))
        self._known: dict[tuple[int, ...], Reachability] = {}

    def of(self, topic: str, allowed: Mapping[str, Collection[str] | None]) -> Reachability:
        """Return the clusters that get messages and acknowledgements of ``topic``.

        ``allowed`` has, by source cluster, the clusters to which the topic's namespace may be copied from it. None, or
        a missing cluster, means all.
        """
        links = self._topology.links
        numbers = tuple(
            number
            for number, link in enumerate(links)
            if self._topology.carries(link, topic)
            and ((clusters := allowed.get(link.source)) is None or link.destination in clusters)
        )
        found = self._known.get(numbers)
        if found is None:
            found = self._known[numbers] = _reachability([links[number] for number in numbers])
        return found


def reachability_of(topic: str, links: Sequence[Link], allowed: Mapping[str, Collection[str] | None]) -> Reachability:
    """Return the clusters that get messages and acknowledgements of ``topic``.

    ``allowed`` has, by source cluster, the clusters to which the topic's namespace may be copied from it. None, or a
    missing cluster, means all.
    """
    return TopicRoutes(links).of(topic, allowed)


def _reachability(carrying: Sequence[Link]) -> Reachability:
    reached = {origin: set(reached_from(origin, carrying)) for origin in {link.source for link in carrying}}
    return Reachability(
        frozenset((origin, cluster) for origin, clusters in reached.items() for cluster in clusters),
        frozenset((link.source, link.destination) for link in carrying),
        frozenset(
            (origin, link.source, link.destination)
            for origin, clusters in reached.items()
            for link in carrying
            if link.forward and link.source in clusters and link.destination != origin
        ),
    )
