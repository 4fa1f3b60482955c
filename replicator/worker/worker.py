"""The worker of one cluster: puts engine, links, sync, database and HTTP API together, and takes them down in order.

Starting checks everything that can be refused before anything is changed: the address is bound, then the
directory and the database are looked at, then the store is opened, and only a worker that will run migrates the
database. After the first successful start a database that is away does not keep the worker from starting (invariant 9).
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import structlog
from aiohttp import web

from replicator import __version__
from replicator.api.ack_vectors import add_ack_vectors
from replicator.api.app import make_app
from replicator.api.backfills import add_backfills
from replicator.api.data_plane import end_streams
from replicator.api.failover import add_failover
from replicator.api.linked_sources import LinkedSources
from replicator.api.mapping import add_mapping
from replicator.api.pipeline import add_pipeline
from replicator.api.staging import add_staging
from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.errors import StoreUnusable
from replicator.engine.staging.service import StagingService
from replicator.engine.subscriptions.subscription import Subscription
from replicator.engine.topic import Topic
from replicator.failover.epochs import from_json
from replicator.failover.service import FailoverService
from replicator.index.database import Database, DatabaseUnavailable
from replicator.index.rebuild import IndexRebuild
from replicator.index.translation import Translator
from replicator.index.writer import IndexWriter
from replicator.links.link import Link
from replicator.sync.routes import TopologyRoutes
from replicator.sync.service import SubscriptionSync
from replicator.topology import SPARK, Cluster, Topology, TopologyError
from replicator.topology.diff import digest
from replicator.worker.pipeline_driver import PipelineDriver
from replicator.worker.reload import NotRunning, TopologyReloader
from replicator.worker.running_links import RunningLinks, incoming
from snapshots.ack_vector import AckVector
from snapshots.actions import ControllerSettings
from snapshots.errors import SnapshotsError
from snapshots.mapping import SnapshotMapping
from snapshots.position import Position

READ_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Frames of megabytes are read; aiohttp's default of 64 KiB would stop and start the socket for each piece."""
SHUTDOWN_SECONDS_MAX: Final = 5.0
BACKLOG: Final = 1024

log = structlog.get_logger(__name__)


class WorkerError(Exception):
    """The worker cannot be started as it is configured; the message names the field."""


