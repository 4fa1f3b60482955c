"""The workers of a drill: its own, as processes that it starts, kills and stops; or those of a running topology."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from replicator.processes import WorkerFailed, WorkerProcess, stop_left_postgres
from replicator.status import fetch
from replicator.topology import Topology

LINKS_SECONDS_MAX: Final = 180.0
"""For links to be carried: Spark starts in ten seconds on a machine that has nothing else to do."""
LINKS_POLL_SECONDS: Final = 0.1
TRACEBACK: Final = "Traceback (most recent call last)"
"""How Python begins to report an error that nobody expected."""


def _not_carried(status: Mapping[str, Any]) -> str | None:
    """Which link of a worker does not copy, and why; None if all do."""
    if "error" in status:
        return str(status["error"])
    for link in status["links"]:
        if link["state"] not in ("idle", "copying"):
            return f"link {link['key']} is {link['state']} {link['detail']}".rstrip()
    return None


class RunningWorkers:
    """Workers of somebody else: they are asked, and nothing else."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.running = {name: asyncio.Event() for name in topology.names}
        """Set while the worker of that cluster should answer."""

    async def start(self) -> None:
        """Raises :class:`WorkerFailed` for one that does not answer."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            for cluster in self._topology.clusters:
                answer = await fetch(session, cluster.address)
                if "error" in answer:
                    raise WorkerFailed(f"the worker of {cluster.name} does not answer: {answer['error']}")
                self.running[cluster.name].set()

    async def kill(self, name: str) -> None:
        raise AssertionError(f"the worker of {name} is not ours to kill")

    async def start_again(self, name: str) -> None:
        raise AssertionError(f"the worker of {name} is not ours to start")

    async def watch(self, name: str) -> None:
        """Returns never; raises :class:`WorkerFailed` when the worker ends and was not to."""
        await asyncio.Event().wait()

    def tracebacks(self) -> dict[str, int]:
        """How many unexpected errors each worker has logged; only of our own can that be known."""
        return {}

    async def stop(self) -> None:
        """Leave them alone."""


class OwnWorkers(RunningWorkers):
    """Workers that the drill starts, each with a topology file of its own."""

    def __init__(self, topology: Topology, files: Mapping[str, Path], logs: Path) -> None:
        super().__init__(topology)
        self._logs = {name: logs / f"worker-{name}.log" for name in topology.names}
        for log in self._logs.values():
            log.unlink(missing_ok=True)  # of an earlier drill
        self._processes = {
            cluster.name: WorkerProcess(
                cluster.name, cluster.address, files[cluster.name], log_file=self._logs[cluster.name]
            )
            for cluster in topology.clusters
        }

    async def start(self) -> None:
        await asyncio.gather(*(process.start() for process in self._processes.values()))
        await asyncio.gather(*(process.ready() for process in self._processes.values()))
        await self._links_ready()
        for running in self.running.values():
            running.set()

    async def _links_ready(self) -> None:
        """Wait until every link is carried, which with Spark takes longer than everything else; before, nothing that is
        measured would be of the drill."""
        deadline = time.monotonic() + LINKS_SECONDS_MAX
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5)) as session:
            for cluster in self._topology.clusters:
                while waiting := _not_carried(await fetch(session, cluster.address)):
                    if time.monotonic() > deadline:
                        raise WorkerFailed(f"after {LINKS_SECONDS_MAX:.0f} s {waiting}; see {self._logs[cluster.name]}")
                    await asyncio.sleep(LINKS_POLL_SECONDS)

    async def kill(self, name: str) -> None:
        self.running[name].clear()
        await self._processes[name].kill()

    async def start_again(self, name: str) -> None:
        await self._processes[name].start()
        await self._processes[name].ready()
        self.running[name].set()

    async def watch(self, name: str) -> None:
        while True:
            await self.running[name].wait()
            status = await self._processes[name].wait()
            if self.running[name].is_set():
                raise WorkerFailed(f"the worker of {name} ended with status {status} and was not to")

    def tracebacks(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, log in self._logs.items():
            with log.open(errors="replace") as lines:
                found[name] = sum(line.startswith(TRACEBACK) for line in lines)
        return found

    async def stop(self) -> None:
        """Stop every worker, and what a killed one left running."""
        await asyncio.gather(*(process.stop() for process in self._processes.values()))
        for cluster in self._topology.clusters:
            stop_left_postgres(self._processes[cluster.name], cluster.data)
