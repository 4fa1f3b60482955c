"""Routes of a topic around this cluster: who gets its log, whose messages come here, and what it must relay.

It has no state: answers follow from the topology. Topics share sets, because there may be ten thousand topics.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from replicator.topology import Topology


class Routes(Protocol):
    """Links around one cluster, as the sync of a topic sees them."""

    def peers(self, topic: str) -> frozenset[str]:
        """Return the clusters that get this cluster's markers, directly or forwarded."""

    def origins(self, topic: str) -> frozenset[str]:
        """Return the clusters whose entries come here."""

    def relays(self, topic: str, source: str) -> bool:
        """Return whether this cluster must relay announcements of ``source``, which do not reach all of its peers."""


class DirectRoutes:
    """Routes of a full mesh: this cluster has links to ``peers`` and from ``origins``, and relays nothing."""

    def __init__(self, peers: Collection[str], origins: Collection[str]) -> None:
        self._peers = frozenset(peers)
        self._origins = frozenset(origins)

    def peers(self, topic: str) -> frozenset[str]:
        return self._peers

    def origins(self, topic: str) -> frozenset[str]:
        return self._origins

    def relays(self, topic: str, source: str) -> bool:
        return False


class TopologyRoutes:
    """Routes of the cluster ``local`` in a topology."""

    def __init__(self, topology: Topology, local: str) -> None:
        self._topology = topology
        self._local = local
        self._by_filter = any(link.topics or link.exclude for link in topology.links)
        """Whether the routes depend on the topic."""
        self._peers: dict[str | None, frozenset[str]] = {}
        self._origins: dict[str | None, frozenset[str]] = {}
        self._shared: dict[frozenset[str], frozenset[str]] = {}

    def peers(self, topic: str) -> frozenset[str]:
        if self._by_filter:
            return self._share(self._topology.reached_from(self._local, topic))
        if None not in self._peers:
            self._peers[None] = self._topology.reached_from(self._local)
        return self._peers[None]

    def origins(self, topic: str) -> frozenset[str]:
        if self._by_filter:
            return self._share(self._with_brokers(self._topology.reaching(self._local, topic)))
        if None not in self._origins:
            self._origins[None] = self._with_brokers(self._topology.reaching(self._local))
        return self._origins[None]

    def relays(self, topic: str, source: str) -> bool:
        reached = self._topology.reached_from(source, topic if self._by_filter else None)
        return bool(self.peers(topic) - {source} - reached)

    def _with_brokers(self, clusters: frozenset[str]) -> frozenset[str]:
        """Return ``clusters`` with the origins of their brokers, and with the origin of this cluster's brokers."""
        return self._topology.with_brokers(clusters | {self._local}) - {self._local}

    def _share(self, clusters: frozenset[str]) -> frozenset[str]:
        return self._shared.setdefault(clusters, clusters)
