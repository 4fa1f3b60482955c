"""The workers of a drill: its own, as processes that it starts, kills and stops; or those of a running topology."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import aiohttp

from replicator.processes import WorkerFailed, WorkerProcess, stop_left_postgres
from replicator.status import fetch
from replicator.topology import Topology

TRACEBACK: Final = "Traceback (most recent call last)"
"""How Python begins to report an error that nobody expected."""


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
        for running in self.running.values():
            running.set()

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
