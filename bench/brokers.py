"""A worker of ours and a real Pulsar broker, side by side on this machine, for the official clients.

Each promises that what it confirmed is synced: ours syncs every group commit, the broker's bookie its journal. The
broker compiles its code as it runs, so what is measured is done once before, with both.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from replicator.drills.peers.pulsar.broker import missing, pulsar_broker
from replicator.drills.ports import free_ports
from replicator.operating.processes import WorkerProcess, stop_left_postgres
from replicator.topology import Cluster, Topology, dump

PEER: Final = "Apache Pulsar 4.0.0"
NAME: Final = "bench"
JOURNAL: Final = {"journalSyncData": "true", "journalMaxGroupWaitMSec": "2"}
"""Journal settings of the broker, equal to its defaults; they are written down to be shown beside figures."""
JOURNALS: Final = (
    "worker: each group commit is synced; broker's journal: each group is synced "
    f"({', '.join(f'{name}={value}' for name, value in JOURNAL.items())})"
)
ALONE: Final = "BENCH_ALONE"
"""The environment variable that leaves peers out, to compare two versions of this program sooner."""


@dataclass(frozen=True, slots=True)
class Broker:
    """Running broker, or a running worker of ours, that clients measure."""

    url: str
    pid: int | None
    """Process of the broker; None if it runs in a container, so its CPU time and memory are not known."""

    def cpu_seconds(self) -> float:
        if self.pid is None:
            return 0.0
        times = psutil.Process(self.pid).cpu_times()
        return float(times.user + times.system)

    def memory_bytes(self) -> float:
        return 0.0 if self.pid is None else float(psutil.Process(self.pid).memory_info().rss)


@dataclass(frozen=True, slots=True)
class Brokers:
    """Our worker, and the peer's broker if it can run here; else ``missing`` says why it cannot."""

    ours: Broker
    peer: Broker | None
    missing: str | None

    @property
    def both(self) -> tuple[Broker, ...]:
        return (self.ours,) if self.peer is None else (self.ours, self.peer)


def alone() -> str | None:
    """Return why no peer is measured: the environment variable :data:`ALONE` is set. Return None if it is not."""
    return f"{ALONE} is set" if os.environ.get(ALONE) else None


@asynccontextmanager
async def started(directory: Path) -> AsyncIterator[Brokers]:
    """Run our worker and, if possible, the peer's broker, with empty data in ``directory``, while the context lasts."""
    async with _worker(directory) as ours:
        if (why := alone() or missing()) is not None:
            yield Brokers(ours, None, why)
            return
        with pulsar_broker(directory / "peer", settings=JOURNAL) as peer:  # in between nothing else runs in this loop
            yield Brokers(ours, Broker(peer.url, peer.pid), None)


@asynccontextmanager
async def _worker(directory: Path) -> AsyncIterator[Broker]:
    """Run a worker of a cluster without links while the context lasts, and yield it as a :class:`Broker`."""
    (port,) = free_ports(1)
    data = directory / NAME
    cluster = Cluster.model_validate({"name": NAME, "address": f"127.0.0.1:{port}", "data": str(data)})
    file = directory / "topology.yaml"
    await asyncio.to_thread(file.write_text, dump(Topology((cluster,), ())))
    worker = WorkerProcess(NAME, cluster.address, file, log_file=directory / "worker.log")
    try:
        await worker.start()
        await worker.ready()
        yield Broker(f"pulsar://{cluster.address}", worker.pid)
    finally:
        await worker.stop()
        stop_left_postgres(worker, data)
