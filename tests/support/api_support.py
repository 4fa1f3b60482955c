"""Helpers of the tests of the HTTP API: an app of one engine, a worker's routes, and requests that hold a
connection."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

import aiohttp
from aiohttp import web
from engine_support import opened
from failover_support import free_ports
from frame_support import asked, frame_of, framed, next_answer
from served_worker import ServedWorker

from replicator.api.app import make_app
from replicator.api.linked_sources import LinkedSources
from replicator.engine.engine import Engine
from replicator.worker.worker import Worker

LINKED = ("us-east", "ap-south")


class NoStatus:
    """A worker without links, sync and database."""

    def status(self) -> dict[str, Any]:
        return {
            "database": {"state": "up"},
            "store": {"bytes": 0, "failed": None},
            "links": [],
            "counters": {},
        }

    def ready(self) -> str | None:
        return None

    async def mappings(self, topics: object) -> None:
        return None


@asynccontextmanager
async def whole_app(engine: Engine) -> AsyncIterator[tuple[web.AppRunner, str]]:
    """Yield the application as a worker runs it, and its base address."""
    runner = web.AppRunner(make_app(engine, NoStatus(), LinkedSources.of(*LINKED)), shutdown_timeout=10)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner, f"http://127.0.0.1:{runner.addresses[0][1]}/replication/v1"
    finally:
        await runner.cleanup()


def with_app(path: Path, body: Callable[[Engine, web.AppRunner, str], Awaitable[None]]) -> None:
    async def main() -> None:
        async with opened(path, "eu-west") as engine, whole_app(engine) as (runner, base), asyncio.timeout(60):
            await body(engine, runner, base)

    asyncio.run(main())


async def opened_stream(base: str, source: str = "us-east") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Return a link's open stream whose first frame, a sign of life, was answered."""
    status, _, reader, writer = await asked(f"{base}/append", **{"from": source})
    assert status == 101
    writer.write(framed(frame_of()))
    assert await next_answer(reader) == {"extents": 0, "refused": {}}
    return reader, writer


def entries(worker: ServedWorker, parameters: str = "") -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = worker.ask("GET", f"/replication/v1/audit{parameters}").json["entries"]
    return found


def topology(directory: Path, more: str = "") -> tuple[Path, int]:
    (port,) = free_ports(1)
    directory.mkdir(mode=0o755, exist_ok=True)
    file = directory / "topology.yaml"
    file.write_text(
        f"clusters:\n  solo: {{address: '127.0.0.1:{port}', data: {directory / 'data'}{more}}}\n"
        "pipeline: {engine: embedded}\n"
    )
    return file, port


def routes_of(worker: Worker, places: Mapping[str, str] = MappingProxyType({})) -> list[tuple[str, str]]:
    """Return method and path of every route of the running application, with something in the place of each parameter.

    ``places`` has values of parameters, by their names; others are ``x``.
    """
    found = []
    for route in worker._app.router.routes():
        assert route.resource is not None
        path = re.sub(
            r"\{([^{}:]*)[^{}]*(\{[^{}]*\}[^{}]*)*\}",
            lambda place: places.get(place[1], "x"),
            route.resource.canonical,
        )
        found.append(("GET" if route.method == "*" else route.method, path))
    return found


def writing(worker: Worker, places: Mapping[str, str] = MappingProxyType({})) -> list[tuple[str, str]]:
    """Return the routes that may have a body; ``places`` are values of parameters, by their names."""
    found = [(method, path) for method, path in routes_of(worker, places) if method not in ("GET", "HEAD")]
    assert len(found) > 80
    return found


async def goes_on(session: aiohttp.ClientSession, url: str) -> None:
    async with asyncio.timeout(30), session.get(f"{url}/readyz") as answer:
        assert answer.status == 200, await answer.text()
