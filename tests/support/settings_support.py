"""Clusters that tell each other their policies and permissions: engines with the routes, in the test's process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from engine_support import DataPlaneServer

from replicator.api.cluster_settings import settings_routes
from replicator.engine.cluster_settings.state import KeptState, SettingsMessage, Verdict, digest_of
from replicator.engine.engine import Engine
from replicator.engine.topics.grants import Grants
from replicator.peering.claim_checker import ClaimChecker
from replicator.peering.cluster_settings import SETTINGS_ROUTE
from replicator.worker import settings_teller
from replicator.worker.settings_teller import SettingsPublisher


@dataclass
class Peer:
    """An engine that serves the routes, with what it was told and what it stored."""

    engine: Engine
    server: DataPlaneServer
    hints: int = 0
    stored: list[int] = field(default_factory=list)
    """Number of rows of each message that it stored."""
    asked: dict[str, str] = field(default_factory=dict)
    """Addresses at which it asks other clusters."""

    def asks(self, cluster: str, address: str) -> None:
        self.asked[cluster] = address
        self.server.asking.change(self.asked)


@asynccontextmanager
async def serving_settings(engine: Engine, middleware: Any = None) -> AsyncIterator[Peer]:
    server = DataPlaneServer(engine)
    server.asking = ClaimChecker(engine.cluster, pause_seconds=0.01, failed_pause_seconds=0.01)
    peer = Peer(engine, server)

    @web.middleware
    async def counted(request: web.Request, handler: Any) -> web.StreamResponse:
        peer.hints += request.method == "POST" and request.path == SETTINGS_ROUTE
        response: web.StreamResponse = await handler(request)
        return response

    def add(app: web.Application) -> None:
        app.middlewares.append(counted)
        if middleware is not None:
            app.middlewares.append(middleware)
        app.add_routes(settings_routes())

    server.also = add
    take = engine.kept_settings.take

    async def taken(told: SettingsMessage) -> Verdict:
        verdict = await take(told)
        if verdict is Verdict.KEPT:
            peer.stored.append(len(told.changes or {}))
        return verdict

    engine.kept_settings.take = taken  # type: ignore[method-assign]
    await server.start()
    try:
        yield peer
    finally:
        await server.stop()


@asynccontextmanager
async def telling(engine: Engine, *peers: Peer, middleware: Any = None) -> AsyncIterator[SettingsPublisher]:
    """Tell ``peers``; they ask ``engine``'s cluster back at the address of a server that this context starts."""
    async with serving_settings(engine, middleware) as own:
        for peer in peers:
            peer.asks(engine.cluster, own.server.address)
        teller = SettingsPublisher(engine)
        await teller.change(addresses_of(*peers))
        await teller.start()
        try:
            yield teller
        finally:
            await teller.stop()


def addresses_of(*peers: Peer) -> dict[str, str]:
    return {peer.engine.cluster: peer.server.address for peer in peers}


async def ask_settings(addresses: dict[str, str], cluster: str) -> dict[str, Sequence[KeptState] | None]:
    """Return the settings of ``cluster`` that each worker keeps; None if it does not answer."""
    answers = await settings_teller.ask_settings(addresses, cluster)
    return {name: None if kept is None else kept.states for name, kept in answers.items()}


async def grant(engine: Engine, name: str, role: str, *actions: str) -> None:
    await engine.catalog.grants.change(name, lambda grants: grants.with_role(role, actions), lambda: None)


def grants(engine: Engine) -> dict[str, Grants]:
    return dict(engine.catalog.grants.all())


def has_all(teller: SettingsPublisher, peer: str = "eu") -> bool:
    """Return whether a peer has the present settings."""
    own = teller.engine.cluster_settings
    settled = not own.version or own.digest == settings_digest(teller.engine)
    return settled and bool(teller.status()["told"][peer]["kept"])


def settings_digest(engine: Engine) -> str:
    return digest_of(engine.cluster_settings.all_rows())
