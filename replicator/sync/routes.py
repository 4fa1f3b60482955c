"""Who gets what a topic's log holds here, whose messages come here, and for whom this cluster has to pass things on.

Owns no state: answers follow from the topology. Sets are shared between topics, as there may be ten thousand.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol

from replicator.topology import Topology


class Routes(Protocol):
    """The links around one cluster, as the sync of a topic sees them."""

    def peers(self, topic: str) -> frozenset[str]:
        """The clusters that get our markers, straight or forwarded."""

    def origins(self, topic: str) -> frozenset[str]:
        """The clusters whose entries come here."""

    def relays(self, topic: str, source: str) -> bool:
        """Whether what ``source`` announces is to be passed on, as a peer of ours does not hear it from there."""


class DirectRoutes:
    """Links of one's own to ``peers``, and from ``origins``; everybody else is linked as well."""

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
    """What a topology says of the cluster ``local``."""

    def __init__(self, topology: Topology, local: str) -> None:
        self._topology = topology
        self._local = local
        self._by_filter = any(link.topics or link.exclude for link in topology.links)
        """Whether the answer depends on the topic."""
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
        """What is published at brokers comes from their cluster; of our own brokers it comes by the bridge."""
        return self._topology.with_brokers(clusters | {self._local}) - {self._local}

    def _share(self, clusters: frozenset[str]) -> frozenset[str]:
        return self._shared.setdefault(clusters, clusters)
