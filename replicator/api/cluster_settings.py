"""Routes by which workers exchange the policies and permissions of clusters.

Each worker tells those of its own cluster. It keeps those of other clusters, and tells which it keeps.

A role that may replicate something can send a hint that a cluster has a newer version. The hint itself is not believed:
this worker asks the cluster's worker, at its address in the topology, and keeps only what that one answers
(:mod:`replicator.peering.claim_checker`).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from functools import partial
from typing import Final

from aiohttp import web

from replicator.api.data_plane import ASKING, ENGINE
from replicator.api.errors import BadRequest
from replicator.api.guarding import GUARD, ROLE, may
from replicator.api.pages import check_room_for_page, send_page
from replicator.api.slices import in_slices
from replicator.engine.cluster_settings.state import Changes, KeptState, Kind, Rows, SettingsHead, Verdict
from replicator.engine.engine import Engine
from replicator.engine.errors import NotAllowedError
from replicator.engine.topic_name import SCHEME
from replicator.peering.claim_checker import ClaimChecker
from replicator.peering.cluster_settings import (
    HINT_BYTES_MAX,
    OWN_SETTINGS_ROUTE,
    SETTINGS_ROUTE,
    HintAnswer,
    OwnSettingsTold,
    SettingsHint,
    SettingsKept,
)
from replicator.running.connecting import UNREADABLE
from replicator.running.json_by_steps import dumps_by_steps
from replicator.security.guard import EVERYBODY, Guard
from replicator.security.permissions import Action

ROWS_A_TURN: Final = 500
"""Rows whose permission is checked before other tasks of the event loop run."""
JSON: Final = {"Content-Type": "application/json"}
REPLICATING: Final = (Action.REPLICATE,)


def settings_routes() -> list[web.RouteDef]:
    return [
        web.post(SETTINGS_ROUTE, take_hint),
        web.get(OWN_SETTINGS_ROUTE, own_settings),
        web.get(SETTINGS_ROUTE, list_settings),
    ]


async def take_hint(request: web.Request) -> web.Response:
    """Take a hint that a cluster has other policies and permissions. Ask its worker for them if they are not kept."""
    engine, claim_checker = request.app[ENGINE], request.app[ASKING]
    source = request.query.get("from", "")
    claim_checker.check(source)
    try:
        hint = await _hint(request)
    except UNREADABLE as error:
        raise BadRequest(
            "the body must be a JSON object that names a cluster, its store and the version of its settings: "
            f"{error!r:.100}"
        ) from None
    if hint.cluster != source:
        raise NotAllowedError(
            f"the worker of {source!r} may announce its own settings only, not those of {hint.cluster!r}"
        )
    kept = engine.kept_settings.heads.get((source, hint.store))
    if kept is not None and (kept.version, kept.digest) == (hint.version, hint.digest):
        return web.json_response(HintAnswer(Verdict.KEPT, kept.digest).as_json())
    verdict, found = await claim_checker.shared(("settings", source), partial(_ask, engine, claim_checker, source))
    if found is None or found.store != hint.store:
        raise NotAllowedError(
            f"settings of {source!r} were announced from store {hint.store!r}, and its worker at the address in the "
            "topology, which was asked, runs on another store: see that only one worker of that cluster runs"
        )
    return web.json_response(HintAnswer(verdict, found.digest).as_json())


async def _hint(request: web.Request) -> SettingsHead:
    body = bytearray()
    async for piece in request.content.iter_any():
        body += piece
        if len(body) > HINT_BYTES_MAX:
            raise web.HTTPRequestEntityTooLarge(HINT_BYTES_MAX, len(body))
    return SettingsHint.of_json(json.loads(body)).head


async def _ask(engine: Engine, claim_checker: ClaimChecker, source: str) -> tuple[Verdict, SettingsHead | None]:
    """Ask the worker of ``source`` for its settings, and keep them. Return what came of it, and their version.

    The version is None if nothing was ever set at ``source``.
    """
    known = {head.store: head.digest for head in engine.kept_settings.of(source)}
    told = await claim_checker.settings(source, known)
    verdict = Verdict.KEPT if told is None else await engine.kept_settings.take(told)
    if verdict is Verdict.WHOLE:
        told = await claim_checker.settings(source, {})
        verdict = Verdict.KEPT if told is None else await engine.kept_settings.take(told)
    return verdict, None if told is None else told.head


async def own_settings(request: web.Request) -> web.StreamResponse:
    """Answer with this cluster's own policies and permissions, or only what changed since the asker's version.

    The role needs ``replicate`` for each tenant, namespace and topic in the answer.
    """
    check_room_for_page(request.app)
    engine = request.app[ENGINE]
    known = dict(each.partition(":")[::-2] for each in request.query.getall("known", []))
    told = await engine.cluster_settings.told(known.get(engine.origin_stores.store))
    if told is not None:
        await _check_rows(request, told.changes or {})
    body = await asyncio.to_thread(lambda: dumps_by_steps(OwnSettingsTold(engine.cluster, told).as_json()))
    return await send_page(request, body, JSON)


async def list_settings(request: web.Request) -> web.StreamResponse:
    """Answer with the policies and permissions that this worker keeps of a cluster, of each of its stores, and the
    topics that the cluster deleted: partitioned ones, and others that have settings in the answer.

    Deletions of topics that the role may not replicate are left out. For the rest it needs ``replicate`` for each
    tenant, namespace and topic in the answer.
    """
    return await settings_kept(request, request.app[ENGINE])


async def settings_kept(request: web.Request, engine: Engine) -> web.StreamResponse:
    """Return the answer to :func:`list_settings` from the store of ``engine``."""
    cluster = request.query.get("cluster", "")
    if not cluster:
        raise BadRequest("parameter cluster is missing")
    check_room_for_page(request.app)
    states = await asyncio.to_thread(engine.kept_settings.states, cluster)
    for state in states:
        await _check_rows(request, state.rows)
    stores = engine.origin_stores
    told = in_slices(engine, stores.partitioned_deletions(cluster))
    deletions = [each async for each in told if may(request, REPLICATING, each.topic)]
    async for name in in_slices(engine, await asyncio.to_thread(_topics_of, states)):
        if (deleted := stores.last_deletion(name, cluster)) is not None and may(request, REPLICATING, name):
            deletions.append(deleted)
    kept = SettingsKept(engine.cluster, states, deletions)
    body = await asyncio.to_thread(lambda: dumps_by_steps(kept.as_json()))
    return await send_page(request, body, JSON)


def _topics_of(states: Sequence[KeptState]) -> set[str]:
    """Return the topics with policies or permissions of their own."""
    keys = (key for state in states for key in state.rows)
    return {name for kind, name in keys if kind in (Kind.POLICIES, Kind.GRANTS) and name.startswith(SCHEME)}


async def _check_rows(request: web.Request, rows: Rows | Changes) -> None:
    """Raise :class:`NotPermitted` if the role of the request may not replicate what one of ``rows`` is about."""
    guard: Guard = request.get(GUARD, EVERYBODY)
    if guard is EVERYBODY:
        return
    role = request.get(ROLE, "")
    for number, (kind, name) in enumerate(rows):
        if number % ROWS_A_TURN == ROWS_A_TURN - 1:
            await asyncio.sleep(0)
        if kind == Kind.LINKS:  # says only that a link of that cluster is paused
            continue
        if kind in (Kind.PARTITIONED, Kind.POLICIES) or name.startswith(SCHEME):
            guard.check_topic(role, REPLICATING, name)
        else:
            guard.check(role, REPLICATING, name)
