"""Opening of a worker's database and store, in the order that lets a start fail without having changed anything.

1. A store that exists is opened first: it says whether the database was reached before.
2. The database is started or found. Unless the store reached another one before, the start goes on without it.
3. Other clusters are asked (:mod:`replicator.worker.store_start`). Only after that a new store is made.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import structlog

from replicator.engine.engine import Engine, EngineSettings
from replicator.engine.log.store_files import LOG, is_there
from replicator.engine.restored import BESIDE, check_settled, restored_mark
from replicator.index.database import Database, DatabaseUnavailable
from replicator.index.earlier_rows import EarlierRows, earlier_rows
from replicator.operating.start_checks import DATABASE_REACHED, never_served
from replicator.running.supervisor import Supervisor
from replicator.topology import Cluster, Topology, database_of
from replicator.worker.early import Opening, StoreGrants
from replicator.worker.store_start import OpenStore, Started, StoreStart
from replicator.worker.tracing import WorkerTraces

log = structlog.get_logger(__name__)


async def open_database_and_store(
    topology: Topology,
    cluster: Cluster,
    supervisor: Supervisor,
    stack: AsyncExitStack,
    traces: WorkerTraces | None,
    opening: Opening,
    grants: StoreGrants,
    *,
    on_empty_store: str | None = None,
    stopping: asyncio.Event | None = None,
) -> tuple[Database, Engine, Started]:
    """Return the started database, the open store, and how the worker came to serve on it. Their ends are on ``stack``.

    Raises the errors of :class:`StoreStart`, and those of the database and the store.
    """
    setting = database_of(cluster)

    def opened(engine: Engine | None) -> None:
        opening.engine = grants.engine = engine
        opening.has_store = True

    async def open_engine() -> Engine:
        return await _open_engine(cluster, topology, supervisor, traces)

    store, reached = OpenStore(open_engine, opened), None
    opening.has_store = is_there(cluster.data / LOG)
    if opening.has_store:
        engine = await store.open()
        reached = engine.store.meta(DATABASE_REACHED)
    database = Database(
        setting,
        cluster.data,
        cluster=cluster.name,
        known_good=reached == Database.fingerprint_of(setting),
        none_reached=reached is None,
    )
    stack.push_async_callback(database.stop)
    stack.push_async_callback(store.close)
    try:
        await database.start()
    except DatabaseUnavailable as error:
        log.warning("started without the database", cluster=cluster.name, reason=str(error))

    async def earlier() -> EarlierRows | None:
        return await earlier_rows(database, cluster.name)

    start = StoreStart(
        topology, cluster.name, store, opening, earlier, on_empty_store=on_empty_store, stopping=stopping
    )
    started = await start.begin()
    assert store.engine is not None
    return database, store.engine, started


async def _open_engine(
    cluster: Cluster, topology: Topology, supervisor: Supervisor, traces: WorkerTraces | None
) -> Engine:
    settings = EngineSettings(
        store_bytes_max=topology.store.size_max,
        message_bytes_max=topology.store.message_size_max,
        segments=topology.store.segments(),
        namespaces_by_use=cluster.namespaces_by_use,
        policies=cluster.policies.topic_policies(),
        maintained=False,
        unpacked_bytes_max=topology.store.unpacked_max,
        tracing=None if traces is None else traces.tracing,
    )
    engine = await Engine.open(cluster.data, cluster=cluster.name, settings=settings, supervisor=supervisor)
    mark = restored_mark(engine.store)
    try:
        if not never_served(engine.store.meta, mark):  # else the start goes on with what an earlier start began
            check_settled(cluster.data, cluster.name, mark, engine.store.meta(BESIDE))
    except BaseException:
        await engine.close()
        raise
    if mark is not None and (text := mark.in_words()):
        told = log.warning if mark.backup or mark.lost else log.info
        told(text, cluster=cluster.name, **mark.as_json())
    return engine
