"""Workers as processes of this machine: start, wait until ready, kill, stop. Used by ``up`` and by drills."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from pathlib import Path
from typing import Final

import aiohttp
import psutil
from tenacity import AsyncRetrying, RetryCallState, RetryError, retry_if_exception_type, wait_fixed

from replicator.running.timeouts import timeout
from replicator.security.asking import worker_session, worker_url

DRIVER_MODULE: Final = "replicator.pipeline.live.driver"
START_SECONDS_MAX: Final = 120.0
"""The first one makes a PostgreSQL cluster; at a load of 17 on two cores that took over a minute."""
STOP_SECONDS_MAX: Final = 20.0


class WorkerFailed(Exception):
    """A worker ended, or was not ready in time. ``status`` is its exit status, or 3 where it has none."""

    def __init__(self, message: str, status: int = 3) -> None:
        super().__init__(message)
        self.status = status


class _OtherWorker(Exception):
    """Another worker answers at the address, so ours cannot start there."""


class _StillReclaiming(Exception):
    """The worker takes back messages from other clusters, which may take long."""


def exit_reason(status: int) -> str:
    """Return how a process ended, as the rest of a sentence: its exit status, or the name of the signal that ended it.

    ``status`` is the value of :attr:`subprocess.Popen.returncode`: the negative number of a signal.
    """
    if status >= 0:
        return f"ended with status {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:  # a real-time signal has no name
        name = f"number {-status}"
    cause = ", as the system does when memory runs out" if -status == signal.SIGKILL else ""
    return f"was ended by signal {name}{cause}"


class WorkerProcess:
    """The worker of one cluster of a topology file, as a child process. Its log goes to ``log_file``, if given."""

    def __init__(self, cluster: str, address: str, topology_file: Path, *, log_file: Path | None = None) -> None:
        self.cluster = cluster
        self.address = address
        self._topology_file = topology_file
        self._log_file = log_file
        self._process: asyncio.subprocess.Process | None = None
        self.was_ready = False
        """Whether a process of ours has had the cluster's directory; only then what it left is ours to clear away."""

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    async def start(self) -> None:
        """Start it; see :meth:`ready`."""
        assert not self.running
        arguments = ["worker", "--cluster", self.cluster, "--file", str(self._topology_file)]
        output = None if self._log_file is None else self._log_file.open("ab")
        try:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "replicator.cli",
                *arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A process group of its own: Ctrl-C reaches us, and we stop it in order.
                start_new_session=True,
            )
        finally:
            if output is not None:
                output.close()

    async def ready(self) -> None:
        """Wait until it, and no other at its address, takes traffic. While it takes back messages from other clusters,
        there is no limit.

        Raises :class:`WorkerFailed` with what it printed.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + START_SECONDS_MAX

        def gives_up(state: RetryCallState) -> bool:
            nonlocal until
            if state.outcome is not None and isinstance(state.outcome.exception(), _StillReclaiming):
                until = clock() + START_SECONDS_MAX
            return clock() > until

        retrying = AsyncRetrying(
            retry=retry_if_exception_type((aiohttp.ClientError, OSError, _OtherWorker, _StillReclaiming)),
            wait=wait_fixed(0.05),
            stop=gives_up,
        )
        async with worker_session(timeout=aiohttp.ClientTimeout(total=5)) as session:
            try:
                async for attempt in retrying:
                    with attempt:
                        self._check_alive()
                        async with session.get(f"{worker_url(self.address)}/readyz") as response:
                            if '"state": "reclaiming"' in await response.text():
                                raise _StillReclaiming
                            response.raise_for_status()
                        async with session.get(f"{worker_url(self.address)}/replication/v1/status") as response:
                            if (await response.json())["pid"] != self.pid:
                                raise _OtherWorker
                self.was_ready = True
            except RetryError:
                raise WorkerFailed(
                    f"the worker of {self.cluster} was not ready within {START_SECONDS_MAX:.0f} s{self._tail()}"
                ) from None

    async def wait(self) -> int:
        """Wait until it ends; returns its exit status."""
        assert self._process is not None
        return await self._process.wait()

    async def kill(self) -> None:
        """Kill the worker and its driver of live copy with SIGKILL. Its embedded Postgres server goes on."""
        assert self._process is not None
        driver = _driver_of(self._process.pid)
        self._process.kill()
        for process in driver:
            with contextlib.suppress(psutil.Error):
                process.kill()
        await self._process.wait()

    async def stop(self) -> None:
        """Stop the worker with SIGTERM, and with SIGKILL if that takes too long."""
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with timeout(STOP_SECONDS_MAX):
                await self._process.wait()
        except TimeoutError:
            await self.kill()

    def _check_alive(self) -> None:
        assert self._process is not None
        status = self._process.returncode
        if status is not None:
            raise WorkerFailed(
                f"the worker of {self.cluster} did not get ready: it {exit_reason(status)}{self._tail()}",
                status if status > 0 else 3,
            )

    def _tail(self) -> str:
        if self._log_file is None or not self._log_file.exists():
            return ""
        lines = self._log_file.read_text(errors="replace").splitlines()[-5:]
        return ":\n  " + "\n  ".join(lines) + f"\n  (all of it: {self._log_file})"


def _driver_of(pid: int) -> list[psutil.Process]:
    """Return the processes of the driver of live copy that the worker with that pid has started."""
    found: list[psutil.Process] = []
    with contextlib.suppress(psutil.Error):
        for child in psutil.Process(pid).children():
            if DRIVER_MODULE in child.cmdline():
                found += [child, *child.children(recursive=True)]
    return found


def stop_left_postgres(worker: WorkerProcess, data: Path) -> None:
    """End the Postgres server that a killed worker of ours left in its data directory, by the server's own pid."""
    if not worker.was_ready or worker.running:
        return
    directory = data.absolute() / "postgres"
    try:
        server = psutil.Process(int((directory / "postmaster.pid").read_text().split()[0]))
        if str(directory) in server.cmdline():  # else the file is stale and the pid is somebody else's
            server.send_signal(signal.SIGINT)  # Postgres' fast shutdown
            server.wait(STOP_SECONDS_MAX)
    except (OSError, ValueError, IndexError, psutil.Error):
        return
