"""A worker's staging area over HTTP on a thread of its own, for tests whose main thread is Spark's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

from aiohttp import web
from engine_support import DataPlaneServer, logged

from replicator.api.staging import add_staging
from replicator.engine.engine import Engine
from replicator.engine.log.compression import decompress
from replicator.engine.log.entry import decode_entry, split_batch
from replicator.engine.staging.core import StagingLimits
from replicator.engine.staging.service import StagingService

T = TypeVar("T")


class StagingWorker:
    """Engine, staging and data plane over one directory; stops and starts again on the same port."""

    def __init__(self, path: Path, *, limits: StagingLimits | None = None, cluster: str = "us-east") -> None:
        self._path, self._limits, self._cluster = path, limits, cluster
        self.port = 0
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self.commits_refused = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.run(self._start)

    def stop(self) -> None:
        self.run(self._stop)

    def run(self, work: Callable[[], Awaitable[T]]) -> T:
        """Run on the worker's loop."""

        async def awaited() -> T:
            return await work()

        return asyncio.run_coroutine_threadsafe(awaited(), self._loop).result(60)

    def payloads(self, topic: str) -> list[bytes]:
        """Return every message of a topic, in order."""

        async def read() -> list[bytes]:
            return payloads_of(self.engine, topic)

        return self.run(read)

    async def _start(self) -> None:
        self.engine = await Engine.open(self._path, cluster=self._cluster)
        self.staging = StagingService(self.engine, self._limits)
        self.staging.start()
        self._server = DataPlaneServer(self.engine)
        self._server.port = self.port
        self._server.also = self._add
        await self._server.start()
        self.port = self._server.port

    def _add(self, app: web.Application) -> None:
        add_staging(app, self.staging)

    async def _stop(self) -> None:
        await self._server.stop()
        await self.staging.stop()
        await self.engine.close()


def payloads_of(engine: Engine, name: str) -> list[bytes]:
    """Return every message of a topic, in order; none if there is no such topic."""
    topic = engine.find(name)
    return [] if topic is None else [payload for _, _, entry in logged(topic) for payload in payloads_in(entry)]


def payloads_in(entry: bytes) -> Sequence[bytes]:
    metadata, content = decode_entry(entry)
    raw = memoryview(decompress(content, metadata.compression, metadata.uncompressed_size))
    return [bytes(message.payload) for message in split_batch(metadata, raw)]


def metadata_in(engine: Engine, name: str) -> list[Any]:
    """Return the metadata of every entry of a topic."""
    topic = engine.find(name)
    assert topic is not None
    return [decode_entry(entry)[0] for _, _, entry in logged(topic)]
