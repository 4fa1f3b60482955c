"""Reachability: between which clusters a topic's messages and acknowledgements are compared. Pure.

Follows from the links of a topology: their patterns, which one of a pair carries a topic, what they forward, and the
clusters to which each namespace is copied.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from replicator.topology import Link, Topology
from replicator.topology.paths import reached_from

Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Reachability:
    """Who gets what of one topic, by the names of clusters."""

    messages: frozenset[Pair]
    """Origin, and a cluster that gets its messages, straight or forwarded."""
    acks: frozenset[Pair]
    """Source and destination of each link that carries the topic: acknowledgements go the same way."""


def reachability_of(topic: str, links: Sequence[Link], allowed: Mapping[str, Collection[str] | None]) -> Reachability:
    """Who gets what of a topic. ``allowed`` has, by cluster, the clusters to which its namespace may be copied from
    there; None or no entry means wherever links lead."""
    topology = Topology((), tuple(links))
    carrying = [
        link
        for link in links
        if topology.carries(link, topic)
        and ((clusters := allowed.get(link.source)) is None or link.destination in clusters)
    ]
    origins = {link.source for link in carrying}
    return Reachability(
        frozenset((origin, cluster) for origin in origins for cluster in reached_from(origin, carrying)),
        frozenset((link.source, link.destination) for link in carrying),
    )
