"""Topics and origins that one link of a topology carries."""

from __future__ import annotations

from dataclasses import dataclass

from replicator.engine.engine import Engine
from replicator.engine.topic_name import EPOCHS_TOPIC, parse_topic
from replicator.topology import EMBEDDED, Link, Topology


@dataclass(frozen=True, slots=True)
class Route:
    """Link with everything that it must know about the other links. Equal routes carry the same."""

    link: Link
    origins: frozenset[str]
    """Clusters whose messages the link brings."""
    asked_before: tuple[Link, ...] = ()
    """Earlier links between the same two clusters. A topic that one of them carries does not go over this link."""
    elsewhere: frozenset[str] = frozenset()
    """Clusters in ``origins``, except the source, whose messages other links bring to the destination, too."""
    filtered: frozenset[str] = frozenset()
    """Clusters in ``origins``, except the source and ``elsewhere``, whose messages some link filters by SQL."""
    engine: str = EMBEDDED
    """Engine that carries the blocks: ``embedded`` or ``spark``."""

    @classmethod
    def of(cls, topology: Topology, link: Link) -> Route:
        """Return the route of ``link`` in ``topology``."""
        between = topology.links_between(link.source, link.destination)
        origins = topology.origins_over(link)
        own = topology.with_brokers(frozenset({link.source}))
        others = (topology.origins_over(each) for each in topology.links_to(link.destination) if each.key != link.key)
        elsewhere = (origins - own) & frozenset().union(*others)
        left_out = frozenset().union(*(topology.origins_over(each) for each in topology.links if each.where))
        filtered = (origins & left_out) - elsewhere - own
        return cls(link, origins, between[: between.index(link)], elsewhere, filtered, topology.engine_of(link))

    @classmethod
    def single(cls, link: Link) -> Route:
        """Return the route of a link in a topology without other links."""
        return cls(link, frozenset({link.source}))

    def carries(self, topic: str) -> bool:
        """Return whether ``topic`` goes over this link, and not over an earlier one between the same two clusters."""
        return self.link.carries(topic) and not any(each.carries(topic) for each in self.asked_before)


class TopicSelection:
    """Decides for the source's ``engine`` which topics the link of ``route`` carries, and remembers it by name."""

    def __init__(self, engine: Engine, route: Route) -> None:
        self._engine = engine
        self._route = route
        self._known: dict[str, bool] = {}

    def has(self, name: str) -> bool:
        """Return whether the link carries the topic ``name``, which must exist."""
        carried = self._known.get(name)
        if carried is None:
            carried = self._known[name] = self.covers(name)
        return carried

    def covers(self, name: str) -> bool:
        """Return whether the link carries topics of this name, by its patterns and by the clusters of their
        namespace."""
        if name == EPOCHS_TOPIC:
            return self._route.carries(name)
        clusters = self._engine.catalog.policies_of(parse_topic(name).full_namespace).replication_clusters
        return (clusters is None or self._route.link.destination in clusters) and self._route.carries(name)

    def look_again(self, name: str) -> None:
        """Forget the decision about a topic that is gone, or whose namespace has other clusters now."""
        self._known.pop(name, None)
