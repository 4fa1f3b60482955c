"""HTTP routes by which a cluster asks another one about its own store.

A worker of another cluster asks what is known of its own store and messages. It also announces a store that is later
than the known one.

A link announces its store, too. But a worker whose place is taken may still run. Then the link of the later store is
refused as that of a twin.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from aiohttp import web

from replicator.api import data_plane
from replicator.api.errors import BadRequest
from replicator.api.guarding import READING, may
from replicator.api.slices import topics_in_slices
from replicator.engine.engine import Engine
from replicator.engine.errors import NotAllowedError
from replicator.engine.lineage import StoreLine
from replicator.engine.log.store_tables import HighWater
from replicator.engine.topic import Topic
from replicator.failover.epochs import FIRST, as_json
from replicator.failover.service import RECORD
from replicator.peering.known_stores import STORE_OF_ROUTE, StoreOf
from replicator.running.connecting import UNREADABLE

Answering = Callable[[web.Request, str, bool], Awaitable[StoreOf]]
"""Returns the answer to a request about a cluster; the flag says whether topics are counted."""


def add_store_of(app: web.Application, answering: Answering, engine: Engine | None = None) -> None:
    """Add the routes to ``app``. Without ``engine`` no announcement is taken."""

    async def store_of(request: web.Request) -> web.Response:
        """Answer what this cluster knows of another cluster's store, and how many of its topics it has something of."""
        cluster = request.query.get("cluster", "")
        if not cluster:
            raise BadRequest("parameter cluster is missing")
        told = await answering(request, cluster, request.query.get("messages") == "true")
        return web.json_response(told.as_json())

    app.router.add_get(STORE_OF_ROUTE, store_of)
    if engine is not None:
        app.router.add_post(STORE_OF_ROUTE, partial(_take_later, engine))


async def _take_later(engine: Engine, request: web.Request) -> web.Response:
    """Record the store of a cluster if it is later than the known one, by the answer of that cluster's own worker.

    The announced store is a hint. It counts only if the worker at the configured address runs on it.
    """
    cluster = request.query.get("cluster", "")
    if cluster not in request.app[data_plane.LINKED_SOURCES]:
        raise NotAllowedError(
            f"the topology has no link from {cluster[:80]!r}; give all workers the same topology file, and run "
            "`replicator apply`"
        )
    try:
        told = StoreLine.of_json(await request.json())
    except UNREADABLE as error:
        raise BadRequest(
            f"the body does not describe a cluster's store in JSON: {error!r:.100}; run the same version in all "
            "clusters"
        ) from None
    known = engine.origin_stores.newest_store(cluster)
    if known is not None and told.is_later(told.store, known.line.store):
        line = await request.app[data_plane.ASKING].store_line(cluster, cluster, told)
        if line.is_later(line.store, known.line.store):
            await engine.origin_stores.take(cluster, {cluster: line}, [], [])
    return web.json_response((await store_known(engine, request, cluster, False)).as_json())


async def store_known(engine: Engine, request: web.Request, cluster: str, counted: bool) -> StoreOf:
    """Return what this cluster knows of ``cluster``: its newest store, the failover epoch, and numbers of its topics.

    Topics are counted only if ``counted``, and only those that the role of ``request`` may read.
    """
    record = engine.store.meta(RECORD) or as_json(FIRST)
    newest = engine.origin_stores.newest_store(cluster)
    topics = messages = 0
    if counted:
        async for topic in topics_in_slices(engine):
            mark = topic.origins.high_water(cluster)
            if mark is None or not may(request, READING, topic.name):
                continue
            topics += 1
            messages += cluster in topic.origins.message_vector() and not _is_deleted(engine, topic, cluster, mark)
    return StoreOf(engine.cluster, record, newest, topics, messages, engine.origin_stores.line)


def _is_deleted(engine: Engine, topic: Topic, cluster: str, mark: HighWater) -> bool:
    """Return whether ``cluster`` deleted the topic on purpose, and no earlier life of it is kept here."""
    kept = (each.partition("/")[0] for each in topic.origins.earlier_lives())
    return cluster not in kept and engine.origin_stores.is_deleted(topic, cluster, mark.incarnation, mark.position)
