"""Routes by which other workers tell the policies and permissions of their clusters, and read those kept for them."""

from __future__ import annotations

import asyncio
import json
from typing import Final

from aiohttp import web

from replicator.api.data_plane import ENGINE
from replicator.api.errors import BadRequest
from replicator.api.guarding import GUARD, ROLE
from replicator.api.runs import RUN_SOURCES, check_run
from replicator.engine.cluster_settings.state import Changes, Kind, Rows, Told
from replicator.engine.engine import Engine
from replicator.engine.errors import NotAllowedError
from replicator.engine.topic_name import SCHEME
from replicator.peering.cluster_settings import BODY_BYTES_MAX, SETTINGS_ROUTE, SettingsKept, SettingsTold
from replicator.running.connecting import UNREADABLE
from replicator.security.guard import EVERYBODY, Guard
from replicator.security.permissions import Action

ROWS_A_TURN: Final = 500
"""Rows whose permission is checked before other tasks of the event loop run."""
REPLICATING: Final = (Action.REPLICATE,)


def settings_routes() -> list[web.RouteDef]:
    return [web.post(SETTINGS_ROUTE, take_settings), web.get(SETTINGS_ROUTE, list_settings)]


async def take_settings(request: web.Request) -> web.Response:
    """Keep the policies and permissions that the worker of another cluster tells of its own cluster.

    The role needs ``replicate`` for each tenant, namespace and topic in the message.
    """
    engine = request.app[ENGINE]
    source = request.query.get("from", "")
    clusters = engine.admission.clusters
    if source == engine.cluster or (clusters and source not in clusters):
        raise NotAllowedError(f"{source[:100]!r} is no other cluster of the topology of {engine.cluster!r}")
    if source in request.app.get(RUN_SOURCES, ()):  # a cluster without a link to here cannot tell its run
        await check_run(request, source)
    try:
        told = await _told(request)
    except UNREADABLE as error:
        raise BadRequest(f"the body does not tell settings, in JSON: {error!r:.100}") from None
    if told.head.cluster != source:
        raise NotAllowedError(f"the worker of {source!r} tells no settings of {told.head.cluster!r}")
    await _check_rows(request, told.changes or {})
    if told.changes is not None and told.base is None:  # what it replaces goes with it
        for state in await asyncio.to_thread(engine.kept_settings.states, source):
            await _check_rows(request, state.rows)
    verdict = await engine.kept_settings.take(told)
    return web.json_response({"verdict": verdict.value})


async def list_settings(request: web.Request) -> web.Response:
    """Answer with the policies and permissions that this worker keeps of a cluster, of each of its stores.

    The role needs ``replicate`` for each tenant, namespace and topic in the answer.
    """
    return await settings_kept(request, request.app[ENGINE])


async def settings_kept(request: web.Request, engine: Engine) -> web.Response:
    """Return the answer to :func:`list_settings` from the store of ``engine``."""
    cluster = request.query.get("cluster", "")
    if not cluster:
        raise BadRequest("parameter cluster is missing")
    states = await asyncio.to_thread(engine.kept_settings.states, cluster)
    for state in states:
        await _check_rows(request, state.rows)
    body = await asyncio.to_thread(lambda: json.dumps(SettingsKept(engine.cluster, states).as_json()).encode())
    return web.Response(body=body, content_type="application/json")


async def _told(request: web.Request) -> Told:
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise web.HTTPRequestEntityTooLarge(BODY_BYTES_MAX, len(body))
    return (await asyncio.to_thread(lambda: SettingsTold.of_json(json.loads(body)))).told


async def _check_rows(request: web.Request, rows: Rows | Changes) -> None:
    """Raise :class:`NotPermitted` if the role of the request may not replicate what one of ``rows`` is about."""
    guard: Guard = request.get(GUARD, EVERYBODY)
    if guard is EVERYBODY:
        return
    role = request.get(ROLE, "")
    for number, (kind, name) in enumerate(rows):
        if number % ROWS_A_TURN == ROWS_A_TURN - 1:
            await asyncio.sleep(0)
        if kind in (Kind.PARTITIONED, Kind.POLICIES) or name.startswith(SCHEME):
            guard.check_topic(role, REPLICATING, name)
        else:
            guard.check(role, REPLICATING, name)
