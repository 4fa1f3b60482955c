"""Namespaces that the brokers replicate themselves, by Pulsar's own geo-replication, beside this worker.

Where both copy a namespace between the same clusters, each message stands twice at both. Nobody stops that here: the
status, ``replicator status`` and ``replicator doctor`` name the namespaces.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from replicator.apache.admin import BrokerAdmin
from replicator.apache.errors import AdminFailed

LOOK_SECONDS: Final = 30.0
"""Time between two looks. A look makes one request for each namespace with bridged topics."""


class NativeReplication:
    """Namespaces with bridged topics that have more than one replication cluster."""

    def __init__(self, admin: BrokerAdmin) -> None:
        self._admin = admin
        self._due = 0.0
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
