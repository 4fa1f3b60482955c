"""The paths of the exact mapping: two half look-ups, and its rebuilding. Forms are in docs/mapping.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Protocol

from aiohttp import web

from replicator.api.errors import BadRequest, DatabaseDown
from replicator.engine.engine import Engine
from replicator.engine.errors import EngineError
from snapshots.position import Position

INCARNATION_MAX: Final = (1 << 64) - 1


class FoundIdentity(Protocol):
    """Identity of an entry, the same in every cluster."""

    @property
    def origin(self) -> str: ...
    @property
    def incarnation(self) -> int: ...
    @property
    def position(self) -> Position: ...
    @property
    def source(self) -> str: ...


class FoundPlace(Protocol):
    """Place of an entry in this cluster's log."""

    @property
    def position(self) -> Position: ...
    @property
    def source(self) -> str: ...


class PositionLookup(Protocol):
    """See :class:`replicator.index.translation.Translator`."""

    async def identity(self, topic_name: str, position: Position) -> FoundIdentity: ...

    async def place(self, topic_name: str, origin: str, incarnation: int, position: Position) -> FoundPlace: ...


class Progress(Protocol):
    def as_json(self) -> dict[str, Any]: ...


class Rebuild(Protocol):
    """See :class:`replicator.index.rebuild.IndexRebuild`."""

    @property
    def progress(self) -> Progress: ...

    def start(self, topic: str | None = None) -> bool: ...


class RebuildRunning(EngineError):
    """One rebuild runs at a time; ask for its progress."""

    status = 409


def add_mapping(
    app: web.Application, engine: Engine, look_ups: PositionLookup, rebuild: Rebuild, database_up: Callable[[], bool]
) -> None:
    """Add the paths to a worker's application. ``database_up`` says whether Postgres is there."""

    async def identity(request: web.Request) -> web.Response:
        topic, position = _parameter(request, "topic"), Position.parse(_parameter(request, "position"))
        found = await look_ups.identity(topic, position)
        return web.json_response(
            {
                "cluster": engine.cluster,
                "position": str(position),
                "origin": found.origin,
                "incarnation": str(found.incarnation),
                "origin_position": str(found.position),
                "source": found.source,
            }
        )

    async def place(request: web.Request) -> web.Response:
        topic, origin = _parameter(request, "topic"), _parameter(request, "origin")
        position = Position.parse(_parameter(request, "origin_position"))
        found = await look_ups.place(topic, origin, _incarnation(request), position)
        return web.json_response({"cluster": engine.cluster, "position": str(found.position), "source": found.source})

    async def start_rebuild(request: web.Request) -> web.Response:
        topic = request.query.get("topic")
        if topic is not None:
            topic = (await engine.topic(topic, create=False)).name
        if not database_up():
            raise DatabaseDown(
                "the exact mapping cannot be rebuilt: it is in Postgres, which this worker cannot reach; try again "
                "later"
            )
        if not rebuild.start(topic):
            raise RebuildRunning("a rebuild of the exact mapping is running already; GET this path for its progress")
        return web.json_response(rebuild.progress.as_json(), status=202)

    async def rebuild_progress(request: web.Request) -> web.Response:
        return web.json_response(rebuild.progress.as_json())

    app.add_routes(
        [
            web.get("/replication/v1/identity", identity),
            web.get("/replication/v1/place", place),
            web.post("/replication/v1/mapping/rebuild", start_rebuild),
            web.get("/replication/v1/mapping/rebuild", rebuild_progress),
        ]
    )


def _parameter(request: web.Request, name: str) -> str:
    value = request.query.get(name)
    if not value:
        raise BadRequest(f"parameter {name} is missing")
    return value


def _incarnation(request: web.Request) -> int:
    text = _parameter(request, "incarnation")
    if not (text.isascii() and text.isdigit() and len(text) <= 20 and int(text) <= INCARNATION_MAX):
        raise BadRequest(f"parameter incarnation: {text[:40]!r} is not a whole number from 0 to {INCARNATION_MAX}")
    return int(text)
