"""Start and stop of a worker: puts engine, links, sync, database and HTTP API together.

A start first makes the checks of :mod:`replicator.operating.start_checks`, before anything is changed; ``replicator
doctor`` makes the same checks. Then it binds the address, where it answers a few questions from then on
(:mod:`replicator.worker.early`). It opens the store, migrates the database, and asks other clusters what they know of
the store (:mod:`replicator.worker.store_start`); it may have to take back messages before it serves. The worker also
starts while its database does not answer (invariant 9), unless its store reached another database before.

Each part puts its end on a stack when it has started. A worker that stops, and a start that fails half-way, end the
parts in the same order: reloads, the pipeline's driver, traffic, staging, failover, sync, links, index, store,
database.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Final

import structlog
from aiohttp import web

from replicator.api.ack_vectors import add_ack_vectors
from replicator.api.app import make_app, make_monitoring_app
from replicator.api.audit import add_audit
from replicator.api.backfills import add_backfills
from replicator.api.backup import add_backup
from replicator.api.bridge_routes import add_bridge
from replicator.api.drills import add_drills
from replicator.api.failover import add_failover
from replicator.api.http_connection import http_connections
from replicator.api.left_out import add_left_out
from replicator.api.linked_sources import LinkedSources
from replicator.api.mapping import add_mapping
from replicator.api.pipeline import add_pipeline
from replicator.api.rules import add_rules
from replicator.api.staging import add_staging
from replicator.api.store_of import add_store_of, store_known
from replicator.api.subscription_use import add_subscription_use
from replicator.api.verifying import add_mending
from replicator.dashboard.routes import add_dashboard
from replicator.engine.engine import Engine
from replicator.engine.gate import Gate
from replicator.engine.staging.service import StagingService
from replicator.engine.topic import Topic
from replicator.failover.epochs import from_json
from replicator.failover.service import FailoverService
from replicator.gateway.connection import Addresses
from replicator.gateway.own_port import OwnPort
from replicator.gateway.server import Gateway
from replicator.gateway.server_tls import ServerTls
from replicator.index.database import Database
from replicator.index.rebuild import IndexRebuild
from replicator.index.translation import Translator
from replicator.index.writer import IndexWriter
from replicator.operating.binding import BACKLOG, Bound, WorkerError, bind
from replicator.operating.start_checks import DATABASE_REACHED, Setup, check_start, tls_context
from replicator.peering.claim_checker import ClaimChecker
from replicator.peering.runs import Run
from replicator.running.collector import made_to_stay
from replicator.running.ending import ender_of_environment
from replicator.running.extras import ExtraMissing
from replicator.running.short_tasks import awaited
from replicator.running.supervisor import Supervisor
from replicator.security.access import use_in_context
from replicator.security.client_limits import ClientLimits, limits_of_process
from replicator.security.errors import SecurityError
from replicator.sync.routes import TopologyRoutes
from replicator.sync.service import SubscriptionSync
from replicator.sync.use_elsewhere import RemoteUse
from replicator.topology import Cluster, Topology, database_of
from replicator.topology.access import access_of_worker
from replicator.topology.extras import check_extras
from replicator.topology.fields import OPEN
from replicator.topology.made_security import make_security
from replicator.worker.early import HttpListener, Opening, StoreGrants, make_early_app
from replicator.worker.index_source import IndexSource
from replicator.worker.mending import BlockRepair
from replicator.worker.open_store import open_database_and_store
from replicator.worker.parts import (
    Parts,
    addresses,
    bridge_of,
    client_origins,
    other_addresses,
    other_workers,
    service_urls,
)
from replicator.worker.pipeline_driver import PipelineDriver
from replicator.worker.reload import TopologyReloader
from replicator.worker.reports import Reports
from replicator.worker.running_links import RunningLinks, begin_run, incoming
from replicator.worker.security import WorkerSecurity
from replicator.worker.settings_teller import SettingsPublisher
from replicator.worker.store_start import Started, StoppedEarly, StoreReplaced
from replicator.worker.store_watch import StoreWatch
from replicator.worker.taking_states import StateRecovery
from replicator.worker.tracing import WorkerTraces, make_traces
from replicator.worker.watchdog import Watchdog
from replicator.worker.watching import FileWatcher
from replicator.worker.worker import Worker
from snapshots.actions import ControllerSettings

KEEPALIVE_SECONDS: Final = 75.0
"""Lifetime of an HTTP connection without a request, or with an incomplete head. Clients close theirs sooner."""
READ_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""Frames of megabytes are read; aiohttp's default of 64 KiB would stop and start the socket for each piece."""
SHUTDOWN_SECONDS_MAX: Final = 5.0
FIRST_NAMESPACE: Final = "public/default"
SWITCH_SECONDS: Final = 0.0005
"""After which a thread that wants the interpreter gets it. The writer wants it some ten times a group, and waits each
time while the event loop is busy: by Python's own 5 ms, a confirmation could take 50."""

