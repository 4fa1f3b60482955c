"""``replicator up``: all workers of a topology as processes of this machine."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

from rich.console import Console

from replicator.processes import WorkerFailed, WorkerProcess, stop_left_postgres
from replicator.topology import Topology


async def run_all(topology: Topology, file: Path, console: Console) -> int:
    """Run the workers until SIGTERM or SIGINT; returns the exit status.

    If one cannot be started, the others are stopped again and its status is ours. One that dies later is reported and
    does not end the others: that is what the others are for.
    """
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    workers = [WorkerProcess(cluster.name, cluster.address, file) for cluster in topology.clusters]
    died: list[str] = []

    async def watch(worker: WorkerProcess) -> None:
        status = await worker.wait()
        if not stopping.is_set():
            died.append(worker.cluster)
            last = len(died) == len(workers)
            rest = "it was the last one" if last else "the others go on"
            console.print(f"the worker of {worker.cluster} ended with status {status}; {rest}", style="red")
            if last:
                stopping.set()

    watchers: list[asyncio.Task[None]] = []
    try:
        for worker in workers:
            await worker.start()
        ready = asyncio.ensure_future(_all_ready(workers))
        stop = asyncio.ensure_future(stopping.wait())
        await asyncio.wait([ready, stop], return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if not ready.done():
            ready.cancel()
            return 0
        await ready
        for worker in workers:
            console.print(f"{worker.cluster}: ready at http://{worker.address} (pid {worker.pid})", highlight=False)
        watchers = [asyncio.create_task(watch(worker)) for worker in workers]
        await stopping.wait()
    except WorkerFailed as error:
        console.print(f"error: {error}", style="red", markup=False, highlight=False)
        return error.status
    finally:
        stopping.set()
        await asyncio.gather(*(worker.stop() for worker in workers), return_exceptions=True)
        await asyncio.gather(*watchers, return_exceptions=True)
        for worker, cluster in zip(workers, topology.clusters, strict=True):
            stop_left_postgres(worker, cluster.data)
    return 1 if died else 0


async def _all_ready(workers: list[WorkerProcess]) -> None:
    await asyncio.gather(*(worker.ready() for worker in workers))
