"""Clusters of a mesh that lose their disks: as workers in the test's process, where each start takes a moment."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import forked_commands
from backup_support import MESH, ORDERS, numbered, publish, take
from engine_support import eventually

from replicator.drills.ports import free_ports
from replicator.engine.engine import Engine
from replicator.running.short_tasks import awaited
from replicator.topology import Topology, load_topology
from replicator.worker.starting import start_worker
from replicator.worker.worker import Worker

NOWHERE = "postgresql://127.0.0.1:1/none"
"""Database that refuses each connection. A worker needs none for what these tests look at."""
ASK_SECONDS = 1
"""Time for which a start waits for a cluster that does not run."""


class Workers:
    """Workers of a mesh in this process, by cluster."""

    def __init__(
        self, path: Path, names: str = "ABC", links: str = MESH, databases: Mapping[str, str] | None = None
    ) -> None:
        self.path = path
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.file = path / "topology.yaml"
        clusters = "".join(
            f"  {name}: {{address: '127.0.0.1:{port}', data: data-{name}, "
            f"database: '{(databases or {}).get(name, NOWHERE)}'}}\n"
            for name, port in self.ports.items()
        )
        self.file.write_text(
            f"clusters:\n{clusters}links: {links}\npipeline: {{engine: embedded}}\n"
            f"store: {{ask_peers_seconds: {ASK_SECONDS}}}\n"
        )
        self.topology: Topology = load_topology(self.file)
        self.running: dict[str, Worker] = {}

    # Workers and their disks.

    async def start(self, *names: str, setting: str | None = None) -> None:
        """Start workers at once; return when all serve."""
        starts = [start_worker(self.topology, name, on_empty_store=setting) for name in names]
        tasks = [awaited(each) for each in starts]  # each has a context of its own, with its credentials
        for name, worker in zip(names, await asyncio.gather(*tasks), strict=True):
            self.running[name] = worker

    def starting(self, name: str, stopping: asyncio.Event) -> asyncio.Task[Worker]:
        """Begin to start a worker that may wait. ``stopping`` ends the wait."""
        return awaited(start_worker(self.topology, name, stopping=stopping))

    async def stop(self, *names: str) -> None:
        await asyncio.gather(*(self.running.pop(name).stop() for name in names))

    async def lose(self, *names: str) -> None:
        """Stop workers, and delete their directories."""
        await self.stop(*(name for name in names if name in self.running))
        for name in names:
            shutil.rmtree(self.data(name))

    def data(self, name: str) -> Path:
        return self.path / f"data-{name}"

    def set_aside(self, name: str, to: str) -> Path:
        """Move the data directory of a worker that does not run."""
        place = self.path / to
        self.data(name).rename(place)
        return place

    # Asking.

    def engine(self, name: str) -> Engine:
        return self.running[name].parts.engine

    def started(self, name: str) -> dict[str, Any]:
        return self.running[name].parts.stores.status()

    def messages(self, name: str, topic: str = ORDERS) -> int:
        found = self.engine(name).find(topic)
        return 0 if found is None else found.log.messages

    def everywhere(self, topic: str = ORDERS) -> set[int]:
        return {self.messages(name, topic) for name in self.running}

    def gaps(self) -> dict[str, dict[str, str]]:
        """Return the topics that links stopped at, by source."""
        links = ((name, link) for name, worker in self.running.items() for link in worker.parts.links)
        return {f"{name}>{link.to}": stopped for name, link in links if (stopped := link.status()["halted"])}

    def url(self, name: str, path: str = "") -> str:
        return f"http://127.0.0.1:{self.ports[name]}{path}"

    def client_url(self, name: str) -> str:
        return f"pulsar://127.0.0.1:{self.ports[name]}"

    async def get(self, name: str, path: str) -> tuple[int, Any]:
        """Return status and answer, read as JSON if it is JSON. Pages are asked for as a browser does."""
        headers = {"Accept": "text/html, application/json"}
        async with aiohttp.ClientSession(headers=headers) as session, session.get(self.url(name, path)) as response:
            return response.status, await (response.json() if "json" in response.content_type else response.text())

    async def unconsumed(self, name: str, topic: str = ORDERS) -> Any:
        """Return a digest of the messages that ``sub`` has not consumed; None if there is no such subscription."""
        status, answer = await self.get(name, f"/replication/v1/ack-vectors?topic={topic}")
        state = answer["subscriptions"].get("sub") if status == 200 else None
        return None if state is None else state["digest"]

    async def agree(self, topic: str = ORDERS) -> bool:
        """Return whether all clusters have the same messages and the same unconsumed messages."""
        states = [await self.unconsumed(name, topic) for name in self.running]
        return len(self.everywhere(topic)) == 1 and states[0] is not None and len(set(map(str, states))) == 1

    async def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command as a user does, in another process."""
        return await asyncio.to_thread(forked_commands.run, *arguments, cwd=self.path)

    async def reclaim(self, name: str, *options: str) -> str:
        done = await self.command("backup", "reclaim", "-f", "topology.yaml", "-c", name, *options)
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"
        return done.stdout + done.stderr

    async def until(self, condition: Callable[[], object], what: str) -> None:
        await eventually(condition, what)

    async def until_agreed(self, topic: str = ORDERS) -> None:
        await until_true(lambda: self.agree(topic))

    async def until_stores_known(self) -> None:
        """Wait until each worker knows on which store the others run. Links report it soon after the first messages."""
        engines = [worker.parts.engine for worker in self.running.values()]
        pairs = [(engine, other) for engine in engines for other in engines if engine is not other]

        def known(engine: Engine, other: Engine) -> bool:
            newest = engine.origin_stores.newest_store(other.cluster)
            return newest is not None and newest.line.store == other.origin_stores.store

        await self.until(lambda: all(known(*pair) for pair in pairs), "each knows the stores of the others")

    # Traffic.

    async def publish(self, name: str, contents: Sequence[bytes], topic: str = ORDERS) -> None:
        await publish(self.client_url(name), contents, topic)

    async def fill(self, count: int, topic: str = ORDERS) -> None:
        """Let each cluster publish ``count`` messages, and consume a part of the messages at A."""
        names = list(self.running)
        await asyncio.gather(*(self.publish(name, numbered(name.lower(), 0, count), topic) for name in names))
        await self.until(lambda: self.everywhere(topic) == {count * len(names)}, "copies everywhere")
        await take(self.client_url("A"), count, topic=topic)
        await self.until_agreed(topic)


async def until_true(condition: Callable[[], Awaitable[bool]]) -> None:
    """Return as soon as ``condition`` returns true."""
    async with asyncio.timeout(30):
        while not await condition():  # noqa: ASYNC110 - other workers have no event for it
            await asyncio.sleep(0.02)


@asynccontextmanager
async def workers(
    path: Path, names: str = "ABC", links: str = MESH, databases: Mapping[str, str] | None = None, *, started: str = ""
) -> AsyncIterator[Workers]:
    """Yield the workers of a mesh; those that ``started`` names, or else all, run. ``"-"`` names none."""
    made = Workers(path, names, links, databases)
    try:
        await made.start(*(name for name in started or names if name in names))
        yield made
    finally:
        await made.stop(*made.running)
