"""Namespaces that the brokers replicate themselves, by Pulsar's own geo-replication, beside this worker.

If geo-replication and links copy a namespace between the same clusters, a cluster may get a message twice, unless the
bridge recognises the message (:mod:`replicator.apache.native_copies`). The status, ``replicator status`` and
``replicator doctor`` name these namespaces. A message that geo-replication or a link brought does not go back by the
other one (:class:`NativeOrigins`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Final

from replicator.apache.admin import BrokerAdmin
from replicator.apache.errors import AdminFailed
from replicator.engine.topic_name import parse_topic
from replicator.running.timeouts import timeout
from replicator.topology import Topology

LOOK_SECONDS: Final = 30.0
"""Time between two looks. A look makes one request for each namespace with bridged topics."""
KNOW_SECONDS: Final = 1.0
"""Time for which publishing to a topic of another namespace waits for what the brokers replicate themselves."""
DECISIONS_MAX: Final = 10_000
"""Decisions about topics that are remembered. Topics that are gone have some, too."""


class NativeOrigins:
    """Decides which clusters get, by links, what Pulsar's own geo-replication brought to the brokers of ``cluster``.

    A message that it brought has no stamp of a bridge, and names the cluster of its origin as the brokers know it. If
    that is a cluster of the topology, clusters that get its messages by a link of their own do not get them from here.
    Everywhere else the message is copied: twice rather than never.
    """

    def __init__(self, topology: Topology, cluster: str) -> None:
        self._cluster = cluster
        self.change(topology)

    def change(self, topology: Topology) -> None:
        """Use another topology from now on."""
        self._topology = topology
        self._origins = {
            each.name_at_brokers: each
            for each in topology.clusters
            if each.name_at_brokers is not None and each.name != self._cluster
        }
        self._known: dict[tuple[str, str], frozenset[str] | None] = {}

    def origin_of(self, name: str) -> str | None:
        """Return the origin of messages that are published at the brokers' cluster ``name``.

        Return None if no other cluster of the topology has this name at the brokers.
        """
        found = self._origins.get(name)
        return None if found is None else found.broker_origin

    def clusters_for(self, topic: str, replicated_from: str) -> frozenset[str] | None:
        """Return the clusters that may have an entry that came from the brokers' cluster ``replicated_from``.

        Return None if all may.
        """
        if (origin := self._origins.get(replicated_from)) is None:
            return None
        if (key := (topic, replicated_from)) not in self._known:
            if len(self._known) >= DECISIONS_MAX:
                self._known.clear()
            found = self._topology.may_have_replicated(self._cluster, origin, topic)
            self._known[key] = None if len(found) == len(self._topology.names) else found
        return self._known[key]


class NativeReplication:
    """Namespaces with bridged topics that have more than one replication cluster."""

    def __init__(self, admin: BrokerAdmin, origins: NativeOrigins | None = None) -> None:
        self._admin = admin
        self.origins = origins
        self._due = 0.0
        self._known: set[str] = set()
        """Namespaces whose clusters the brokers have told."""
        self.found: dict[str, list[str]] = {}
        """By namespace, the names that the brokers give to the clusters that they replicate it to, and to their own."""

    async def look(self, namespaces: Iterable[str], now: float) -> None:
        """Ask for the replication clusters of ``namespaces``, unless that was tried within :data:`LOOK_SECONDS`.

        A namespace whose clusters the brokers do not show is left out. If they do not answer, what was found before
        stays.
        """
        if now < self._due:
            return
        self._due = now + LOOK_SECONDS
        found: dict[str, list[str]] = {}
        for namespace in sorted(namespaces):
            try:
                clusters = await self._admin.replication_clusters(namespace)
            except AdminFailed as error:
                if not error.is_refusal:
                    return
                continue
            if len(clusters) > 1:
                found[namespace] = sorted(clusters)
        self.found = found
        self._known = set(namespaces)

    async def know(self, topic: str) -> None:
        """Ask for the replication clusters of the topic's namespace, unless the brokers have told these before.

        If no answer comes, the clusters stay unknown: links copy messages even while the admin API is away.
        """
        namespace = parse_topic(topic).full_namespace
        if namespace in self._known:
            return
        with suppress(AdminFailed, TimeoutError):
            async with timeout(KNOW_SECONDS):
                clusters = await self._admin.replication_clusters(namespace)
            self._known.add(namespace)
            if len(clusters) > 1:
                self.found[namespace] = sorted(clusters)

    def origin_of(self, name: str) -> str | None:
        """Return the origin of messages from the brokers' cluster ``name``; None if the topology does not tell."""
        return None if self.origins is None else self.origins.origin_of(name)

    def brings(self, topic: str, origin: str) -> bool:
        """Return whether the brokers have said that they replicate ``topic`` with the cluster of ``origin``."""
        names = self.found.get(parse_topic(topic).full_namespace, ()) if self.found else ()
        return any(self.origin_of(name) == origin for name in names)
