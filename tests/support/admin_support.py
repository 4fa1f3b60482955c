"""Helpers of the tests of admin paths: a worker's whole application over a real engine, and a client of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from engine_support import opened

from replicator.api.app import StatusSource, make_app
from replicator.api.linked_sources import LinkedSources
from replicator.engine.engine import Engine, EngineSettings


class NoStatus:
    """A worker without links, sync and database."""

    def status(self) -> dict[str, Any]:
        return {}

    def ready(self) -> str | None:
        return None

    async def mappings(self, topics: object) -> None:
        return None


class Admin:
    """An engine and its admin paths over HTTP. Each call returns the status and the body."""

    def __init__(self, engine: Engine, session: aiohttp.ClientSession, url: str) -> None:
        self.engine = engine
        self.url = url
        self.session = session

    async def call(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **parameters: Any
    ) -> tuple[int, Any]:
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        shown = {name: str(value).lower() if isinstance(value, bool) else value for name, value in parameters.items()}
        headers = {"Content-Type": "application/json"} if data else {}
        async with self.session.request(
            method, f"{self.url}/admin/v2/{path}", data=data, params=shown, headers=headers
        ) as response:
            text = await response.text()
            return response.status, json.loads(text) if text else None

    async def get(self, path: str, **parameters: Any) -> Any:
        """Return the body of a path that must answer with 200."""
        status, answer = await self.call("GET", path, **parameters)
        assert status == 200, answer
        return answer

    async def done(self, method: str, path: str, body: Any = None, **parameters: Any) -> None:
        """Send a request that must be answered by 204."""
        status, answer = await self.call(method, path, body, **parameters)
        assert status == 204, answer
        assert answer is None

    async def refused(self, status: int, method: str, path: str, body: Any = None, **parameters: Any) -> str:
        """Return the reason of a request that must be refused; it stands beside our own form of an error."""
        got, answer = await self.call(method, path, body, **parameters)
        assert got == status, answer
        assert answer["reason"] == answer["message"]
        assert answer["error"]
        return str(answer["reason"])


@asynccontextmanager
async def administered(
    path: Path,
    settings: EngineSettings | None = None,
    source: StatusSource | None = None,
    routes: Callable[[web.Application, Engine], None] = lambda app, engine: None,
) -> AsyncIterator[Admin]:
    """Yield a worker's application over an engine, on a port of its own. ``routes`` adds further routes to it."""
    async with opened(path, settings=settings) as engine:
        app = make_app(engine, source or NoStatus(), LinkedSources())
        routes(app, engine)
        runner = web.AppRunner(app, shutdown_timeout=0.2)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            async with aiohttp.ClientSession() as session:
                yield Admin(engine, session, url)
        finally:
            await runner.cleanup()