class Worker:
    """One cluster's worker. :meth:`start`, :meth:`stop`; or :meth:`run` until SIGTERM or SIGINT."""

    def __init__(self, topology: Topology, cluster: str) -> None:
        self._reloader = TopologyReloader(cluster, topology, self._carry_out)
        self._cluster: Cluster = topology.cluster(cluster)
        self._socket: socket.socket | None = None
        self._database: Database | None = None
        self._engine: Engine | None = None
        self._index: IndexWriter | None = None
        self._rebuild: IndexRebuild | None = None
        self._sync: SubscriptionSync | None = None
        self._failover: FailoverService | None = None
        self._links: RunningLinks | None = None
        self._driver: PipelineDriver | None = None
        self._staging: StagingService | None = None
        self._sources = LinkedSources()
        self._runner: web.AppRunner | None = None

    async def run(self) -> None:
        """Start, serve until SIGTERM or SIGINT, and stop. Raises what :meth:`start` raises.

        SIGHUP makes the worker read its file again; one that comes while it starts is heeded when it has started.
        """
        stopping, hung_up = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stopping.set)
        loop.add_signal_handler(signal.SIGHUP, hung_up.set)
        reloading: asyncio.Task[None] | None = None
        try:
            await self.start()
            reloading = loop.create_task(self._reload_on(hung_up), name="reloads on SIGHUP")
            await stopping.wait()
        finally:
            if reloading is not None:
                reloading.cancel()
            await self.stop()

    async def reload(self, topology: Topology) -> list[str]:
        """Run ``topology`` from now on; returns what changed for this worker, in words.

        Raises :class:`TopologyError` for what needs a restart, and :class:`NotRunning`; nothing was changed then.
        """
        return await self._reloader.reload(topology)

    async def reload_file(self, *, expected: str | None = None, dry_run: bool = False) -> list[str]:
        """See :meth:`TopologyReloader.reload_file`."""
        return await self._reloader.reload_file(expected=expected, dry_run=dry_run)

    async def _reload_on(self, hung_up: asyncio.Event) -> None:
        while True:
            await hung_up.wait()
            hung_up.clear()
            try:
                await self.reload_file()
            except TopologyError as error:
                problems = list(error.problems)
                log.error("topology not reloaded", cluster=self._cluster.name, problems=problems)  # noqa: TRY400
            except NotRunning:  # it is being stopped
                return
            except Exception:
                log.exception("topology not reloaded", cluster=self._cluster.name)

    async def _carry_out(self, topology: Topology) -> None:
        """The steps of a reload. They go by what runs, so that they can be done again."""
        assert self._engine is not None
        assert self._sync is not None
        assert self._links is not None
        assert self._runner is not None
        self._cluster = topology.cluster(self._cluster.name)
        if self._index is not None:
            self._index.audit("operator", "reload", "topology", {"digest": digest(topology)})
        gone = self._sources.replace(incoming(topology, self._cluster.name))
        end_streams(self._runner.app, gone)
        await self._links.change(topology)
        assert self._driver is not None
        await self._driver.change(topology.pipeline, links=self._links.carried_by_spark)
        self._engine.set_default_policies(self._cluster.policies.topic_policies())
        self._sync.on_topology(topology)
        if self._failover is not None:
            self._failover.on_topology(_addresses(topology))

    async def start(self) -> None:
        """Raises :class:`WorkerError`, :class:`StoreUnusable`, :class:`DatabaseError`; then nothing was changed."""
        cluster = self._cluster
        self._socket = _bind(cluster)
        data = cluster.data
        known_good = await self._open_store_if_there(data)
        self._database = Database(cluster.database, data, cluster=cluster.name, known_good=known_good)
        try:
            await self._database.start()
        except DatabaseUnavailable as error:
            log.warning("started without the database", cluster=cluster.name, reason=str(error))
        await self._open_store(data)
        assert self._engine is not None
        if self._database.state == "up":
            await self._engine.remember("database_reached", Database.fingerprint_of(cluster.database))
        await self._start_parts(self._engine, self._database)
        assert self._failover is not None
        await self._failover.start()  # the others may be starting too, and ask us
        self._reloader.ready()
        log.info("worker ready", cluster=cluster.name, address=cluster.address, pid=os.getpid())

    async def stop(self) -> None:
        """Stop what was started, in the order that loses nothing: traffic, sync, links, index, store, database."""
        await self._reloader.close()
        if self._driver is not None:
            await self._driver.stop()  # it tells the links that it goes
        if self._runner is not None:
            await self._runner.cleanup()
        elif self._socket is not None:
            self._socket.close()
        if self._staging is not None:
            await self._staging.stop()
        if self._failover is not None:
            await self._failover.stop()
        if self._sync is not None:
            await self._sync.stop()
        if self._links is not None:
            await self._links.stop()
        if self._rebuild is not None:
            await self._rebuild.stop()
        if self._index is not None:
            await self._index.stop()
        if self._engine is not None:
            await self._engine.close()
        if self._database is not None:
            await self._database.stop()

    async def _open_store_if_there(self, data: Path) -> bool:
        """Open a store that exists, to see whether the database was reached before. A new one is made later."""
        if not (data / "log").exists():
            _check_directory(data)
            return False
        await self._open_store(data)
        assert self._engine is not None
        reached = self._engine.store.meta("database_reached")
        return bool(reached == Database.fingerprint_of(self._cluster.database))

    async def _open_store(self, data: Path) -> None:
        if self._engine is None:
            settings = EngineSettings(
                store_bytes_max=self._reloader.topology.store.size_max,
                policies=self._cluster.policies.topic_policies(),
                maintained=False,
            )
            self._engine = await Engine.open(data, cluster=self._cluster.name, settings=settings)

    async def _start_parts(self, engine: Engine, database: Database) -> None:
        name, topology = self._cluster.name, self._reloader.topology
        self._index = IndexWriter(
            database, cluster=name, resync=self._resync, engine=engine, kept=self._kept_mappings, vector=self._vector
        )
        settings = ControllerSettings(
            snapshot_interval_ms=topology.sync.snapshot_interval_ms,
            snapshot_timeout_ms=topology.sync.snapshot_timeout_ms,
            update_interval_ms=topology.sync.update_interval_ms,
        )
        self._sync = SubscriptionSync(
            engine,
            routes=TopologyRoutes(topology, name),
            settings=settings,
            index=self._index,
            exact=topology.sync.mode == "exact",
        )
        self._index.start()
        self._sync.start()
        self._links = RunningLinks(engine, self._index, on_lost_copy=self._sync.tell_all)
        await self._links.change(topology)
        engine.maintenance.start()  # not before the links hold back what they have not copied
        self._sources.replace(incoming(topology, name))
        self._failover = FailoverService(engine, _addresses(topology), index=self._index)
        self._failover.close_gate()
        app = make_app(engine, self, self._sources, self._link_opened, self)
        add_failover(app, self._failover, from_json)
        add_ack_vectors(app, self._sync)
        add_pipeline(app, self)
        add_backfills(app, self)
        self._staging = StagingService(engine)
        self._staging.start()
        add_staging(app, self._staging)
        self._rebuild = IndexRebuild(engine, self._index, kept=self._kept_mappings)
        add_mapping(app, engine, Translator(engine, self._index), self._rebuild, lambda: database.state == "up")
        self._runner = web.AppRunner(
            app, access_log=None, read_bufsize=READ_BUFFER_BYTES, shutdown_timeout=SHUTDOWN_SECONDS_MAX
        )
        await self._runner.setup()
        assert self._socket is not None
        await web.SockSite(self._runner, self._socket, backlog=BACKLOG).start()
        links = self._links
        self._driver = PipelineDriver(name, self._cluster.url, links.waits_for, links.driver_ended)
        await self._driver.change(topology.pipeline, links=self._links.carried_by_spark)

    def _link_opened(self, source: str) -> None:
        assert self._links is not None
        assert self._failover is not None
        self._links.opened(source)
        self._failover.link_opened(source)

    def _resync(self) -> None:
        """The index lost something: give it all again."""
        assert self._index is not None
        assert self._sync is not None
        assert self._engine is not None
        if self._failover is not None:
            self._failover.resync()
        for topic, mapping in self._sync.mappings():
            self._index.mapping_recorded(topic, mapping)
        for topic_ in self._engine.topics():
            for name, generation in topic_.subscriptions.tombstones.items():
                self._index.subscription_deleted(topic_.name, name, generation)
            for subscription in topic_.subscriptions.values():
                cursor = subscription.cursor
                self._index.subscription_moved(
                    topic_.name,
                    subscription.name,
                    cursor.generation,
                    cursor.mark_delete,
                    replicated=subscription.replicated,
                )
        for link in self.links():
            link.update_index()

    def _kept_mappings(self, topic: str, peer: str) -> list[Position]:
        """The local positions of the mappings that are in memory: those that the index keeps."""
        assert self._sync is not None
        return [mapping.local for mapping in self._sync.mappings_of(topic, peer)]

    def _vector(self, topic: Topic, subscription: Subscription) -> AckVector:
        assert self._sync is not None
        return self._sync.vector(topic, subscription)

    # What the API asks.

    def ready(self) -> str | None:
        assert self._engine is not None
        assert self._failover is not None
        return self._engine.writer.failed or self._failover.not_ready()

    def status(self) -> dict[str, Any]:
        assert self._engine is not None
        assert self._database is not None
        assert self._sync is not None
        engine, database = self._engine, self._database
        return {
            "cluster": engine.cluster,
            "version": __version__,
            "pid": os.getpid(),
            "started_at_ms": engine.started_at_ms,
            "database": {"state": database.state, "detail": database.detail},
            "store": {
                "failed": engine.writer.failed,
                "bytes": engine.store.size_bytes(),
                "commits": engine.writer.commits,
            },
            "topology": self._reloader.status(),
            "failover": None if self._failover is None else self._failover.state(),
            "links": [link.status() for link in self.links()],
            "pipeline": None if self._driver is None else self._driver.status(),
            "counters": self._sync.counters(),
            "staging": None if self._staging is None else self._staging.status(),
        }

    def topology_status(self) -> dict[str, Any]:
        return {"cluster": self._cluster.name, **self._reloader.status(), "text": self._reloader.text()}

    def links(self) -> Sequence[Link]:
        return list(self._links or ())

    def pipeline(self) -> dict[str, Any]:
        """What a driver of the pipeline needs to know: the links of this worker that Spark carries for."""
        topology = self._reloader.topology
        settings = topology.pipeline
        return {
            "cluster": self._cluster.name,
            "master": settings.master,
            "batch_seconds": settings.batch,
            "conf": {key: value for key, value in settings.conf.items() if settings.conf_masked[key] == value},
            "driver": settings.driver,
            "links": [link.planned() for link in self.links() if link.route.engine == SPARK],
        }

    async def mappings(self, topic: str) -> Sequence[SnapshotMapping] | None:
        assert self._index is not None
        try:
            return await self._index.mappings(topic)
        except SnapshotsError:
            return None


def _addresses(topology: Topology) -> dict[str, str]:
    return {cluster.name: cluster.address for cluster in topology.clusters}


def _bind(cluster: Cluster) -> socket.socket:
    """Take the address now, so that a port in use is found before anything is made."""
    host = cluster.address.rpartition(":")[0].strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, cluster.port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as error:
        raise WorkerError(f"clusters.{cluster.name}.address: {cluster.address}: {error.strerror}") from None
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(BACKLOG)  # until then two workers that start at once could both bind it
    except OSError as error:
        bound.close()
        raise WorkerError(
            f"clusters.{cluster.name}.address: {cluster.address} cannot be used: {error.strerror}; "
            "stop what uses it or choose another port"
        ) from None
    return bound


def _check_directory(data: Path) -> None:
    """Raises :class:`StoreUnusable` if ``data`` cannot be made or written, without making it."""
    place = data
    while not place.exists():
        place = place.parent
    if not place.is_dir():
        raise StoreUnusable(f"data directory {data} cannot be made: {place} is not a directory")
    if not os.access(place, os.W_OK | os.X_OK):
        raise StoreUnusable(f"data directory {data} cannot be written: no permission on {place}")