log = structlog.get_logger(__name__)


async def run_worker(
    topology: Topology,
    cluster: str,
    *,
    reload_on_change: bool = False,
    end_when_stuck: int | None = None,
    on_empty_store: str | None = None,
    monitoring: str | None = None,
) -> None:
    """Start a worker, serve until SIGTERM or SIGINT, and stop the worker. Raises the same errors as
    :func:`start_worker`, and :class:`StoreReplaced` if another store takes the place of the worker's store.

    ``on_empty_store``, if given, replaces the topology's setting ``store.on_empty_store`` for this start.
    ``monitoring`` is a further ``HOST:PORT`` where nothing but health and metrics is read.

    On SIGHUP the worker reads its topology file again; a SIGHUP during the start takes effect after it. With
    ``reload_on_change`` the worker also reads the file when it has changed, or when a file that it names for this
    worker has changed. The process ends itself if its event loop stands still for the topology's
    ``watchdog.end_after``, or, if that is not set, for ``end_when_stuck`` seconds.
    """
    watchdog = Watchdog(of_process=True, end_after=end_when_stuck)
    watchdog.start()
    sys.setswitchinterval(SWITCH_SECONDS)
    stopping, hung_up = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    loop.add_signal_handler(signal.SIGHUP, hung_up.set)
    watcher = FileWatcher(cluster, hung_up) if reload_on_change else None
    if watcher is not None:
        await watcher.look(topology)
    try:
        with made_to_stay():
            worker = await start_worker(
                topology,
                cluster,
                watchdog=watchdog,
                on_empty_store=on_empty_store,
                monitoring=monitoring,
                stopping=stopping,
            )
    except StoppedEarly:
        watchdog.stop()
        return
    watch = worker.parts.stores
    watchdog.arm(True)
    try:
        worker.reload_on(hung_up)
        if watcher is not None:
            worker.watch_files(watcher)
        waits = [awaited(stopping.wait()), awaited(watch.replaced.wait())]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for each in waits:
            each.cancel()
    finally:
        watchdog.arm(False)
        await worker.stop()
        watchdog.stop()
    if watch.reason and not stopping.is_set():
        raise StoreReplaced(watch.reason)


