"""Real workers in the test's process: two, linked both ways by default. Each starts its own database."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import forked_commands
import psutil
from engine_support import TOPIC, eventually, message

from replicator.drills.ports import free_ports
from replicator.engine.engine import Engine
from replicator.engine.topic import Topic
from replicator.topology import load_topology
from replicator.worker.starting import start_worker
from replicator.worker.worker import Worker
from snapshots.position import Position

NAMES = ("us-east", "eu-west")
LINKS = "  - {from: us-east, to: eu-west}\n  - {from: eu-west, to: us-east}\n"


class Pair:
    """Workers of one topology in this process."""

    def __init__(self, directory: Path, names: Sequence[str] = NAMES, links: str = LINKS) -> None:
        directory.mkdir(exist_ok=True)
        directory.chmod(0o755)  # as root, the server of the database runs as another user
        self.directory = directory
        self.file = directory / "topology.yaml"
        clusters = "".join(
            f"  {name}: {{address: '127.0.0.1:{free_ports(1)[0]}', data: {directory / name}}}\n" for name in names
        )
        self.file.write_text(
            f"clusters:\n{clusters}links:\n{links}pipeline: {{engine: embedded}}\n"
            "store: {on_empty_store: start}\n"  # one starts after the other: the first would wait for the second
        )
        topology = load_topology(self.file)
        self.topology = topology
        self.workers: dict[str, Worker] = {}

    def engine(self, name: str) -> Engine:
        return self.workers[name].parts.engine

    def topic(self, name: str) -> Topic:
        topic = self.engine(name).find(TOPIC)
        assert topic is not None
        return topic

    async def published(self) -> dict[str, Position]:
        """Publish in each cluster; return the last position of each, after both have everything."""
        await self.engine("us-east").topic(TOPIC)
        await (await self.engine("eu-west").topic(TOPIC)).publish([message(b"e")] * 3)
        last: dict[str, Position] = {}
        for _ in range(5):
            for name in NAMES:
                last[name] = (await self.topic(name).publish([message()] * 3))[-1]
        await eventually(lambda: {self.topic(name).log.messages for name in NAMES} == {33}, "all messages in both")
        return last

    async def cli(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        asked = (*arguments, "-f", str(self.file))
        return await asyncio.to_thread(forked_commands.run, *asked, cwd=self.file.parent, timeout=90)

    async def translate(self, source: str, to: str, position: Position | str) -> tuple[int, Any]:
        """Run ``translate``; return the exit status, and the JSON or the error."""
        asked = ("--topic", "orders", "--from", source, "--to", to, "--position", str(position))
        done = await self.cli("translate", *asked, "--output", "json")
        assert "Traceback" not in done.stderr
        return done.returncode, json.loads(done.stdout) if done.returncode == 0 else done.stderr

    async def translate_by_index(self, source: str, to: str, position: Position) -> tuple[int, Any]:
        """Translate by Postgres. Until the mapping is written there, the store answers, so this repeats."""
        async with asyncio.timeout(30):
            while (found := await self.translate(source, to, position))[0] == 0 and found[1]["source"] != "postgres":
                pass
        return found

    def postmaster(self, name: str) -> int:
        return int((self.directory / name / "postgres" / "postmaster.pid").read_text().split()[0])

    def signal_server(self, name: str, how: signal.Signals) -> None:
        """Send a signal to the server of a cluster's database and to all its processes."""
        postmaster = psutil.Process(self.postmaster(name))
        for process in [postmaster, *postmaster.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(how)

    def database(self, name: str) -> str:
        return f"postgresql://postgres@/postgres?host={self.directory / name / 'postgres'}"


@asynccontextmanager
async def pair(directory: Path) -> AsyncIterator[Pair]:
    both = Pair(directory)
    try:
        for name in NAMES:
            both.workers[name] = await start_worker(both.topology, name)
        yield both
    finally:
        for worker in both.workers.values():
            await worker.stop()
