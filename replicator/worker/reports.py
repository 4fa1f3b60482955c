"""Answers of a running worker's HTTP API: implements :class:`~replicator.api.app.StatusSource`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, Final

from replicator import __version__
from replicator.api.addresses import ClusterAddress
from replicator.api.browsers import Allowed
from replicator.engine.restored import restored_mark
from replicator.gateway.server import Gateway
from replicator.links.link import Link
from replicator.running.supervisor import Supervisor
from replicator.topology import SPARK, MetricsSettings, Topology
from replicator.worker.parts import Parts
from replicator.worker.reload import TopologyReloader
from snapshots.errors import SnapshotsError
from snapshots.mapping import SnapshotMapping

BUSIEST_SHOWN: Final = 3


class Reports:
    """Reads the parts when it is asked; holds nothing of its own."""

    def __init__(self, parts: Parts, reloader: TopologyReloader, gateway: Gateway, exposed: Sequence[str] = ()) -> None:
        """Create the reports. ``exposed`` are the addresses at which other hosts reach the worker without being
        identified."""
        self._parts = parts
        self._exposed = list(exposed)
        self._allowed: tuple[Topology, Allowed] | None = None
        self._reloader = reloader
        self._gateway = gateway

    def ready(self) -> str | None:
        return self._parts.engine.writer.failed or self._parts.failover.not_ready()

    def full(self) -> str | None:
        """Return why the worker takes no messages because disk or store is full; None while it takes them."""
        return self._parts.engine.writer.full()

    def topology_refused(self) -> str | None:
        """Return why the worker refused the topology file when it last reloaded it; None if it did not refuse it."""
        refused = self._reloader.file_refused
        return None if refused is None else str(refused)

    def failing_tasks(self) -> list[dict[str, Any]]:
        return failing_tasks(self._parts.supervisor)

    def status(self) -> dict[str, Any]:
        parts, engine, database = self._parts, self._parts.engine, self._parts.database
        restored, disk = restored_mark(engine.store), engine.writer.disk_status()
        return {
            "cluster": engine.cluster,
            "version": __version__,
            "pid": os.getpid(),
            "started_at_ms": engine.started_at_ms,
            "database": {
                "state": database.state,
                "detail": database.detail,
                "rows_refused": parts.index.rows_refused,
            },
            "audit": {"waiting": parts.index.changes.audit_waiting, "dropped": parts.index.changes.entries_dropped},
            "store": {
                "failed": engine.writer.failed,
                "bytes": engine.store.size_bytes(),
                "bytes_max": engine.store.size_max,
                "commits": engine.writer.commits,
                "full": self.full(),
                "disk": disk,
                "segments": engine.store.segments.status(),
                **parts.mending.status(),
            },
            "deduplication": engine.conflicts.status(),
            "clients": {
                "connections": self._gateway.connections,
                "accepted": self._gateway.accepted,
                "busiest": [
                    {"address": share.address, "role": share.role, "seconds": round(seconds, 3)}
                    for share, seconds in engine.turns.busiest(BUSIEST_SHOWN)
                ],
            },
            "unpacking": engine.unpacking.status(),
            "run": self._parts.links.run_status(),
            "start": parts.stores.status(),
            "stores": engine.origin_stores.newest_stores(),
            "restored": None if restored is None else restored.as_json(),
            "settings": parts.settings.status(),
            **({} if (states := parts.states.status()) is None else {"states": states}),
            "exposed": self._exposed,
            "topology": self._reloader.status(),
            "failover": parts.failover.state(),
            "links": [link.status() for link in self.links()],
            "pipeline": parts.driver.status(),
            "counters": parts.sync.counters(),
            "kept_lives": parts.sync.kept_lives(),
            "staging": parts.staging.status(),
            **({} if parts.bridge is None else {"apache": parts.bridge.status()}),
            **({} if parts.traces is None else {"traces": parts.traces.status()}),
            "event_loop": parts.watchdog.status(),
            "tasks": {"restarts": dict(parts.supervisor.restarts()), "failing": self.failing_tasks()},
        }

    def topology(self) -> Topology:
        """Return the topology that the worker runs."""
        return self._reloader.topology

    def topology_status(self) -> dict[str, Any]:
        return {"cluster": self._parts.cluster, **self._reloader.status(), "text": self._reloader.text()}

    async def reload_file(self, *, expected: str | None = None, dry_run: bool = False) -> list[str]:
        """Read the topology file again, as :meth:`TopologyReloader.reload_file` does."""
        return await self._reloader.reload_file(expected=expected, dry_run=dry_run)

    def addresses(self) -> dict[str, ClusterAddress]:
        """Return the addresses at which clients reach each cluster of the present topology."""
        clusters = self._reloader.topology.clusters
        return {each.name: ClusterAddress(each.client_url, each.pulsar_url, each.pulsar_tls_url) for each in clusters}

    def allowed(self) -> Allowed:
        """Return the host names of the worker, and the origins of web pages that may call it."""
        topology = self._reloader.topology
        if self._allowed is None or self._allowed[0] is not topology:
            own = topology.cluster(self._parts.cluster)
            names = {host for cluster in topology.clusters for host in cluster.hosts_of_places()}
            self._allowed = topology, Allowed(frozenset(names.union(own.hosts)), frozenset(own.origins))
        return self._allowed[1]

    def metrics(self) -> MetricsSettings:
        """Return the settings of ``/metrics``."""
        return self._reloader.topology.metrics

    def links(self) -> Sequence[Link]:
        return list(self._parts.links)

    def pipeline(self) -> dict[str, Any]:
        """Return what a pipeline's driver needs: Spark's settings, and the links of this worker that Spark carries."""
        settings = self._reloader.topology.pipeline
        return {
            "cluster": self._parts.cluster,
            "master": settings.master,
            "batch_seconds": settings.batch,
            "conf": {key: value for key, value in settings.conf.items() if settings.conf_masked[key] == value},
            "driver": settings.driver,
            "run": self._parts.links.run.id,
            "links": [link.planned() for link in self.links() if link.route.engine == SPARK],
        }

    async def mappings(self, topics: Sequence[str]) -> Mapping[str, Sequence[SnapshotMapping]] | None:
        try:
            return await self._parts.index.mappings_of(topics)
        except SnapshotsError:
            return None


def failing_tasks(supervisor: Supervisor) -> list[dict[str, Any]]:
    """Return the tasks that ended five times within ten minutes, each with its number of ends and the last error."""
    return [
        {"name": task.name, "kind": task.kind, "ends": task.restarts, "cause": task.last_end}
        for task in supervisor.failing()
    ]