async def start_worker(
    topology: Topology,
    name: str,
    supervisor: Supervisor | None = None,
    watchdog: Watchdog | None = None,
    *,
    on_empty_store: str | None = None,
    monitoring: str | None = None,
    stopping: asyncio.Event | None = None,
) -> Worker:
    """Start the worker of cluster ``name``, with all its parts. A store that lost messages has them back then.

    ``stopping`` is set to end a start that waits. Raises :class:`WorkerError`, :class:`StoreUnusable`,
    :class:`DatabaseError`, :class:`ExtraMissing`; then nothing was changed. Raises :class:`StoppedEarly` after
    ``stopping`` was set.
    """
    cluster = topology.cluster(name)
    await check_start(Setup(topology, cluster))
    async with AsyncExitStack() as stack:
        ender = ender_of_environment(os.environ)
        supervisor = supervisor or Supervisor(around=None if ender is None else ender.around)
        use_in_context(access_of_worker(topology, cluster))
        bound = bind(cluster, asks=topology.auth.enabled, monitoring=monitoring)
        stack.callback(bound.close)
        tls = (
            None
            if cluster.tls is None
            else ServerTls(
                partial(tls_context, cluster.name, cluster.tls, optional=topology.auth.certificates_are_optional)
            )
        )
        made = make_security(topology.auth)  # what cannot be read is found before anything is made
        stack.push_async_callback(supervisor.stop)
        if watchdog is None:
            watchdog = Watchdog()
            watchdog.start()
            stack.callback(watchdog.stop)
        watchdog.use(topology.watchdog)
        traces = make_traces(topology.traces, name, supervisor)
        if traces is not None:
            stack.push_async_callback(traces.export.stop)  # after all that makes spans
        opening, grants, limits = Opening(name), StoreGrants(), ClientLimits(limits_of_process())
        security = WorkerSecurity(made, grants, supervisor)
        await security.start()
        stack.push_async_callback(security.stop)
        listening = partial(HttpListener.start, limits=limits, tls=tls, tls_alone=cluster.tls_required)
        early = [await listening(bound.address, make_early_app(opening, security.guarding()))]
        stack.push_async_callback(early[0].stop)
        if bound.monitoring is not None:
            early.append(await listening(bound.monitoring, make_early_app(opening, None, monitoring=True)))
            stack.push_async_callback(early[1].stop)
        database, engine, started = await open_database_and_store(
            topology,
            cluster,
            supervisor,
            stack,
            traces,
            opening,
            grants,
            on_empty_store=on_empty_store,
            stopping=stopping,
        )
        if database.state == "up":
            await engine.remember(DATABASE_REACHED, Database.fingerprint_of(database_of(cluster)))
        if not engine.catalog.tenants():
            # Where clients and tools go that name no namespace: it is there in a new Pulsar cluster too.
            await engine.catalog.create_namespace(FIRST_NAMESPACE)
        engine.writer.latencies.event_loop = watchdog.lag.histogram
        run = await begin_run(engine)
        parts = _make_parts(topology, cluster, database, engine, supervisor, watchdog, stack, traces, run, started)
        await _start_parts(parts, topology)

        # Each is called when all is there.
        reloader = TopologyReloader(
            name, topology, lambda changed: worker.carry_out(changed), partial(_problems_here, name, tls, security)
        )
        gateway = Gateway(
            engine,
            Addresses(cluster.pulsar_url, cluster.pulsar_tls_url),
            authenticator=security.authenticator,
            guard=security.guard,
            broker_metadata=cluster.broker_entry_metadata,
            limits=limits,
        )
        app = _make_app(parts, Reports(parts, reloader, gateway, bound.exposed), security, limits)
        for each in early:
            await each.stop()
        ports = await _serve(app, gateway, bound, tls, stack, tls_required=cluster.tls_required)
        if bound.monitoring is not None:
            stack.push_async_callback((await listening(bound.monitoring, make_monitoring_app(app))).stop)
        parts.failover.watch_gate(partial(_open_or_close, cluster, ports))
        stack.push_async_callback(parts.driver.stop)  # it tells the links that it goes
        await parts.driver.change(topology.pipeline, links=parts.links.carried_by_spark)
        await parts.states.first_try()
        await parts.failover.start()  # the others may be starting too, and ask us
        await asyncio.gather(*(port.settled() for port in ports))
        parts.stores.start()
        stack.push_async_callback(reloader.close)
        if ender is not None:
            stack.push_async_callback(ender.start(supervisor).stop)
        worker = Worker(parts, reloader, app, tls, security, stack.pop_all())
        reloader.ready()
        if bound.exposed:
            log.warning("whoever reaches this worker can read and delete everything", at=bound.exposed)
        log.info("worker ready", cluster=name, address=cluster.address, pid=os.getpid())
        return worker


