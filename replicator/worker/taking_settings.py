"""Taking back the policies and permissions of a cluster that other clusters keep for it.

A start on a new store, ``replicator backup reclaim`` and ``replicator backup restore`` do so, once messages are back.

Invariant (DESIGN §3): 13, settings are replaced only by newer ones, as a whole, and what is missing is named.
:mod:`replicator.engine.cluster_settings.state` has the rules.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, Final

from replicator.backup.reclaiming import opened
from replicator.engine.cluster_settings.own import TAKEN
from replicator.engine.cluster_settings.putting_back import note_without, put_back
from replicator.engine.cluster_settings.state import taken_back
from replicator.engine.engine import Engine
from replicator.engine.restored import restored_mark
from replicator.operating.start_checks import never_served
from replicator.topology import Topology
from replicator.worker.settings_teller import ask_settings

ASK_SECONDS: Final = 5.0
"""Time for an answer to a command. Settings of 100,000 rows take less on a usual network."""


async def take_settings(
    engine: Engine, peers: Mapping[str, str], asked: Collection[str], *, seconds: float, reclaimed: bool
) -> dict[str, Any] | None:
    """Put back settings that the clusters ``asked`` keep, if they are newer than those of the store. First record which
    partitioned topics this cluster deleted, so that no link brings them back. Settings of other topics that it deleted
    later are left out.

    ``peers`` are the addresses of all other clusters; those that are not asked count as silent. ``reclaimed`` says that
    the store is new, and messages came back: namespaces without any kept settings are named. Return the note for the
    status; None if nothing was put back or is to be named.
    """
    kept = await ask_settings({name: peers[name] for name in asked}, engine.cluster, seconds)
    deleted_at: dict[str, int] = {}
    for each in filter(None, kept.values()):
        await engine.partitioned.learn_deletions(each.deletions)
        for name, at_ms in each.deleted_at.items():
            deleted_at[name] = max(at_ms, deleted_at.get(name, 0))
    states = {name: None if each is None else each.states for name, each in kept.items()}
    own = await engine.cluster_settings.state()
    taken = await asyncio.to_thread(taken_back, engine.cluster, {**dict.fromkeys(peers), **states}, own)
    note = engine.store.meta(TAKEN) or {}
    if taken.peer == engine.cluster:  # what is here counts
        taken = replace(taken, state=None, peer="")
        set_last = engine.cluster_settings.set_at, engine.cluster_settings.set_in
        if (note.get("set_at"), note.get("set_in")) == set_last:  # an earlier call took it back
            version = {"own_version": engine.cluster_settings.version}
            await engine.remember(TAKEN, {**note_without(taken, engine, taken.silent), **version})
            return None
    namespaces = {topic.namespace.name for topic in engine.topics()} if reclaimed else set[str]()
    if taken.state is not None or namespaces or taken.silent or taken.passed_over:
        return await put_back(engine, taken, {*namespaces, *note.get("missing", ())}, deleted_at=deleted_at)
    return None


def was_reclaimed_without_settings(engine: Engine) -> bool:
    """Return whether the store is new, and a reclaim brought its messages back: settings were not in it."""
    mark = restored_mark(engine.store)
    return mark is not None and not mark.backup and never_served(engine.store.meta, None)


async def take_settings_of(topology: Topology, name: str, without: Collection[str]) -> dict[str, Any] | None:
    """Do the work of :func:`take_settings` in the store of cluster ``name``, whose worker does not run. The clusters in
    ``without`` are not asked."""
    peers = {each.name: each.address for each in topology.clusters if each.name != name}
    async with opened(topology, name) as engine:
        return await take_settings(
            engine,
            peers,
            peers.keys() - set(without),
            seconds=ASK_SECONDS,
            reclaimed=was_reclaimed_without_settings(engine),
        )
