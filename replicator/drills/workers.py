"""The workers of a drill: its own, as processes that it starts, kills and stops; or those of a running topology."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp

from replicator.operating.processes import WorkerFailed, WorkerProcess, exit_reason, stop_left_postgres
from replicator.operating.status import fetch
from replicator.security.asking import worker_session
from replicator.topology import SPARK, Topology

LINKS_SECONDS_MAX: Final = 300.0
"""Time limit until links are carried. Spark starts in ten seconds on an idle machine, and in a minute or two if it
shares two cores.
"""
LINKS_POLL_SECONDS: Final = 0.1
TRACEBACK: Final = "Traceback (most recent call last)"
"""Text with which Python begins to report an unexpected error."""


def _not_copying(status: Mapping[str, Any]) -> str | None:
    """Return in words which link of a worker does not copy, and why; None if all do."""
    return _first_link(status, lambda link: link["state"] not in ("idle", "copying"))


def _without_carrier(status: Mapping[str, Any]) -> str | None:
    """Return in words which link of a worker has no carrier; None if all have one.

    A link with a carrier may have no destination, as the scenario wants.
    """
    return _first_link(status, lambda link: link["engine"] == SPARK and link["carrier"] is None)


def _first_link(status: Mapping[str, Any], waits: Callable[[Mapping[str, Any]], bool]) -> str | None:
    if "error" in status:
        return str(status["error"])
    for link in filter(waits, status["links"]):
        return f"link {link['key']} is {link['state']} {link['detail']}".rstrip()
    return None


class RunningWorkers:
    """Workers of somebody else: they are asked, and nothing else."""

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self.running = {name: asyncio.Event() for name in topology.names}
        """Set while the worker of that cluster should answer."""

    async def start(self) -> None:
        """Check that all workers answer. Raise :class:`WorkerFailed` if one does not."""
        async with worker_session(timeout=aiohttp.ClientTimeout(total=5)) as session:
            for cluster in self._topology.clusters:
                answer = await fetch(session, cluster.address)
                if "error" in answer:
                    raise WorkerFailed(
                        f"the worker of {cluster.name} does not answer: {answer['error']}; start it before the drill"
                    )
                self.running[cluster.name].set()

    async def kill(self, name: str) -> None:
        raise AssertionError(
            f"the worker of {name} may not be killed: the drill did not start this cluster; this is a bug of the drill"
        )

    async def lose_disk(self, name: str) -> None:
        raise AssertionError(
            f"the data of {name} may not be removed: the drill did not start this cluster; this is a bug of the drill"
        )

    async def start_again(self, name: str) -> None:
        raise AssertionError(
            f"the worker of {name} may not be started: the drill did not start this cluster; this is a bug of the drill"
        )

    async def watch(self, name: str) -> None:
        """Watch a worker, and never return. Raise :class:`WorkerFailed` if the worker ends unexpectedly."""
        await asyncio.Event().wait()

    def tracebacks(self) -> dict[str, int]:
        """Return how many unexpected errors each worker has logged. This is known only of workers that the drill
        started."""
        return {}

    async def stop(self) -> None:
        """Do nothing: workers that somebody else started go on."""


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
        await asyncio.gather(*(self._until(name, _not_copying) for name in self._processes))
        for running in self.running.values():
            running.set()

    async def _until(self, name: str, waiting_for: Callable[[Mapping[str, Any]], str | None]) -> None:
        """Wait until a worker's links are carried. Measures make no sense before that. With Spark it takes longest."""
        deadline = time.monotonic() + LINKS_SECONDS_MAX
        async with worker_session(timeout=aiohttp.ClientTimeout(total=5)) as session:
            while waiting := waiting_for(await fetch(session, self._topology.cluster(name).address)):
                if time.monotonic() > deadline:
                    raise WorkerFailed(
                        f"the worker of {name} was not ready for the drill after {LINKS_SECONDS_MAX:.0f} s: "
                        f"{waiting}; its log says why: {self._logs[name]}"
                    )
                await asyncio.sleep(LINKS_POLL_SECONDS)

    async def kill(self, name: str) -> None:
        self.running[name].clear()
        await self._processes[name].kill()

    async def lose_disk(self, name: str) -> None:
        """Kill the worker, and remove its data directory."""
        await self.kill(name)
        data = self._topology.cluster(name).data
        stop_left_postgres(self._processes[name], data)
        await asyncio.to_thread(shutil.rmtree, data)

    async def start_again(self, name: str) -> None:
        await self._processes[name].start()
        await self._processes[name].ready()
        await self._until(name, _without_carrier)
        self.running[name].set()

    async def watch(self, name: str) -> None:
        while True:
            await self.running[name].wait()
            status = await self._processes[name].wait()
            if self.running[name].is_set():
                raise WorkerFailed(
                    f"the worker of {name} {exit_reason(status)} and was not to; its log says why: {self._logs[name]}"
                )

    def tracebacks(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for name, log in self._logs.items():
            with log.open(errors="replace") as lines:
                found[name] = sum(line.startswith(TRACEBACK) for line in lines)
        return found

    async def stop(self) -> None:
        """Stop every worker, and all processes that a killed worker left running."""
        await asyncio.gather(*(process.stop() for process in self._processes.values()))
        for cluster in self._topology.clusters:
            stop_left_postgres(self._processes[cluster.name], cluster.data)
