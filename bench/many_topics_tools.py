"""Group ``many-topics-tools``: time that ``status`` and ``verify`` take for ten thousand topics of two workers.

The workers are those of group ``topics``: linked both ways, with a message and a replicated subscription in each topic.
Each command is a process of its own, as a user starts it, so its figures include Python's start. ``cpu`` is the
processor time of the command and of both workers. It does not depend on other work of the machine.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from pathlib import Path
from typing import Final

import psutil

from bench.at_rest import at_rest, everything_is_copied
from bench.cases import RUNS
from bench.clusters import DESTINATION, SOURCE, TwoClusters
from bench.measurement import Measurement
from bench.topics import TOPICS, fill, opened

COMMANDS: Final = {
    "status": ("status",),
    "status-json": ("status", "--output", "json"),
    "verify": ("verify",),
    "verify-read-all": ("verify", "--read-all"),
}


async def measure_many_topics_tools(directory: Path) -> list[Measurement]:
    """Return the seconds and the processor time that each of :data:`COMMANDS` takes."""
    async with TwoClusters(directory) as clusters:
        await clusters.start(SOURCE, DESTINATION)
        await clusters.stop(SOURCE)
        async with opened(clusters.data(SOURCE), SOURCE) as engine:
            await fill(engine)
        await clusters.start(SOURCE)
        await everything_is_copied(clusters.url(DESTINATION), TOPICS)
        await at_rest(map(clusters.pid, (SOURCE, DESTINATION)))
        workers = [psutil.Process(clusters.pid(name)) for name in (SOURCE, DESTINATION)]
        measured: list[Measurement] = []
        for name, command in COMMANDS.items():
            runs = [await _run(directory / "topology.yaml", command, workers) for _ in range(RUNS)]
            seconds, cpu = zip(*runs, strict=True)
            measured.append(Measurement(f"many-topics-tools/10k/{name}", "s", seconds))
            measured.append(Measurement(f"many-topics-tools/10k/{name}/cpu", "s", cpu))
        return measured


async def _run(file: Path, command: tuple[str, ...], workers: list[psutil.Process]) -> tuple[float, float]:
    before, began = _cpu_seconds(workers), time.monotonic()
    program = (sys.executable, "-m", "replicator.cli", *command, "-f", str(file))
    process = await asyncio.create_subprocess_exec(*program, stdout=asyncio.subprocess.DEVNULL)
    status = await process.wait()
    assert status == 0, f"{' '.join(command)} ended with {status}"
    return time.monotonic() - began, _cpu_seconds(workers) - before


def _cpu_seconds(workers: list[psutil.Process]) -> float:
    """Return the processor time, in seconds, of the workers and of all commands that have ended, together."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    times = [worker.cpu_times() for worker in workers]
    return children.ru_utime + children.ru_stime + sum(each.user + each.system for each in times)
