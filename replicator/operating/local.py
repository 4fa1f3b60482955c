"""``replicator up``: all workers of a topology as processes of this machine."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from rich.console import Console

from replicator.operating.processes import WorkerFailed, WorkerProcess, exit_reason, stop_left_postgres
from replicator.operating.rollout import ask_workers, carry_out, problems_of, worst_status
from replicator.running.short_tasks import awaited
from replicator.running.supervisor import SupervisedTask, Supervisor
from replicator.security.asking import worker_url
from replicator.topology import Cluster, Topology, TopologyError, load_topology
from replicator.topology.extras import check_extras


async def run_all(topology: Topology, file: Path, console: Console) -> int:
    """Run the workers until SIGTERM or SIGINT; returns the exit status.

    If one cannot be started, the others are stopped again and its status is ours. One that dies later is reported and
    does not end the others: that is what the others are for. SIGHUP makes all of them take a changed file.
    The console must raise nothing when its terminal has gone. Raises :class:`ExtraMissing` before any is started.
    """
    check_extras(topology, *topology.names)
    stopping, hung_up = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    at_terminal = sys.stderr.isatty()

    def on_hangup() -> None:
        # A terminal that was closed sends SIGHUP too; then there is nobody left to work for.
        (stopping if at_terminal and not os.isatty(sys.stderr.fileno()) else hung_up).set()

    loop.add_signal_handler(signal.SIGHUP, on_hangup)
    return await _LocalWorkers(file, console, stopping, hung_up).run(topology)


class _LocalWorkers:
    """The worker processes of a topology on this machine, and actions on them."""

    def __init__(self, file: Path, console: Console, stopping: asyncio.Event, hung_up: asyncio.Event) -> None:
        self._file = file
        self._console = console
        self._stopping = stopping
        self._hung_up = hung_up
        self._workers: dict[str, tuple[Cluster, WorkerProcess]] = {}
        self._supervisor = Supervisor()
        self._watchers: dict[str, SupervisedTask] = {}
        self._died: set[str] = set()

    async def run(self, topology: Topology) -> int:
        reloading = self._supervisor.task("reload", "reloads on SIGHUP", self._reload_on_hangup)
        try:
            if not await self._start(topology.clusters):
                return 0
            reloading.start()
            await self._stopping.wait()
        except WorkerFailed as error:
            self._print_error(f"error: {error}")
            return error.status
        finally:
            self._stopping.set()
            await reloading.stop()
            await self._end(list(self._workers))
        return 1 if self._died else 0

    async def _start(self, clusters: Iterable[Cluster]) -> bool:
        """Start the workers of these clusters; False if all are to stop before they are ready.

        Raises :class:`WorkerFailed`.
        """
        names = [cluster.name for cluster in clusters]
        for cluster in clusters:
            worker = WorkerProcess(cluster.name, cluster.address, self._file)
            self._workers[cluster.name] = cluster, worker
            await worker.start()
        ready = awaited(self._all_ready(names))
        stop = awaited(self._stopping.wait())
        try:
            await asyncio.wait([ready, stop], return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                return False
            await ready
        finally:
            stop.cancel()
            ready.cancel()
        for name in names:
            worker = self._workers[name][1]
            self._console.print(f"{name}: ready at {worker_url(worker.address)} (pid {worker.pid})")
            watcher = self._watchers[name] = self._supervisor.task(
                "worker watcher", f"worker of {name}", partial(self._watch, worker), until_done=True
            )
            watcher.start()
        return True

    async def _all_ready(self, names: Iterable[str]) -> None:
        await asyncio.gather(*(self._workers[name][1].ready() for name in names))

    async def _end(self, names: Iterable[str]) -> None:
        """Stop these workers, and remove what they leave behind."""
        ending = [(name, *self._workers.pop(name)) for name in names]
        watchers = [self._watchers.pop(name) for name, _, _ in ending if name in self._watchers]
        for watcher in watchers:
            watcher.cancel()
        await asyncio.gather(*(worker.stop() for _, _, worker in ending), return_exceptions=True)
        await asyncio.gather(*(watcher.stop() for watcher in watchers))
        for _, cluster, worker in ending:
            stop_left_postgres(worker, cluster.data)

    async def _watch(self, worker: WorkerProcess) -> None:
        status = await worker.wait()
        if not self._stopping.is_set():
            self._died.add(worker.cluster)
            last = self._died >= set(self._workers)
            rest = "it was the last one" if last else "the others go on"
            self._print_error(f"the worker of {worker.cluster} {exit_reason(status)}; {rest}")
            if last:
                self._stopping.set()

    async def _reload_on_hangup(self) -> None:
        while True:
            await self._hung_up.wait()
            self._hung_up.clear()
            try:
                await self._reload(await asyncio.to_thread(load_topology, self._file))
            except (TopologyError, WorkerFailed) as error:
                self._print_error(f"error: {error}")
                self._print_error("nothing was changed")
            except BaseException:
                self._hung_up.set()  # the task starts again, and then does what it was asked for
                raise

    async def _reload(self, topology: Topology) -> None:
        """Carry the topology out at all running workers, after asking whether they can. Workers of new clusters start
        first, and those of removed ones stop last, so that no link ever leads to a worker that does not exist.
        """
        rollout = await ask_workers(topology)
        ours = {name for name, (_, worker) in self._workers.items() if worker.running}
        if worst_status(checked := await carry_out(rollout, dry_run=True)):
            for problem in problems_of(checked):
                self._print_error(f"error: {problem}")
            self._print_error("nothing was changed")
            return
        added = [cluster for cluster in topology.clusters if cluster.name not in self._workers]
        try:
            if added and not await self._start(added):
                return
        except WorkerFailed:
            await self._end([cluster.name for cluster in added])
            raise
        for outcome in await carry_out(rollout, dry_run=False):
            said = outcome.problems or outcome.changed or ("nothing to change here",)
            self._console.print(f"{outcome.cluster}: {'; '.join(said)}")
        removed = [name for name in self._workers if name not in topology.names]
        await self._end(removed)
        for name in removed:
            self._died.discard(name)
            self._console.print(f"{name}: {'stopped' if name in ours else 'gone'}")

    def _print_error(self, text: str) -> None:
        self._console.print(text, style="red", soft_wrap=True)