def _make_parts(
    topology: Topology,
    cluster: Cluster,
    database: Database,
    engine: Engine,
    supervisor: Supervisor,
    watchdog: Watchdog,
    stack: AsyncExitStack,
    traces: WorkerTraces | None,
    run: Run,
    started: Started,
) -> Parts:
    """Return all parts of the worker, not yet started. The stack ends them."""
    name = cluster.name
    index = IndexWriter(
        database,
        cluster=name,
        resync=lambda: source.resync(),  # it is called when there is one
        engine=engine,
        kept=lambda topic, peer: source.kept_mappings(topic, peer),
        vector=lambda topic, subscription: source.vector(topic, subscription),
    )
    sync = SubscriptionSync(
        engine,
        routes=TopologyRoutes(topology, name),
        settings=ControllerSettings(
            snapshot_interval_ms=topology.sync.snapshot_interval_ms,
            snapshot_timeout_ms=topology.sync.snapshot_timeout_ms,
            update_interval_ms=topology.sync.update_interval_ms,
        ),
        index=index.changes,
        exact=topology.sync.mode == "exact",
    )
    links = RunningLinks(engine, index.changes, on_lost_copy=sync.announce_all, run=run)
    bridge = bridge_of(topology, cluster, engine)
    failover = FailoverService(
        engine,
        addresses(topology),
        service_urls=service_urls(topology),
        origins=client_origins(topology),
        clients=None if bridge is None else bridge.clients,
        index=index.changes,
    )
    source = IndexSource(engine, index.changes, sync, failover, links)
    parts = Parts(
        supervisor,
        database,
        engine,
        index,
        IndexRebuild(engine, index, mappings=source.mappings),
        sync,
        links,
        failover,
        StagingService(engine),
        PipelineDriver(name, cluster.url, links.waits_for, links.driver_ended, supervisor),
        LinkedSources(),
        BlockRepair(engine, supervisor, partial(_go_on, links)),
        RemoteUse(engine, sync.peers),
        watchdog,
        SettingsPublisher(engine, links.pauses_put_back),
        StateRecovery(engine, sync, other_addresses(topology, name), topology.store.wait_for_states_seconds),
        StoreWatch(engine, topology, started, supervisor, failover.adopt),
        ClaimChecker(name),
        bridge,
        traces,
    )
    for end in (
        parts.stores.stop,
        parts.claim_checker.stop,
        parts.mending.stop,
        parts.settings.stop,
        parts.states.stop,
        parts.use_elsewhere.stop,
        index.stop,
        parts.rebuild.stop,
        links.stop,
        sync.stop,
        failover.stop,
        parts.staging.stop,
    ):
        stack.push_async_callback(end)
    if parts.bridge is not None:
        stack.push_async_callback(parts.bridge.stop)
    return parts


async def _start_parts(parts: Parts, topology: Topology) -> None:
    if parts.traces is not None:
        parts.traces.export.start()
    parts.mending.change(other_workers(topology, parts.cluster))
    parts.mending.start()  # before anything is read: what is found to be damaged is mended
    await parts.sync.start()
    parts.index.start()  # not before sync knows all mappings: the index drops those that it is not given
    await parts.links.change(topology)
    if parts.bridge is not None:
        parts.bridge.start()
    parts.states.begin()
    parts.engine.maintenance.start()  # not before links and bridge hold back what they have not passed on
    parts.sources.replace(incoming(topology, parts.cluster))
    parts.claim_checker.change(other_addresses(topology, parts.cluster))
    parts.failover.close_gate()
    parts.staging.start()
    await parts.settings.change(other_addresses(topology, parts.cluster))
    await parts.settings.start()
    parts.use_elsewhere.change(addresses(topology), topology.sync.in_use_timeout_ms)
    parts.engine.admission.use_elsewhere = parts.use_elsewhere


def _go_on(links: RunningLinks, topic: Topic) -> None:
    """Let links and consumers that stopped at a damaged block of ``topic`` try again, after its repair."""
    for link in links:
        link.try_again(topic.name)
    for subscription in topic.subscriptions.values():
        subscription.dispatching.pump.schedule()


def _make_app(parts: Parts, reports: Reports, security: WorkerSecurity, limits: ClientLimits) -> web.Application:
    app = make_app(
        parts.engine,
        reports,
        parts.sources,
        parts.link_opened,
        reports,
        reports.addresses,
        reports.allowed,
        parts.index.changes.audit,
        security.guarding(),
        limits,
        reports.metrics,
        parts.claim_checker,
    )
    add_audit(app, parts.index)
    add_drills(app, parts.index)
    add_backup(app, parts.engine, parts.index.changes.audit)
    add_mending(app, parts.mending)
    add_store_of(app, partial(store_known, parts.engine), parts.engine)
    add_rules(app, parts.engine, security.permissions)
    add_failover(app, parts.failover, from_json)
    add_ack_vectors(app, parts.sync)
    add_subscription_use(app, parts.engine, parts.bridge)
    add_left_out(app, parts.bridge)
    add_bridge(app, parts.cluster, parts.bridge, parts.index.changes.audit)
    add_pipeline(app, reports)
    add_backfills(app, reports)
    add_staging(app, parts.staging)
    translator = Translator(parts.engine, parts.index)
    add_mapping(app, parts.engine, translator, parts.rebuild, lambda: parts.database.state == "up")
    add_dashboard(app, parts.cluster, reports.topology, security.guarding())
    return app


async def _serve(
    app: web.Application,
    gateway: Gateway,
    bound: Bound,
    tls: ServerTls | None,
    stack: AsyncExitStack,
    *,
    tls_required: bool,
) -> list[OwnPort]:
    """Serve HTTP and the binary protocol. Return the ports of the binary protocol, which are still closed."""
    runner = web.AppRunner(app, shutdown_timeout=SHUTDOWN_SECONDS_MAX)
    stack.push_async_callback(runner.cleanup)
    await runner.setup()
    stack.push_async_callback(gateway.stop)
    http = http_connections(
        runner,
        read_bufsize=READ_BUFFER_BYTES,
        keepalive_timeout=KEEPALIVE_SECONDS,
        auto_decompress=False,  # a small body could become a large one
    )
    await gateway.share(bound.address, http, backlog=BACKLOG, tls=tls, tls_alone=tls_required)
    ports: list[OwnPort] = []
    if bound.pulsar is not None:
        ports.append(gateway.own_port(bound.pulsar, backlog=BACKLOG))
    if bound.pulsar_tls is not None and tls is not None:
        ports.append(gateway.own_port(bound.pulsar_tls, backlog=BACKLOG, tls=tls))
    return ports


def _open_or_close(cluster: Cluster, ports: Sequence[OwnPort], gate: Gate) -> None:
    """Open or close the ports of the binary protocol, as the gate says."""
    for port in ports:
        port.set_open(cluster.pulsar_while_fenced == OPEN or not gate.rejects_all)


def _problems_here(name: str, tls: ServerTls | None, security: WorkerSecurity, topology: Topology) -> list[str]:
    """Read the files of TLS and those that ``auth`` names again, which may have been replaced; says why they cannot be
    used, and what is not installed that a changed topology needs."""
    try:
        check_extras(topology, name)
        if tls is not None:
            tls.read_files()
        if topology.auth.enabled != security.enabled:
            return ["auth: turning it on or off needs a restart of the worker"]
        security.read(topology.auth)
    except (WorkerError, SecurityError, ExtraMissing) as error:
        return [str(error)]
    return []
